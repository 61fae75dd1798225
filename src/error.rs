//! The errors of checks and of configuration.

use std::borrow::Cow;
use std::error::Error as StdError;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// The reason why a check has no decision.
///
/// It is opaque, so that it can hold more later. Programs act on its [`kind`](Self::kind), and people read
/// its text. Its [`source`](StdError::source) is the underlying error, if there is one. The text names
/// limits and addresses, never a key or a password.
///
/// Clones are cheap, since one failed call may have carried several checks.
#[derive(Clone, Debug)]
pub struct Error(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    kind: ErrorKind,
    text: Cow<'static, str>,
    remedy: Option<Cow<'static, str>>,
    source: Option<Box<dyn StdError + Send + Sync>>,
}

/// The kinds of [`Error`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The cost is above the limit of a quota, so no wait helps.
    CostExceedsLimit,
    /// The cost is above the most units that an algorithm charges at once: 100 000 for the logs.
    CostTooLarge,
    /// The store did not answer within the deadline. It may or may not have charged.
    Timeout,
    /// The store could not be reached or could not serve: a refused or lost connection, a server that is
    /// loading, failing over or read-only.
    Unavailable,
    /// The store cannot serve until its setup changes: a key of another type, a missing permission, a wrong
    /// password, keys in two slots.
    Misconfigured,
    /// The store has no space for another key or unit.
    Full,
    /// The store sent a reply that does not answer the check.
    InvalidReply,
    /// The store does not support this operation.
    Unsupported,
    /// The lookup of a key's quotas failed: see
    /// [`RateLimitLayer::quotas_for`](crate::RateLimitLayer::quotas_for).
    QuotasUnknown,
}

impl ErrorKind {
    /// All kinds, each at the index of its discriminant.
    #[cfg(any(feature = "metrics", test))]
    pub(crate) const ALL: [Self; 9] = [
        Self::CostExceedsLimit,
        Self::CostTooLarge,
        Self::Timeout,
        Self::Unavailable,
        Self::Misconfigured,
        Self::Full,
        Self::InvalidReply,
        Self::Unsupported,
        Self::QuotasUnknown,
    ];

    /// The name of this kind in metrics and events.
    pub(crate) fn text(self) -> &'static str {
        match self {
            Self::CostExceedsLimit => "cost_exceeds_limit",
            Self::CostTooLarge => "cost_too_large",
            Self::Timeout => "timeout",
            Self::Unavailable => "unavailable",
            Self::Misconfigured => "misconfigured",
            Self::Full => "full",
            Self::InvalidReply => "invalid_reply",
            Self::Unsupported => "unsupported",
            Self::QuotasUnknown => "quotas_unknown",
        }
    }
}

impl Error {
    /// Makes an error of a store from its kind and a text for people. The text must not name a key.
    #[must_use]
    pub fn new(kind: ErrorKind, text: impl Into<Cow<'static, str>>) -> Self {
        Self::build(kind, text.into(), None, None)
    }

    /// Adds the underlying error.
    #[must_use]
    pub fn with_source(self, source: impl StdError + Send + Sync + 'static) -> Self {
        self.with_boxed_source(Box::new(source))
    }

    pub(crate) fn with_boxed_source(self, source: Box<dyn StdError + Send + Sync>) -> Self {
        let Inner {
            kind, text, remedy, ..
        } = &*self.0;
        Self::build(*kind, text.clone(), remedy.clone(), Some(source))
    }

    /// Makes an error of Redis from what is wrong and the remedy, which its text has at the end.
    #[cfg(feature = "redis")]
    pub(crate) fn with_remedy(
        kind: ErrorKind,
        text: String,
        remedy: Option<Cow<'static, str>>,
    ) -> Self {
        Self::build(kind, text.into(), remedy, None)
    }

    /// The text without the remedy.
    #[cfg(feature = "redis")]
    pub(crate) fn problem(&self) -> &str {
        &self.0.text
    }

