//! The policy of a limiter while its store fails.

use std::num::NonZeroU32;

use crate::error::{Error, ErrorKind};
use crate::quota::{Quota, Quotas};
use crate::telemetry::OutageLog;

/// The decision of a limiter while its store does not decide: because it is down, too slow or full, or
/// answers an error.
///
/// Each handle of a limiter has its own policy: cheap calls may go on while expensive ones wait, on one
/// count. Layers [fall back](Self::fall_back) by default. A [`RateLimiter`](crate::RateLimiter) without a
/// policy returns the [`Error`], and its caller decides.
///
/// | policy | result of a check | [`source`](crate::DecisionView::source) | over HTTP |
/// |---|---|---|---|
/// | `fall_back()` | decided by the counts of this process | `Fallback` | as usual |
/// | `open()` | admitted, not counted | `None` | goes on, without headers |
/// | `closed()` | the error | | 503, `Retry-After: 1` |
///
/// A layer applies the policy as well if the quotas of a key
/// [cannot be found](crate::RateLimitLayer::quotas_for), then with its own quotas. A log line says when a
/// policy begins and when it ends, once for each handle.
///
/// # Examples
///
/// ```
/// # #[cfg(feature = "redis")]
/// # {
/// use std::num::NonZeroU32;
/// use tollgate::{FailurePolicy, Quota, RateLimitLayer, RateLimiter, RedisStore};
///
/// let store = RedisStore::open("redis://127.0.0.1:6379")?;
/// let replicas = NonZeroU32::new(4).unwrap();
/// let reads = RateLimitLayer::new(store.clone(), Quota::per_minute(600))
///     .on_failure(FailurePolicy::fall_back().share(replicas));
///
/// // One count: while nothing counts, creating reports fails and listing them does not.
/// let reports = RateLimiter::new(store, Quota::per_hour(100)).name("reports");
/// let create = RateLimitLayer::from(reports.clone()).on_failure(FailurePolicy::closed());
/// let list = RateLimitLayer::from(reports).on_failure(FailurePolicy::open());
/// # }
/// # Ok::<(), tollgate::ConfigError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FailurePolicy {
    pub(super) action: FailureAction,
    share: NonZeroU32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FailureAction {
    FallBack,
    Open,
    Closed,
}

impl FailurePolicy {
    /// Applies the same quotas to counts in the memory of this process, for a bounded number of keys.
    ///
    /// These counts know neither those of the store nor those of other processes. Until the store has
    /// recovered, each process admits a key at most its quotas once more, or less with
    /// [`share`](Self::share). Units of one outage still count in the next as long as their window lasts,
    /// so a flapping store gives nothing away. Limiters of one store and name share these counts as they
    /// share those of the store.
    ///
    /// A check that this process cannot count is answered as [`closed`](Self::closed) does: because no
    /// more keys fit, or because the cost is above the share of a limit.
    #[must_use]
    pub const fn fall_back() -> Self {
        Self::new(FailureAction::FallBack)
    }

    /// Admits everything without counting: for limits that protect less than an outage would cost.
    #[must_use]
    pub const fn open() -> Self {
        Self::new(FailureAction::Open)
    }

    /// Admits nothing: over HTTP 503 with `Retry-After: 1`, else the [`Error`]. For limits whose breach
    /// costs more than an outage.
    #[must_use]
    pub const fn closed() -> Self {
        Self::new(FailureAction::Closed)
    }

    const fn new(action: FailureAction) -> Self {
        let share = NonZeroU32::MIN;
        Self { action, share }
    }

    /// Falls back to 1/n of each limit, for a service of n replicas: together they admit about what one
    /// store would.
    ///
    /// A share is rounded down, but at least one unit. It has no effect on the other policies.
    #[must_use]
    pub const fn share(mut self, replicas: NonZeroU32) -> Self {
        self.share = replicas;
        self
    }

    fn shares_of(self, quotas: &Quotas) -> Quotas {
        let share = |quota: &Quota| match quota.limit() {
            0 => quota.clone(),
            limit => quota.clone().with_limit((limit / self.share).max(1)),
        };
        quotas.iter().map(share).collect()
    }
}

impl FailureAction {
    /// The consequence of a failure in the log line.
    pub(super) fn text(self) -> &'static str {
        match self {
            Self::FallBack => "checks are counted in this process alone",
            Self::Open => "checks are admitted and not counted",
            Self::Closed => "checks are not admitted",
        }
    }
}

/// The failure policy of one handle, with its quotas to fall back on and its log.
#[derive(Debug)]
pub(super) struct FailureHandler {
    pub(super) policy: FailurePolicy,
    /// This process's shares of the limiter's own quotas.
    shares: Quotas,
    pub(super) store_outages: OutageLog,
    pub(super) lookup_outages: OutageLog,
}

impl FailureHandler {
    pub(super) fn new(policy: FailurePolicy, quotas: &Quotas) -> Self {
        Self {
            policy,
            shares: policy.shares_of(quotas),
            store_outages: OutageLog::new("the store"),
            lookup_outages: OutageLog::per_key("the lookup of the quotas of a key"),
        }
    }

    /// Returns this process's shares of these quotas. `own` are those of the limiter.
    pub(super) fn shares_of(&self, quotas: &Quotas, own: &Quotas) -> Quotas {
        if quotas == own {
            self.shares.clone()
        } else {
            self.policy.shares_of(quotas)
        }
    }

    /// Returns the log for an error.
    pub(super) fn outages_of(&self, error: &Error) -> &OutageLog {
        if error.kind() == ErrorKind::QuotasUnknown {
            &self.lookup_outages
        } else {
            &self.store_outages
        }
    }
}
