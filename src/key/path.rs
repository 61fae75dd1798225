//! The route that a request matched.

use axum::extract::MatchedPath;
use http::request::Parts;

use super::error::{KeyError, KeyErrorKind};
use super::extractor::KeyExtractor;
use super::key::Key;
use super::key::Tag;
use super::reads::Reads;

/// Counts by the route that axum matched, as it was written: `/users/{id}`, not `/users/7`.
///
/// All requests to a route share its count, so this is mostly a part of a key:
/// `(key::peer_ip(), key::path())`. The path of the request itself is not used, since `/a`, `/a/`
/// and `/%61` would each have a count of its own.
///
/// There is a route only inside of a [`Router`](axum::Router): on layers that are added by its
/// `layer` or `route_layer`. A request that no route matches, which ends in the fallback, has no
/// key, and is answered 400; with `route_layer` it is not limited and stays 404. To count it too,
/// say under what: `key::path().or(key::global())`.
#[must_use]
pub fn path() -> Path {
    Path(())
}

/// Counts by the route that axum matched; made by [`path`].
#[derive(Clone, Copy, Debug)]
pub struct Path(());

impl Path {
    /// The key of a request to a route, written as for the router.
    #[must_use]
    pub fn of(&self, route: &str) -> Key {
        Key::tagged(Tag::Path, route.as_bytes())
    }
}

impl KeyExtractor for Path {
    fn extract(&self, parts: &Parts) -> Result<Key, KeyError> {
        let matched = parts.extensions.get::<MatchedPath>();
        matched
            .map(|path| self.of(path.as_str()))
            .ok_or_else(|| KeyError::new(KeyErrorKind::Missing, "the request matched no route"))
    }

    fn reads(&self) -> Reads {
        Reads::PATH
    }
}
