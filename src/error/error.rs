//! The error of a check, and the error of a configuration.

use std::borrow::Cow;
use std::convert::Infallible;
use std::error::Error as StdError;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::code::Code;
use super::kind::{ConfigErrorKind, ErrorKind};

/// The error of a check, a refund or another operation of a limiter.
///
/// A check that fails has no decision. A layer then applies its [`FailurePolicy`](crate::FailurePolicy); a
/// [`RateLimiter`](crate::RateLimiter) without a policy returns the error.
///
/// Programs match on the [`kind`](Self::kind). The text is for people: it names limits and addresses, never a
/// key or a password, and ends with the [`code`](Self::code). The [`source`](StdError::source) is the underlying error,
/// if there is one.
///
/// Cloning is cheap, because one failed call to Redis may fail many checks.
///
/// # Examples
///
/// ```
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
/// use tollgate::{ErrorKind, MemoryStore, Quota, RateLimiter};
///
/// let limiter = RateLimiter::new(MemoryStore::new(), Quota::per_minute(5));
/// let error = limiter.check_n("ada", 6).await.unwrap_err();
///
/// // Retrying helps after some errors, but not after this one.
/// assert_eq!(error.kind(), ErrorKind::CostExceedsLimit);
/// # });
/// ```
#[derive(Clone, Debug)]
pub struct Error(Arc<ErrorInner>);

#[derive(Clone, Debug)]
struct ErrorInner {
    code: Code,
    text: Cow<'static, str>,
    remedy: Option<Cow<'static, str>>,
    act: Act,
    source: Option<Arc<dyn StdError + Send + Sync>>,
}

/// The action of this crate on an error, beside returning it.
#[cfg_attr(
    not(feature = "redis"),
    expect(dead_code, reason = "only the Redis store makes the others")
)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Act {
    Nothing,
    /// Answers the other checks of the call: the store has not failed.
    OneCheck,
    /// Reconnects, because another server is the master.
    Replica,
    /// Follows the redirect, in a cluster.
    Redirect,
    /// Sends each entry of the call alone, because the cluster is moving some of their keys.
    Moving,
    /// Sends the keys of each cluster slot alone.
    SeveralSlots,
    /// Sends the entry again, because its call had no window of a calendar at the time of the server.
    NoWindow,
    /// Sends the text of the script.
    UnknownScript,
    /// Examines whether the server lacks EVALSHA, or TIME in scripts.
    UnknownCommand,
    /// Examines whether scripts may run TIME.
    ForbiddenCommand,
    ForbiddenKeys,
    /// Examines whether scripts may run TIME.
    NotInScripts,
}

impl Error {
    /// Creates an error, for a [`Store`](crate::Store) outside this crate. The text must not contain a key.
    #[must_use]
    pub fn new(kind: ErrorKind, text: impl Into<Cow<'static, str>>) -> Self {
        Self::coded(Code::from_kind(kind), text)
    }

    pub(crate) fn coded(code: Code, text: impl Into<Cow<'static, str>>) -> Self {
        Self(Arc::new(ErrorInner {
            code,
            text: text.into(),
            remedy: None,
            act: Act::Nothing,
            source: None,
        }))
    }

    /// Puts `context` before the text. The error itself becomes the source.
    pub(crate) fn within(self, context: &str) -> Self {
        let mut outer = Self::coded(self.0.code, format!("{context}: {}", self.0.text));
        Arc::make_mut(&mut outer.0).remedy = self.0.remedy.clone();
        outer.with_source(self)
    }

    /// Adds the underlying error.
    #[must_use]
    pub fn with_source(self, source: impl StdError + Send + Sync + 'static) -> Self {
        self.with_boxed_source(Box::new(source))
    }

    pub(crate) fn with_boxed_source(mut self, source: Box<dyn StdError + Send + Sync>) -> Self {
        Arc::make_mut(&mut self.0).source = Some(source.into());
        self
    }

    #[cfg(feature = "redis")]
    pub(crate) fn with_remedy(mut self, remedy: impl Into<Cow<'static, str>>) -> Self {
        Arc::make_mut(&mut self.0).remedy = Some(remedy.into());
        self
    }

    pub(crate) fn with_act(mut self, act: Act) -> Self {
        Arc::make_mut(&mut self.0).act = act;
        self
    }

    pub(crate) fn act(&self) -> Act {
        self.0.act
    }

