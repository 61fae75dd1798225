//! axum 0.8: the peer's address and the matched route, which axum stores in the request extensions.
//!
//! This is the only file in this directory that names axum. The next major version of axum gets its own file.

use std::net::SocketAddr;

use axum::extract::MatchedPath;
use axum::extract::connect_info::{ConnectInfo, MockConnectInfo};
use http::request::Parts;

use super::error::{KeyError, KeyErrorKind};
use super::extractor::{KeyExtractor, inherent_or};
use super::key::Key;
use super::reads::Reads;

/// Returns an extractor that counts by the route that axum matched: `/users/{id}`, not `/users/7`.
///
/// All requests to a route share one count. So combine it with another key in most cases:
/// `(key::peer_ip(), key::path())`. The path in the request is not used, because a client can spell it in
/// several ways: `/a`, `/a/` and `/%61` would be three keys.
///
/// Add the layer inside a [`Router`](axum::Router), for example with its `layer` or `route_layer`. A layer
/// around the router does not know the route, and warns once if none of its first 20 requests has one, in a debug
/// build if none of the first 3.
///
/// A request that matches no route has no key:
///
/// - With `Router::layer`, it is rejected with 400 before it reaches the fallback. To count such requests
///   together, use `key::path().or(key::global())`.
/// - With `Router::route_layer`, it is not limited and gets the 404 of the fallback.
///
/// # Where no route is matched
///
/// tonic's `Server` has no routes, and axum matches none for a service of
/// [`nest_service`](axum::Router::nest_service). If that service is a `Router`, add the layer to it. Otherwise, count by
/// the path of the URI. List the paths that you serve, because a client can invent others, and each would have a fresh
/// quota:
///
/// ```
/// use tollgate::key;
///
/// let by_method = key::from_fn(|parts| match parts.uri.path() {
///     path @ ("/shop.Orders/Place" | "/shop.Orders/List") => path.to_owned(),
///     _ => "other".to_owned(),
/// });
/// ```
///
/// Inside a nested service, the URI lacks the prefix, and axum's `OriginalUri` in the extensions has it.
///
/// # Examples
///
/// ```
/// use axum::{Router, routing::get};
/// use tollgate::{MemoryStore, Quota, RateLimitLayer, key};
///
/// let by_client_and_route = RateLimitLayer::new(MemoryStore::new(), Quota::per_minute(60))
///     .key((key::peer_ip(), key::path()));
///
/// let app: Router = Router::new()
///     .route("/users/{id}", get(|| async { "a user" }))
///     .route_layer(by_client_and_route);
/// ```
#[cfg_attr(docsrs, doc(cfg(feature = "axum-08")))]
#[must_use]
pub fn path() -> Path {
    Path(())
}

/// A key extractor that counts by the route that axum matched; created by [`path`].
#[cfg_attr(docsrs, doc(cfg(feature = "axum-08")))]
#[derive(Clone, Copy, Debug)]
pub struct Path(());

impl Path {
    /// Returns the key of requests to a route, spelled as in the router: `/users/{id}`.
    #[must_use]
    pub fn of(&self, route: &str) -> Key {
        Key::tagged("path=", route.as_bytes())
    }
}

inherent_or!(Path);

impl KeyExtractor for Path {
    fn extract(&self, parts: &Parts) -> Result<Key, KeyError> {
        parts
            .extensions
            .get::<MatchedPath>()
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
    /// The layer warns if none of its first requests has a route, as for [an extension](Self::extension): then it is
    /// outside of the router, or in front of a service [without routes](path#where-no-route-is-matched).
    #[cfg_attr(docsrs, doc(cfg(feature = "axum-08")))]
    #[must_use]
    pub const fn matched_path() -> Self {
        Self {
            path: true,
            ..Self::nothing()
        }
    }
}

/// Returns the peer's address from where axum's `ConnectInfo` extractor takes it.
pub(super) fn connect_info(parts: &Parts) -> Option<SocketAddr> {
    if let Some(info) = parts.extensions.get::<ConnectInfo<SocketAddr>>() {
        return Some(info.0);
    }
    let mock = parts.extensions.get::<MockConnectInfo<SocketAddr>>()?;
    Some(mock.0)
}

pub(crate) fn has_route(parts: &Parts) -> bool {
    parts.extensions.get::<MatchedPath>().is_some()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::test_request::get;
    use crate::key::{PeerAddr, peer_ip};

    #[test]
    fn peer_addr_precedes_connect_info_and_connect_info_precedes_its_mock() {
        let mut parts = get();
        parts.extensions.insert(MockConnectInfo(address(1)));
        assert_eq!(extract(&parts), "ip=192.0.2.1");
        parts.extensions.insert(ConnectInfo(address(2)));
        assert_eq!(extract(&parts), "ip=192.0.2.2");
        parts.extensions.insert(PeerAddr(address(3)));
        assert_eq!(extract(&parts), "ip=192.0.2.3");
    }

    fn address(last: u8) -> SocketAddr {
        SocketAddr::from(([192, 0, 2, last], 5_000))
    }

    fn extract(parts: &Parts) -> String {
        peer_ip().extract(parts).unwrap().as_str().to_owned()
    }
}
