//! One level of a check of several keys.

use std::fmt;

use super::limiter::RateLimiter;
use crate::key::Key;
use crate::quota::{IntoQuotas, Quotas, ShareId};

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
    pub(super) share: Option<ShareId>,
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

    /// Sets the [share](crate::Quota::shares) that the check belongs to. By default, it belongs to none. Quotas that have no
    /// share of this name count it as a check without a share.
    ///
    /// # Examples
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
    /// use tollgate::{MemoryStore, Quota, RateLimiter, Share};
    ///
    /// let quota = Quota::per_minute(100).shares([Share::of("batch").at_most(40)]);
    /// let jobs = RateLimiter::new(MemoryStore::new(), quota).name("jobs");
    ///
    /// let decision = RateLimiter::check_all([jobs.on("ada").share("batch")]).await?;
    /// assert_eq!(decision.remaining(), 39);
    /// # Ok::<(), tollgate::Error>(())
    /// # }).unwrap();
    /// ```
    pub fn share(self, share: impl AsRef<str>) -> Self {
        let share = Some(ShareId::of(share.as_ref()));
        Self { share, ..self }
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