    pub(crate) fn problem(&self) -> &str {
        &self.0.text
    }

    #[cfg(feature = "redis")]
    pub(crate) fn remedy(&self) -> Option<&Cow<'static, str>> {
        self.0.remedy.as_ref()
    }

    /// Returns the kind of this error.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        self.0.code.kind
    }

    /// Returns the code of this error, such as `tollgate::E101`, which its text has at the end. The page
    /// [messages](crate::guide::messages) has the remedy of each.
    ///
    /// An error of a store outside this crate has the code of its kind.
    #[must_use]
    pub fn code(&self) -> &'static str {
        self.0.code.text
    }

    /// Returns whether the store failed. Otherwise no store could decide the check.
    pub(crate) fn is_store_failure(&self) -> bool {
        !matches!(
            self.kind(),
            ErrorKind::CostExceedsLimit | ErrorKind::CostTooLarge | ErrorKind::Unsupported
        )
    }

    /// Returns whether the store was away or too slow, so that the same request may succeed later.
    pub(crate) fn is_outage(&self) -> bool {
        matches!(
            self.kind(),
            ErrorKind::Timeout | ErrorKind::QueueTimeout | ErrorKind::Unavailable
        )
    }

    /// Returns whether a store that answers a probe may still fail checks in this way: its server has replied.
    pub(crate) fn outlasts_probe(&self) -> bool {
        match self.kind() {
            ErrorKind::Timeout | ErrorKind::QueueTimeout => false,
            ErrorKind::Unavailable if self.0.code == Code::BREAKER_OPEN => {
                let last = StdError::source(self).and_then(|source| source.downcast_ref::<Self>());
                last.is_some_and(Self::outlasts_probe)
            }
            ErrorKind::Unavailable => self.0.code.is_reply(),
            _ => true,
        }
    }

    pub(crate) fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Marks the error of one check, for example because of what is stored for its key. It is not a failure of the store,
    /// which other checks share.
    pub(crate) fn for_one_check(self) -> Self {
        self.with_act(Act::OneCheck)
    }

    pub(crate) fn concerns_one_check(&self) -> bool {
        self.act() == Act::OneCheck
    }

    pub(crate) fn levels(one: &str, other: &str, problem: &str, remedy: &str) -> Self {
        let text = format!("cannot check limiters {one:?} and {other:?} together: {remedy}");
        Self::coded(Code::LEVELS, text).with_source(ConfigError::levels(one, other, problem))
    }

    pub(crate) fn alternatives(text: String) -> Self {
        Self::coded(Code::ALTERNATIVES, text)
    }

    /// Returns whether the limiters of a check are misconfigured, with any store: they cannot be checked together,
    /// or have a lease and slots.
    pub(crate) fn is_config_error(&self) -> bool {
        [Code::LEVELS, Code::LEASE, Code::ALTERNATIVES].contains(&self.0.code)
    }

    /// `bound` names the limit, or the bound of a share.
    pub(crate) fn cost_exceeds_limit(cost: u32, bound: &str) -> Self {
        let text =
            format!("a cost of {cost} never passes a {bound}: lower the cost or change the quota");
        Self::new(ErrorKind::CostExceedsLimit, text)
    }

    pub(crate) fn slots_exceed_limit(slots: u32, bound: &str) -> Self {
        let text = format!(
            "{slots} slots in flight never pass a {bound}: take fewer slots or change the quota"
        );
        Self::new(ErrorKind::CostExceedsLimit, text)
    }

    pub(crate) fn holds_nothing(limiter: &str) -> Self {
        let text = format!(
            "limiter {limiter:?} has a quota in flight, and a check holds no slot: call `acquire` or `try_acquire`"
        );
        Self::coded(Code::HOLDS_NOTHING, text)
    }

    /// `what` names the quotas that are not held in advance.
    #[cold]
    pub(crate) fn not_leased(limiter: &str, what: &str, lease: Duration) -> Self {
        let text = format!(
            "limiter {limiter:?} has a lease, and {what} are not held in advance: remove the lease, or the {what}, or \
             give each a limiter of its own"
        );
        Self::coded(Code::LEASE, text).with_source(ConfigError::not_leased(what, lease))
    }

    /// `what` names the quotas beside which no units are held.
    #[cold]
    pub(crate) fn not_held(limiter: &str, what: &str) -> Self {
        let text = format!(
            "limiter {limiter:?} has a `reserve_lease`, and no units are held beside {what}: give these a limiter of their own"
        );
        Self::coded(Code::NOT_HELD, text)
    }

    pub(crate) fn cost_too_large(cost: u32, max: u32) -> Self {
        let text = format!(
            "a cost of {cost} is too large for a log, which charges at most {max} units at once: \
             lower the cost or choose another algorithm"
        );
        Self::new(ErrorKind::CostTooLarge, text)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.text)?;
        if let Some(remedy) = &self.0.remedy {
            write!(f, "; {remedy}")?;
        }
        write!(f, " [{}]", self.code())
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

