//! Errors of key extraction.

use std::fmt;
use std::sync::Arc;

/// The reason why no key could be extracted from a request.
///
/// The text names the place where the key was looked for, never a value. Clones are cheap.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyError {
    kind: KeyErrorKind,
    text: Arc<str>,
}

/// The kinds of [`KeyError`], which decide how the request is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum KeyErrorKind {
    /// The request has no key: 400, or exempt if the layer is
    /// [configured](crate::RateLimitLayer::on_missing_key) so. With `.or`, the second key is tried.
    Missing,
    /// The request has a key that can be read in two ways: 400. It is never exempt, and `.or` tries no
    /// second key: otherwise a client could choose how it is counted.
    Ambiguous,
    /// The server is not set up to know the key: 500, and a log line with the remedy.
    Misconfigured,
}

impl KeyErrorKind {
    /// The name of this kind in events.
    pub(crate) fn text(self) -> &'static str {
        match self {
            Self::Missing => "missing_key",
            Self::Ambiguous => "ambiguous_key",
            Self::Misconfigured => "misconfigured",
        }
    }
}

impl KeyError {
    /// Makes an error whose text completes "cannot tell who the request is from: …".
    #[must_use]
    pub fn new(kind: KeyErrorKind, text: impl Into<Arc<str>>) -> Self {
        let text = text.into();
        Self { kind, text }
    }

    /// The kind of this error.
    #[must_use]
    pub fn kind(&self) -> KeyErrorKind {
        self.kind
    }
}

impl fmt::Display for KeyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl std::error::Error for KeyError {}
