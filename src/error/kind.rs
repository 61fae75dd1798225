//! The kinds of errors, for programs.

/// The kind of an [`Error`](crate::Error), for programs to act on.
///
/// After [`Timeout`](Self::Timeout), [`QueueTimeout`](Self::QueueTimeout) and
/// [`Unavailable`](Self::Unavailable) a retry may help. After the other
/// kinds, the check, the set-up or the store has to change first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The cost is above the limit of a quota, so no wait helps. The store was not asked.
    CostExceedsLimit,
    /// The cost is above the most units that the algorithm charges at once: 100 000 for
    /// [`SlidingLog`](crate::Algorithm::SlidingLog) and [`SortedSetLog`](crate::Algorithm::SortedSetLog). A
    /// [soft](crate::Quota::soft) quota does not count such a check, and causes no error.
    CostTooLarge,
    /// The store did not answer within the deadline. The check may or may not have been charged.
    Timeout,
    /// The check waited too long for its turn in this process, and missed the deadline. The store answered other
    /// calls meanwhile, so it is not at fault: this process sends more checks than its connections carry, or lacks
    /// CPU. The check may have been charged if its turn came late.
    QueueTimeout,
    /// The store cannot be reached or cannot serve now: the connection was refused or lost, the server is
    /// loading, failing over or read-only, the closure for credentials failed, or the circuit breaker is open.
    Unavailable,
    /// The set-up or the call is wrong, and fails until it is changed. Examples are a wrong password, a missing
    /// permission, a node of a cluster that was opened as a single server, a Redis key of another type, checks in two
    /// cluster slots, and a setting that was changed on a store in use.
    Misconfigured,
    /// The store has no room for another key or unit, or the block list is full.
    Full,
    /// The reply of the store is malformed, or does not match the check. If this is so for one check of a call only,
    /// the others have their answers.
    InvalidReply,
    /// The store does not implement this operation.
    Unsupported,
    /// The closure of [`RateLimitLayer::quotas_for`](crate::RateLimitLayer::quotas_for) failed to find the
    /// quotas of a key.
    QuotasUnknown,
    /// No permit was free within the [`max_wait`](crate::RateLimiter::max_wait) of the limiter, or at once if its
    /// [`queue`](crate::RateLimiter::queue) was full.
    MaxWait,
}

impl ErrorKind {
    /// All kinds, each at the index of its discriminant.
    pub(crate) const ALL: [Self; 11] = [
        Self::CostExceedsLimit,
        Self::CostTooLarge,
        Self::Timeout,
        Self::QueueTimeout,
        Self::Unavailable,
        Self::Misconfigured,
        Self::Full,
        Self::InvalidReply,
        Self::Unsupported,
        Self::QuotasUnknown,
        Self::MaxWait,
    ];

    pub(crate) fn text(self) -> &'static str {
        match self {
            Self::CostExceedsLimit => "cost_exceeds_limit",
            Self::CostTooLarge => "cost_too_large",
            Self::Timeout => "timeout",
            Self::QueueTimeout => "queue_timeout",
            Self::Unavailable => "unavailable",
            Self::Misconfigured => "misconfigured",
            Self::Full => "full",
            Self::InvalidReply => "invalid_reply",
            Self::Unsupported => "unsupported",
            Self::QuotasUnknown => "quotas_unknown",
            Self::MaxWait => "max_wait",
        }
    }
}

/// The kind of a [`ConfigError`](crate::ConfigError).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ConfigErrorKind {
    /// A window is shorter than 1 ms or longer than 366 days.
    Window,
    /// A text is not a valid quota, window or algorithm.
    Quota,
    /// A store URL is malformed, needs a feature that this build does not have, or names a TLS file that
    /// cannot be read.
    Url,
    /// A key extractor is misconfigured: a network or a name is invalid, or there are no trusted proxies.
    Key,
    /// Limiters cannot be [checked together](crate::RateLimiter::check_all): they have different stores, or
    /// count the same key.
    Levels,
    /// A limiter with a [lease](crate::RateLimiter::lease) has a quota that is [in flight](crate::Quota::in_flight), a
    /// [total](crate::Quota::total) or [soft](crate::Quota::soft), or has [shares](crate::Quota::shares).
    Lease,
    /// A number or a time of a [`BlockRule`](crate::BlockRule) is out of range.
    BlockRule,
}