    /// The remedy, if it is kept apart from the text.
    #[cfg(feature = "redis")]
    pub(crate) fn remedy(&self) -> Option<&Cow<'static, str>> {
        self.0.remedy.as_ref()
    }

    fn build(
        kind: ErrorKind,
        text: Cow<'static, str>,
        remedy: Option<Cow<'static, str>>,
        source: Option<Box<dyn StdError + Send + Sync>>,
    ) -> Self {
        Self(Arc::new(Inner {
            kind,
            text,
            remedy,
            source,
        }))
    }

    /// The kind of this error.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// Whether both are clones of one error.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    pub(crate) fn cost_exceeds_limit(cost: u32, limit: u32) -> Self {
        Self::new(
            ErrorKind::CostExceedsLimit,
            format!(
                "a cost of {cost} never passes a limit of {limit}: lower the cost or raise the limit"
            ),
        )
    }

    pub(crate) fn cost_too_large(cost: u32, max: u32) -> Self {
        Self::new(
            ErrorKind::CostTooLarge,
            format!(
                "a cost of {cost} is too large for a log, which charges at most {max} units at once: \
                 lower the cost or choose another algorithm"
            ),
        )
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.text)?;
        match &self.0.remedy {
            Some(remedy) => write!(f, "; {remedy}"),
            None => Ok(()),
        }
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.0
            .source
            .as_deref()
            .map(|source| source as &(dyn StdError + 'static))
    }
}

/// The reason why a limiter could not be set up: a value from outside breaks a rule.
///
/// The text names the value and the rule, never a password.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigError {
    kind: ConfigErrorKind,
    text: String,
}

/// The kinds of [`ConfigError`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ConfigErrorKind {
    /// A window is shorter than 1 ms or longer than 366 days.
    Window,
    /// A text is not a valid quota.
    Quota,
    /// A URL names no store, or one that this build does not support.
    Url,
    /// A key extractor is misconfigured: a network or a name is invalid, or no trusted proxies are named.
    Key,
}

impl ConfigError {
    /// The kind of this error.
    #[must_use]
    pub fn kind(&self) -> ConfigErrorKind {
        self.kind
    }

    pub(crate) fn window(window: Duration) -> Self {
        Self {
            kind: ConfigErrorKind::Window,
            text: format!("invalid window {window:?}: a window is from 1 ms to 366 days"),
        }
    }

    pub(crate) fn quota(text: &str, rule: &str) -> Self {
        Self::quota_part("quota", text, rule)
    }

    /// Reports a part of a quota that was given alone: its window or its algorithm.
    pub(crate) fn quota_part(part: &str, text: &str, rule: &str) -> Self {
        let shown = excerpt(text);
        Self {
            kind: ConfigErrorKind::Quota,
            text: format!("invalid {part} {shown:?}: {rule}"),
        }
    }

    pub(crate) fn key(text: String) -> Self {
        Self {
            kind: ConfigErrorKind::Key,
            text,
        }
    }

    /// `shown` is the part of the URL without anything that could be a password.
    pub(crate) fn url(shown: &str, rule: &str) -> Self {
        let shown = excerpt(shown);
        Self {
            kind: ConfigErrorKind::Url,
            text: format!("invalid store URL {shown:?}: {rule}"),
        }
    }
}

/// Panics because a finished future was polled, as the futures of tower-http do.
#[cold]
#[track_caller]
#[expect(
    clippy::panic,
    reason = "a finished future has no result left, and a caller that waits for one would hang"
)]
pub(crate) fn polled_after_completion(future: &str) -> ! {
    panic!("`{future}` polled after completion")
}

/// Returns the beginning of a text, enough to find it.
fn excerpt(text: &str) -> String {
    const MAX_CHARS: usize = 48;
    let mut shown: String = text.chars().take(MAX_CHARS).collect();
    if shown.len() < text.len() {
        shown.push('…');
    }
    shown
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl StdError for ConfigError {}
