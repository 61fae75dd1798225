//! axum 0.8: the address and the route that it stores in the extensions of a request.
//!
//! No other file of this room names axum, so that the next major version gets a file beside this one.

use std::net::SocketAddr;

use axum::extract::MatchedPath;
use axum::extract::connect_info::{ConnectInfo, MockConnectInfo};
use http::request::Parts;

use super::error::{KeyError, KeyErrorKind};
use super::extractor::{KeyExtractor, inherent_or};
use super::key::Key;
use super::reads::Reads;
use super::tag::Tag;

/// Counts by the route that axum matched, as the router spells it: `/users/{id}`, not `/users/7`.
///
/// All requests to a route share its count, so this is mostly one part of a key:
/// `(key::peer_ip(), key::path())`. The path of the request itself is not used: `/a`, `/a/` and `/%61`
/// would each get a count.
///
/// The route is known only inside a [`Router`](axum::Router): to layers that its `layer` or `route_layer`
/// adds. A request that matches no route and ends in the fallback has no key, and is answered 400. With
/// `route_layer` it is not limited and stays a 404. Name a second key to count it too:
/// `key::path().or(key::global())`.
#[cfg_attr(docsrs, doc(cfg(feature = "axum-08")))]
#[must_use]
pub fn path() -> Path {
    Path(())
}

/// Counts by the route that axum matched; made by [`path`].
#[cfg_attr(docsrs, doc(cfg(feature = "axum-08")))]
#[derive(Clone, Copy, Debug)]
pub struct Path(());

impl Path {
    const TAG: Tag<'static> = Tag::Kind("path=");

    /// Returns the key of a request to a route, which is spelled as in the router.
    #[must_use]
    pub fn of(&self, route: &str) -> Key {
        Key::tagged(Self::TAG, route.as_bytes())
    }
}

inherent_or!(Path);

impl KeyExtractor for Path {
    fn extract(&self, parts: &Parts) -> Result<Key, KeyError> {
        let matched = parts.extensions.get::<MatchedPath>();
        matched
            .map(|path| self.of(path.as_str()))
            .ok_or_else(|| KeyError::new(KeyErrorKind::Missing, "the request matched no route"))
    }

    fn reads(&self) -> Reads {
        Reads::matched_path()
    }
}

impl Reads {
    /// Reads the route that axum matched, as [`path`] does.
    ///
    /// A layer logs if none of its first 1 000 requests has one: it stands outside of the router then.
    #[cfg_attr(docsrs, doc(cfg(feature = "axum-08")))]
    #[must_use]
    pub const fn matched_path() -> Self {
        Self {
            path: true,
            ..Self::nothing()
        }
    }
}

/// Returns the peer's address, as axum's `ConnectInfo` extractor finds it.
pub(super) fn connect_info(parts: &Parts) -> Option<SocketAddr> {
    let info = parts.extensions.get::<ConnectInfo<SocketAddr>>();
    let mock = || parts.extensions.get::<MockConnectInfo<SocketAddr>>();
    info.map(|info| info.0)
        .or_else(|| mock().map(|mock| mock.0))
}

/// Whether a router matched a route for the request.
pub(crate) fn has_route(parts: &Parts) -> bool {
    parts.extensions.get::<MatchedPath>().is_some()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::test_request::get;
    use crate::key::{PeerAddr, peer_ip};

    #[test]
    fn the_peer_is_axums_connect_info_or_its_mock() {
        let mut parts = get();
        let key_of = |parts: &Parts| peer_ip().extract(parts).unwrap().as_str().to_owned();
        let address = |last: u8| SocketAddr::from(([192, 0, 2, last], 5_000));
        parts.extensions.insert(MockConnectInfo(address(1)));
        assert_eq!(key_of(&parts), "ip=192.0.2.1");
        parts.extensions.insert(ConnectInfo(address(2)));
        assert_eq!(key_of(&parts), "ip=192.0.2.2");
        parts.extensions.insert(PeerAddr(address(3)));
        assert_eq!(key_of(&parts), "ip=192.0.2.3");
    }
}
