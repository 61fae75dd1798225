//! Why a request has no key.

use std::fmt;
use std::sync::Arc;

/// Why a request has no key.
///
/// The text names the place where the key was looked for, never a value. Cheap to clone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyError {
    kind: KeyErrorKind,
    text: Arc<str>,
}

/// The kinds of [`KeyError`], which decide how the request is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum KeyErrorKind {
    /// The request does not say who it is from: 400, or exempt if the layer says so. With `.or`,
    /// the next choice is tried.
    Missing,
    /// The request says who it is from in a way that can be read in two: 400. Never exempt, and not
    /// tried otherwise: it would let a client choose how it is counted.
    Ambiguous,
    /// The server is not set up to know it: 500, and a line in the log that says what to do.
    Misconfigured,
}

impl KeyErrorKind {
    /// What events call it.
    pub(crate) fn text(self) -> &'static str {
        match self {
            Self::Missing => "missing_key",
            Self::Ambiguous => "ambiguous_key",
            Self::Misconfigured => "misconfigured",
        }
    }
}

impl KeyError {
    /// An error whose text completes "cannot tell who the request is from: …".
    #[must_use]
    pub fn new(kind: KeyErrorKind, text: impl Into<Arc<str>>) -> Self {
        let text = text.into();
        Self { kind, text }
    }

    /// What kind of error this is.
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
