//! One level of a check of several keys.

use std::fmt;

use super::limiter::RateLimiter;
use crate::key::Key;
use crate::quota::{IntoQuotas, Quotas};

/// One level of a check of several keys: a limiter, a key and a cost.
///
/// [`RateLimiter::on`] creates it, and [`RateLimiter::check_all`] takes it.
///
/// # Examples
///
/// ```
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
/// use tollgate::{MemoryStore, Quota, RateLimiter};
///
/// let store = MemoryStore::new();
/// let user = RateLimiter::new(store.clone(), Quota::per_minute(60)).name("user");
/// let tenant = RateLimiter::new(store, Quota::per_minute(100)).name("tenant");
///
/// // The plan of this tenant allows more than the limiter's own quota.
/// let gold = Quota::per_minute(10_000);
/// let levels = [user.on("ada"), tenant.on("acme").cost(900).quotas(gold)];
/// assert!(RateLimiter::check_all(levels).await?.is_allowed());
/// # Ok::<(), tollgate::Error>(())
/// # }).unwrap();
/// ```
#[derive(Clone)]
#[must_use = "a level does nothing unless it is checked"]
pub struct LevelCheck<'a> {
    pub(super) limiter: &'a RateLimiter,
    pub(super) key: Key,
    pub(super) cost: u32,
    pub(super) slots: u32,
    /// The quotas in place of the limiter's own.
    pub(super) quotas: Option<Quotas>,
}

impl<'a> LevelCheck<'a> {
    /// Sets the cost at this level, in units. The default is 1.
    pub fn cost(self, cost: u32) -> Self {
        Self { cost, ..self }
    }

    /// Sets how many slots a permit takes of each quota [in flight](crate::Quota::in_flight), whatever the cost. The default
    /// is 1.
    pub fn slots(self, slots: u32) -> Self {
        Self { slots, ..self }
    }

    /// Sets the quotas of the key, in place of the limiter's.
    pub fn quotas(self, quotas: impl IntoQuotas) -> Self {
        let quotas = Some(quotas.into_quotas());
        Self { quotas, ..self }
    }
}

/// Leaves out the key, which may identify a person.
impl fmt::Debug for LevelCheck<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LevelCheck")
            .field("limiter", &self.limiter)
            .field("cost", &self.cost)
            .field("quotas", &self.quotas)
            .finish_non_exhaustive()
    }
}
