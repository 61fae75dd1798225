//! What a limiter does while its store fails.

use std::num::NonZeroU32;

use crate::telemetry::OutageLog;

use crate::error::{Error, ErrorKind};
use crate::quota::{Quota, Quotas};

/// What a limiter answers while its store does not decide: because it is down or too slow, is full, or
/// answers an error.
///
/// Each handle of a limiter has a policy of its own: cheap calls may go on while expensive ones wait,
/// on one count. Layers [fall back](Self::fall_back) unless told otherwise. A
/// [`RateLimiter`](crate::RateLimiter) that is told nothing answers the [`Error`], for its
/// caller to decide.
///
/// | policy | a check comes to | [`source`](crate::DecisionView::source) | over HTTP |
/// |---|---|---|---|
/// | `fall_back()` | what the counts of this process say | `Fallback` | as ever |
/// | `open()` | admitted, not counted | `None` | goes on, without headers |
/// | `closed()` | the error | | 503, `Retry-After: 1` |
///
/// A layer does the same where the quotas of a key [cannot be found](crate::RateLimitLayer::quotas_for),
/// by its own quotas. When a policy begins and when it ends, a line in the log says so, once for each
/// handle.
///
/// # Examples
///
/// ```
/// use std::num::NonZeroU32;
/// use tollgate::{FailurePolicy, Quota, RateLimitLayer, RateLimiter, RedisStore};
///
/// let store = RedisStore::open("redis://127.0.0.1:6379")?;
/// let replicas = NonZeroU32::new(4).unwrap();
/// let reads = RateLimitLayer::new(store.clone(), Quota::per_minute(600))
///     .on_failure(FailurePolicy::fall_back().share(replicas));
///
/// // One count: reports are refused while nobody counts, lists are not.
/// let reports = RateLimiter::new(store, Quota::per_hour(100)).name("reports");
/// let create = RateLimitLayer::from(reports.clone()).on_failure(FailurePolicy::closed());
/// let list = RateLimitLayer::from(reports).on_failure(FailurePolicy::open());
/// # Ok::<(), tollgate::ConfigError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FailurePolicy {
    pub(crate) then: FailureAction,
    share: NonZeroU32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FailureAction {
    FallBack,
    Open,
    Closed,
}

impl FailurePolicy {
    /// The same quotas, counted in the memory of this process, which holds a bounded number of keys.
    ///
    /// Nothing is known there of what the store has counted, nor of other processes: until the store is
    /// back a key gets at most its quotas once more, from each process; fewer with
    /// [`share`](Self::share). What was counted in one outage still counts in the next, as long
    /// as its window lasts, so that a store which comes and goes gives nothing away. Limiters of one
    /// store and name share these counts as they share those of the store.
    ///
    /// What this process cannot count either, because no more keys fit, or since a cost is above the
    /// share of a limit, is answered as [`closed`](Self::closed) does.
    #[must_use]
    pub const fn fall_back() -> Self {
        Self::then(FailureAction::FallBack)
    }

    /// Everything is admitted, and nobody counts: for limits that protect less than an outage
    /// would cost.
    #[must_use]
    pub const fn open() -> Self {
        Self::then(FailureAction::Open)
    }

    /// Nothing is admitted: over HTTP 503 with `Retry-After: 1`, else the [`Error`]. For limits whose
    /// breach costs more than an outage.
    #[must_use]
    pub const fn closed() -> Self {
        Self::then(FailureAction::Closed)
    }

    const fn then(then: FailureAction) -> Self {
        let share = NonZeroU32::MIN;
        Self { then, share }
    }

    /// While falling back, 1/n of each limit, for a service of n replicas: together they admit about
    /// what one store would. Rounded down, but at least one unit. Nothing to the other policies.
    #[must_use]
    pub const fn share(mut self, replicas: NonZeroU32) -> Self {
        self.share = replicas;
        self
    }

    fn share_each(self, quotas: &Quotas) -> Quotas {
        let share = |quota: &Quota| match quota.limit() {
            0 => quota.clone(),
            limit => quota.clone().with_limit((limit / self.share).max(1)),
        };
        quotas.iter().map(share).collect()
    }
}

impl FailureAction {
    /// What the log says of it.
    pub(crate) fn text(self) -> &'static str {
        match self {
            Self::FallBack => "checks are counted in this process alone",
            Self::Open => "checks are admitted and not counted",
            Self::Closed => "checks are not admitted",
        }
    }
}

/// The policy of one handle, and what it needs.
#[derive(Debug)]
pub(crate) struct FailureHandler {
    pub(crate) policy: FailurePolicy,
    /// What this process counts by, where a limiter has its own quotas.
    shares: Quotas,
    pub(crate) store_notices: OutageLog,
    pub(crate) quotas_notices: OutageLog,
}

impl FailureHandler {
    pub(crate) fn new(policy: FailurePolicy, quotas: &Quotas) -> Self {
        Self {
            policy,
            shares: policy.share_each(quotas),
            store_notices: OutageLog::new("the store"),
            quotas_notices: OutageLog::per_key("what tells the quotas of a key"),
        }
    }

    /// What this process counts by in place of these quotas.
    pub(crate) fn shares_of(&self, quotas: &Quotas, own: &Quotas) -> Quotas {
        if quotas == own {
            self.shares.clone()
        } else {
            self.policy.share_each(quotas)
        }
    }

    /// What is to be said of this error.
    pub(crate) fn notices_of(&self, error: &Error) -> &OutageLog {
        if error.kind() == ErrorKind::QuotasUnknown {
            &self.quotas_notices
        } else {
            &self.store_notices
        }
    }
}

/// Whether it is the store that did not decide; else nobody could have.
pub(crate) fn is_of_store(error: &Error) -> bool {
    !matches!(
        error.kind(),
        ErrorKind::CostExceedsLimit | ErrorKind::CostTooLarge | ErrorKind::Unsupported
    )
}
