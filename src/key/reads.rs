//! What a key is made of.

use http::request::Parts;

/// From what a key is taken, as far as a layer can see for itself whether that is set up well; see
/// [`KeyExtractor::reads`](super::KeyExtractor::reads).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reads {
    /// The address of the connection's other end, and no header.
    pub(crate) peer: bool,
    /// The route that was matched.
    pub(crate) path: bool,
    /// The extractor has warned that it counts a proxy instead of the proxy's clients.
    pub(crate) reported: bool,
}

impl Reads {
    pub(crate) const PEER: Self = Self {
        peer: true,
        path: false,
        reported: false,
    };

    #[cfg(feature = "axum-08")]
    pub(crate) const PATH: Self = Self {
        peer: false,
        path: true,
        reported: false,
    };

    /// What two keys are made of.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self {
            peer: self.peer || other.peer,
            path: self.path || other.path,
            reported: self.reported || other.reported,
        }
    }
}

/// Whether a router has found a route for a request.
#[cfg(feature = "axum-08")]
pub(crate) fn has_route(parts: &Parts) -> bool {
    parts
        .extensions
        .get::<axum::extract::MatchedPath>()
        .is_some()
}

#[cfg(not(feature = "axum-08"))]
pub(crate) fn has_route(_: &Parts) -> bool {
    false
}
