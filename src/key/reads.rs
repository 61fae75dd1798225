//! The parts of a request that a key is read from.

/// Describes what an extractor reads, so that a layer can detect a misconfiguration; see
/// [`KeyExtractor::reads`](super::KeyExtractor::reads).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reads {
    /// The address of the connection's other end, and no header.
    pub(crate) peer: bool,
    /// The route that a router matched.
    pub(crate) path: bool,
    /// The extractor has logged that it counts a proxy instead of the proxy's clients.
    pub(crate) warned: bool,
}

impl Reads {
    /// Joins what the extractors of two keys read.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self {
            peer: self.peer || other.peer,
            path: self.path || other.path,
            warned: self.warned || other.warned,
        }
    }
}
