//! The policy that decides checks while the store fails.

use std::num::NonZeroU32;
use std::sync::Arc;

use crate::quota::{Quota, Quotas};
use crate::telemetry::OutageLog;

/// The policy that decides checks while the store fails: while Redis is unreachable, too slow or full, or
/// replies with an error.
///
/// Set it with [`RateLimitLayer::on_failure`](crate::RateLimitLayer::on_failure) or
/// [`RateLimiter::on_failure`](crate::RateLimiter::on_failure):
///
/// | policy | result of a check | [`source`](crate::DecisionView::source) | over HTTP |
/// |---|---|---|---|
/// | [`fall_back()`](Self::fall_back): the default of layers | decided by counts in the memory of this process | `Fallback` | the usual responses |
/// | [`open()`](Self::open) | admitted, not counted | `None` | calls the service, adds no headers |
/// | [`closed()`](Self::closed) | the [`Error`](crate::Error) | | 503 with `Retry-After: 1` |
/// | no policy: the default of limiters | the [`Error`](crate::Error) | | |
///
/// A layer also applies its policy if [`quotas_for`](crate::RateLimitLayer::quotas_for) returns an error, then
/// with the quotas of the layer. A key that an operator has [blocked](crate::Admin::block) stays blocked
/// under each policy.
///
/// With the feature `serde`, a policy deserializes from `"fall-back"`, `"fall-back:4"` with the number of
/// [replicas](Self::replicas), `"open"` or `"closed"`.
///
/// A policy belongs to one layer or limiter, not to the counts: two layers can share one limit and have
/// different policies. One log line says when a policy starts to apply, and one when it ends.
///
/// # Examples
///
/// ```
/// # #[cfg(feature = "redis")]
/// # {
/// use tollgate::{FailurePolicy, Quota, RateLimitLayer, RateLimiter, RedisStore};
///
/// let store = RedisStore::open("redis://127.0.0.1:6379")?.prefix("shop");
/// let reads = RateLimitLayer::new(store.clone(), Quota::per_minute(600))
///     .on_failure(FailurePolicy::fall_back().replicas(4));
///
/// // Two layers share one limit. During an outage, reports can be listed but not created.
/// let reports = RateLimiter::new(store, Quota::per_hour(100)).name("reports");
/// let create = RateLimitLayer::from(reports.clone()).on_failure(FailurePolicy::closed());
/// let list = RateLimitLayer::from(reports).on_failure(FailurePolicy::open());
/// # }
/// # Ok::<(), tollgate::ConfigError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FailurePolicy {
    pub(super) action: FailureAction,
    replicas: NonZeroU32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FailureAction {
    FallBack,
    Open,
    Closed,
}

impl FailurePolicy {
    /// Applies the same quotas to counts in the memory of this process.
    ///
    /// These counts start empty, and each process has its own. So during an outage, n processes together
    /// admit up to n times the quotas of a key, in addition to what the store has admitted before. Use
    /// [`replicas`](Self::replicas) to lower this. Limiters with the same store and name share these counts.
    ///
    /// The counts outlive an outage: units of one outage still count in the next one until their window has
    /// passed. So a store that fails again and again does not admit more.
    ///
    /// The counts are of at most 100 000 keys. A check of a key that no longer fits is decided as by [`closed`](Self::closed). So is a check whose cost is
    /// above the share of a limit, but not above the limit.
    #[must_use]
    pub const fn fall_back() -> Self {
        Self::new(FailureAction::FallBack)
    }

    /// Admits all checks without counting them.
    ///
    /// Choose it if a rejected request costs more than one above the limit.
    #[must_use]
    pub const fn open() -> Self {
        Self::new(FailureAction::Open)
    }

    /// Admits no check: a layer answers 503 with `Retry-After: 1`, and a limiter returns the [`Error`](crate::Error).
    ///
    /// Choose it if a request above the limit costs more than a rejected one, as for a login.
    #[must_use]
    pub const fn closed() -> Self {
        Self::new(FailureAction::Closed)
    }

    const fn new(action: FailureAction) -> Self {
        let replicas = NonZeroU32::MIN;
        Self { action, replicas }
    }

    /// Divides each limit by the number of replicas when it [falls back](Self::fall_back), so that all
    /// replicas together admit about the whole limit.
    ///
    /// The result is rounded down, but is at least one unit. The default is 1: each replica applies the
    /// whole limit; 0 counts as 1. The other policies ignore the number.
    #[must_use]
    pub const fn replicas(mut self, replicas: u32) -> Self {
        self.replicas = match NonZeroU32::new(replicas) {
            Some(replicas) => replicas,
            None => NonZeroU32::MIN,
        };
        self
    }

    fn divide(self, quotas: &Quotas) -> Quotas {
        quotas.map(|quota| self.divide_quota(quota))
    }

    fn divide_quota(self, quota: &Quota) -> Quota {
        match quota.limit() {
            0 => quota.clone(),
            limit => quota.clone().with_limit((limit / self.replicas).max(1)),
        }
    }
}

impl FailureAction {
    pub(super) fn text(self) -> &'static str {
        match self {
            Self::FallBack => "checks are counted in this process alone",
            Self::Open => "checks are admitted and not counted",
            Self::Closed => "checks are not admitted",
        }
    }
}

/// The failure policy of one limiter, with the quotas of its fallback and its log.
pub(super) struct FailureHandler {
    pub(super) policy: FailurePolicy,
    /// The limiter's own quotas, divided by the number of replicas.
    portion: Quotas,
    pub(super) store_outages: Arc<OutageLog>,
    pub(super) lookup_outages: Arc<OutageLog>,
}

impl FailureHandler {
    pub(super) fn new(policy: FailurePolicy, quotas: &Quotas) -> Self {
        Self {
            policy,
            portion: policy.divide(quotas),
            store_outages: Arc::new(OutageLog::new("the store")),
            lookup_outages: Arc::new(OutageLog::per_key("the lookup of the quotas of a key")),
        }
    }

    /// Divides the limits by the number of replicas. `own` are the quotas of the limiter, whose portion is known.
    pub(super) fn divide(&self, quotas: &Quotas, own: &Quotas) -> Quotas {
        if quotas == own {
            self.portion.clone()
        } else {
            self.policy.divide(quotas)
        }
    }
}
