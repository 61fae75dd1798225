//! Errors of key extraction.

use std::fmt;
use std::sync::Arc;

/// The error of a [`KeyExtractor`](super::KeyExtractor) that returns no key for a request.
///
/// Its [kind](KeyErrorKind) decides how the layer answers. Its text names the place where a key was
/// expected, such as a header, and never the value found there: clients see the text in a 400.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyError {
    kind: KeyErrorKind,
    text: Arc<str>,
}

/// The kinds of [`KeyError`], which decide how a layer answers the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum KeyErrorKind {
    /// The request has no key: 400 by default, or exempt, as
    /// [`on_missing_key`](crate::RateLimitLayer::on_missing_key) says. `.or(..)` tries its second key.
    Missing,
    /// The key of the request can be read in two ways, for example a header that is sent twice: 400. Such
    /// a request is never exempt, and `.or(..)` does not try its second key. Otherwise a client could
    /// choose how it is counted.
    Ambiguous,
    /// The value has the wrong form, such as a text in place of a number: 400. Such a request is never exempt, and
    /// `.or(..)` does not try its second key. No extractor of this crate returns it.
    Invalid,
    /// The server is misconfigured, so no request has a key: 500, and one log line with the text of the
    /// error, which should name the remedy. The line comes when the layer is added to a service if the extractor
    /// [knows the error](crate::KeyExtractor::config_error) by then, else with the first request.
    Misconfigured,
}

impl KeyErrorKind {
    pub(crate) fn text(self) -> &'static str {
        match self {
            Self::Missing => "missing_key",
            Self::Ambiguous => "ambiguous_key",
            Self::Invalid => "invalid_key",
            Self::Misconfigured => "misconfigured",
        }
    }
}

impl KeyError {
    /// Creates an error.
    ///
    /// Clients see the text of a missing or an ambiguous key in the body of the 400. It names the place,
    /// like "the header `x-api-key` is missing", and must not contain a secret.
    #[must_use]
    pub fn new(kind: KeyErrorKind, text: impl Into<Arc<str>>) -> Self {
        let text = text.into();
        Self { kind, text }
    }

    /// Returns the kind of this error.
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
