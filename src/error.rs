//! What can go wrong: when a limiter is set up, and when it is asked.

use std::borrow::Cow;
use std::error::Error as StdError;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// Why a check has no decision.
///
/// Opaque, so that it can say more later: [`kind`](Self::kind) is what a program acts on, the text
/// is for people, and [`source`](StdError::source) is the error underneath, if there is one. The
/// text names limits and addresses, never a key or a password.
///
/// Cheap to clone: one failed call may have carried several checks.
#[derive(Clone, Debug)]
pub struct Error(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    kind: ErrorKind,
    text: Cow<'static, str>,
    source: Option<Box<dyn StdError + Send + Sync>>,
}

/// The kinds of [`Error`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The cost is above the limit of a quota, so that no wait would ever admit it.
    CostExceedsLimit,
    /// The cost is above what an algorithm takes at once: 100 000 for the logs.
    CostTooLarge,
    /// The store did not answer within the deadline. Whether it charged is not known.
    Timeout,
    /// The store could not be reached, or could not serve now: a refused or lost connection, a
    /// server that is loading, failing over or read-only.
    Unavailable,
    /// The store answered that it will never do this as things are set up: a key of another type, a
    /// missing right, a wrong password, keys in two slots.
    Misconfigured,
    /// The store has no room for another key or unit.
    Full,
    /// The store answered something that is not an answer to a check.
    InvalidReply,
    /// The store does not have this operation.
    Unsupported,
    /// What tells the quotas of a key has failed: see
    /// [`RateLimitLayer::quotas_for`](crate::RateLimitLayer::quotas_for).
    QuotasUnknown,
}

impl ErrorKind {
    /// All of them, each at its own place.
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

    /// What metrics and events call it.
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
    /// Makes an error of a store: its kind and a text for people, which names no key.
    #[must_use]
    pub fn new(kind: ErrorKind, text: impl Into<Cow<'static, str>>) -> Self {
        Self::build(kind, text.into(), None)
    }

    /// Adds the error underneath.
    #[must_use]
    pub fn with_source(self, source: impl StdError + Send + Sync + 'static) -> Self {
        self.with_boxed_source(Box::new(source))
    }

    pub(crate) fn with_boxed_source(self, source: Box<dyn StdError + Send + Sync>) -> Self {
        Self::build(self.0.kind, self.0.text.clone(), Some(source))
    }

    fn build(
        kind: ErrorKind,
        text: Cow<'static, str>,
        source: Option<Box<dyn StdError + Send + Sync>>,
    ) -> Self {
        Self(Arc::new(Inner { kind, text, source }))
    }

    /// What kind of error this is.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// Whether it is the very same, told to several callers.
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

    pub(crate) fn cost_too_large(cost: u32, most: u32) -> Self {
        Self::new(
            ErrorKind::CostTooLarge,
            format!(
                "a cost of {cost} is too large for a log, which takes at most {most} units at once"
            ),
        )
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.text)
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

/// Why a limiter could not be set up: a value from outside breaks a rule.
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
    /// A text is not a quota.
    Quota,
    /// A URL names no store, or one that this build does not have.
    Url,
    /// A key cannot be found in requests as it was told: a network or a name is none.
    Key,
}

impl ConfigError {
    /// What kind of error this is.
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
        Self::of_quota("quota", text, rule)
    }

    /// `what` is the part of a quota that stands alone: its window, its algorithm.
    pub(crate) fn of_quota(what: &str, text: &str, rule: &str) -> Self {
        let shown = excerpt(text);
        Self {
            kind: ConfigErrorKind::Quota,
            text: format!("invalid {what} {shown:?}: {rule}"),
        }
    }

    pub(crate) fn key(text: String) -> Self {
        Self {
            kind: ConfigErrorKind::Key,
            text,
        }
    }

    /// `shown` is the part of the URL that may be shown: not what could hold a password.
    pub(crate) fn url(shown: &str, rule: &str) -> Self {
        let shown = excerpt(shown);
        Self {
            kind: ConfigErrorKind::Url,
            text: format!("invalid store URL {shown:?}: {rule}"),
        }
    }
}

/// As much of a text as helps to find it.
fn excerpt(text: &str) -> String {
    const MOST: usize = 48;
    let mut shown: String = text.chars().take(MOST).collect();
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
