//! One level of a check of several keys.

use std::fmt;
use std::marker::PhantomData;

use super::asked_level::{AskedLevel, AskedLevels};
use super::limiter::RateLimiter;
use crate::quota::{IntoQuotas, ShareId};

/// One level of a check of several keys: a limiter, a key and a cost.
///
/// [`RateLimiter::level`] creates it, and [`RateLimiter::check_all`] takes it.
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
/// let levels = [user.level("ada"), tenant.level("acme").cost(900).quotas(gold)];
/// assert!(RateLimiter::check_all(levels).await?.is_allowed());
/// # Ok::<(), tollgate::Error>(())
/// # }).unwrap();
/// ```
#[must_use = "a level does nothing unless it is checked"]
pub struct LevelCheck<'a> {
    level: AskedLevel,
    limiter: PhantomData<&'a RateLimiter>,
}

/// Notes in each level its place in the call.
pub(super) fn levels<'a>(checks: impl IntoIterator<Item = LevelCheck<'a>>) -> AskedLevels {
    checks
        .into_iter()
        .enumerate()
        .map(|(place, LevelCheck { mut level, .. })| {
            level.record_mut().place = place;
            level
        })
        .collect()
}

impl LevelCheck<'_> {
    pub(super) fn new(level: AskedLevel) -> Self {
        let limiter = PhantomData;
        Self { level, limiter }
    }

    /// Sets the cost at this level, in units. The default is 1.
    pub fn cost(mut self, cost: u32) -> Self {
        self.level.record_mut().cost = cost;
        self
    }

    /// Sets how many slots a permit takes of each quota [in flight](crate::Quota::in_flight), at any cost. The default
    /// is 1.
    pub fn slots(mut self, slots: u32) -> Self {
        self.level.record_mut().slots = slots;
        self
    }

    /// Sets the quotas of the key, in place of the limiter's.
    pub fn quotas(mut self, quotas: impl IntoQuotas) -> Self {
        self.level.set_plan(quotas.into_quotas());
        self
    }

    /// Hides this level from clients, as [`Level::hidden`](crate::Level::hidden) does in a layer.
    ///
    /// Use it for limits that a handler checks: neither [`Headers::write`](crate::Headers::write) nor
    /// [`Rejection::response`](crate::Rejection::response) tells of the level.
    ///
    /// # Examples
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
    /// use tollgate::{Headers, Key, MemoryStore, Quota, RateLimiter};
    ///
    /// let store = MemoryStore::new();
    /// let user = RateLimiter::new(store.clone(), Quota::per_minute(60)).name("user");
    /// let service = RateLimiter::new(store, Quota::per_second(5)).name("service");
    ///
    /// let levels = [user.level("ada"), service.level(Key::global()).hidden()];
    /// let decision = RateLimiter::check_all(levels).await?;
    /// assert_eq!(decision.limit(), 5);
    ///
    /// let mut headers = http::HeaderMap::new();
    /// Headers::default().write(decision.view(), &mut headers);
    /// assert_eq!(headers["x-ratelimit-limit"], "60");
    /// # Ok::<(), tollgate::Error>(())
    /// # }).unwrap();
    /// ```
    pub fn hidden(mut self) -> Self {
        self.level.record_mut().is_hidden = true;
        self
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
    /// let decision = RateLimiter::check_all([jobs.level("ada").share("batch")]).await?;
    /// assert_eq!(decision.remaining(), 39);
    /// # Ok::<(), tollgate::Error>(())
    /// # }).unwrap();
    /// ```
    pub fn share(mut self, share: impl AsRef<str>) -> Self {
        self.level.record_mut().share = Some(ShareId::of(share.as_ref()));
        self
    }
}

impl Clone for LevelCheck<'_> {
    fn clone(&self) -> Self {
        Self::new(self.level.asked_anew())
    }
}

/// Leaves out the key, which may identify a person.
impl fmt::Debug for LevelCheck<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LevelCheck")
            .field("limiter", &self.level.limiter())
            .field("cost", &self.level.record().cost)
            .field("quotas", &self.level.record().plan)
            .finish_non_exhaustive()
    }
}