/// The error of an invalid configuration value: a quota, a window, a lease, a store URL, a key extractor or the
/// levels of a check.
///
/// The text names the value and the rule that it breaks. Of a URL, it names only the scheme and known parameters: any other
/// part may be a password.
///
/// # Examples
///
/// ```
/// use tollgate::{ConfigErrorKind, Quota};
///
/// let error = "100/fortnight".parse::<Quota>().unwrap_err();
/// assert_eq!(error.kind(), ConfigErrorKind::Quota);
/// assert!(error.to_string().contains("100/fortnight"));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigError {
    kind: ConfigErrorKind,
    text: String,
}

/// Never happens. With it, functions that take text also take values that need no conversion.
impl From<Infallible> for ConfigError {
    fn from(never: Infallible) -> Self {
        match never {}
    }
}

impl ConfigError {
    /// Returns the kind of this error.
    #[must_use]
    pub fn kind(&self) -> ConfigErrorKind {
        self.kind
    }

    /// Returns the code of this error, such as `tollgate::E202`, as [`Error::code`] does.
    #[must_use]
    pub fn code(&self) -> &'static str {
        Code::from_config_kind(self.kind).text
    }

    fn new(kind: ConfigErrorKind, text: String) -> Self {
        Self { kind, text }
    }

    pub(crate) fn window(window: Duration) -> Self {
        let text = format!("invalid window {window:?}: a window is from 1 ms to 366 days");
        Self::new(ConfigErrorKind::Window, text)
    }

    pub(crate) fn quota(text: &str, rule: &str) -> Self {
        Self::quota_part("quota", text, rule)
    }

    /// `part` is the invalid part of a quota, such as `window` or `algorithm`.
    pub(crate) fn quota_part(part: &str, text: &str, rule: &str) -> Self {
        let shown = excerpt(text);
        let text = format!("invalid {part} {shown:?}: {rule}");
        Self::new(ConfigErrorKind::Quota, text)
    }

    pub(crate) fn key(text: String) -> Self {
        Self::new(ConfigErrorKind::Key, text)
    }

    fn levels(one: &str, other: &str, problem: &str) -> Self {
        let text = format!("invalid levels {one:?} and {other:?}: {problem}");
        Self::new(ConfigErrorKind::Levels, text)
    }

    pub(crate) fn not_leased(what: &str, lease: Duration) -> Self {
        let text = format!("invalid lease {lease:?}: {what} are not held in advance");
        Self::new(ConfigErrorKind::Lease, text)
    }

    pub(crate) fn block_rule(value: &dyn fmt::Debug, rule: &str) -> Self {
        let text = format!("invalid block rule {value:?}: {rule}");
        Self::new(ConfigErrorKind::BlockRule, text)
    }

    /// Creates the error of a store URL, for a store with URLs of its own.
    ///
    /// The text shows the `scheme` of the URL, or nothing of it if the scheme is empty: in a malformed URL, any other part may
    /// be a password. `rule` says what is wrong, and the remedy.
    #[must_use]
    pub fn url(scheme: &'static str, rule: &str) -> Self {
        let colon = if scheme.is_empty() { "" } else { ":" };
        let text = format!("invalid store URL \"{scheme}{colon}…\": {rule}");
        Self::new(ConfigErrorKind::Url, text)
    }
}

/// Panics because a future was polled after completion, as the futures of tower-http do.
#[cold]
#[track_caller]
#[expect(
    clippy::panic,
    reason = "a finished future has no result left, and a caller that waits for one would hang"
)]
pub(crate) fn polled_after_completion(future: &str) -> ! {
    panic!("`{future}` polled after completion")
}

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
        write!(f, "{} [{}]", self.text, self.code())
    }
}

impl StdError for ConfigError {}
