//! The levels of a decision: one for each key of the check.

use std::cmp::Reverse;
use std::fmt;
use std::time::Duration;

use super::answer::{Answer, QuotaAnswer, Source};
use super::record::{LimiterFacts, Record};
use crate::key::Key;
use crate::quota::Quota;

/// Soft quotas count only if there are no others.
#[inline]
pub(crate) fn least_remaining<'a>(quotas: impl Iterator<Item = QuotaDecision<'a>>) -> u32 {
    quotas
        .map(|quota| (quota.quota.is_soft(), quota.remaining()))
        .min()
        .map_or(u32::MAX, |(_, remaining)| remaining)
}

/// The index of a level, and that of a quota in its list.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct QuotaIndex {
    pub(crate) level: usize,
    pub(crate) quota: usize,
}

/// Finds the reported quota: see [`DecisionView`](crate::DecisionView).
pub(crate) fn reported_index<'a>(levels: impl Iterator<Item = LevelDecision<'a>>) -> QuotaIndex {
    levels
        .enumerate()
        .flat_map(|(level_index, level)| {
            let is_uncounted = !level.is_counted();
            level.quotas().enumerate().map(move |(quota_index, quota)| {
                let index = QuotaIndex {
                    level: level_index,
                    quota: quota_index,
                };
                (index, is_uncounted, quota)
            })
        })
        .min_by_key(|(_, is_uncounted, quota)| {
            (
                Reverse(quota.answer.wait()),
                quota.quota.is_soft(),
                *is_uncounted,
                quota.remaining(),
                Reverse(quota.reset_after()),
            )
        })
        .map(|(index, ..)| index)
        .unwrap_or_default()
}

/// The part of a [`Decision`](crate::Decision) that concerns one of its keys.
///
/// A check of [several keys](crate::RateLimiter::check_all) has one level for each: a limiter, a key, a cost
/// and quotas. [`DecisionView::levels`](crate::DecisionView::levels) returns them in the order of the check.
///
/// # Examples
///
/// ```
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
/// use tollgate::{MemoryStore, Quota, RateLimiter};
///
/// let store = MemoryStore::new();
/// let user = RateLimiter::new(store.clone(), Quota::per_minute(60)).name("user");
/// let tenant = RateLimiter::new(store, Quota::per_minute(1)).name("tenant");
///
/// let first = RateLimiter::check_all([user.level("ada"), tenant.level("acme")]).await?;
/// assert!(first.is_allowed());
///
/// // The tenant refuses. The user is not charged.
/// let second = RateLimiter::check_all([user.level("bob"), tenant.level("acme")]).await?;
/// let refusing: Vec<_> = second.levels().filter(|level| !level.is_allowed()).collect();
/// assert_eq!(refusing.len(), 1);
/// assert_eq!(refusing[0].limiter(), "tenant");
/// # Ok::<(), tollgate::Error>(())
/// # }).unwrap();
/// ```
#[derive(Clone, Copy)]
pub struct LevelDecision<'a> {
    limiter: &'a LimiterFacts,
    record: &'a Record,
    /// Whether all levels admit the check.
    allowed: bool,
}

impl<'a> LevelDecision<'a> {
    /// Reads the record of a level that was decided. The check is `allowed` if all its levels admit it.
    #[inline]
    pub(crate) fn new(limiter: &'a LimiterFacts, record: &'a Record, allowed: bool) -> Self {
        Self {
            limiter,
            record,
            allowed,
        }
    }

    #[inline]
    pub(crate) fn record(&self) -> &'a Record {
        self.record
    }

    /// Returns the name of the limiter.
    #[must_use]
    pub fn limiter(&self) -> &'a str {
        &self.limiter.name
    }

    /// Returns the key, as it is stored.
    #[must_use]
    pub fn key(&self) -> &'a Key {
        &self.record.key
    }

    /// Returns the cost that was checked at this level, in units.
    #[must_use]
    pub fn cost(&self) -> u32 {
        self.record.cost
    }

    /// The index of the level in its layer or call. Levels that are left out have one, too.
    #[inline]
    pub(crate) fn place(&self) -> usize {
        self.record.place
    }

    /// Returns whether this level was asked.
    ///
    /// If not, another level refused first. Then [`quotas`](Self::quotas) is empty, because the waits and the
    /// counts of this level are unknown.
    #[must_use]
    #[inline]
    pub fn is_asked(&self) -> bool {
        self.quota_list().is_empty() || !self.record.answer.quotas().is_empty()
    }

    /// Returns whether the level is [hidden](crate::Level::hidden): no response of a layer tells its name and its numbers.
    ///
    /// A decision has hidden levels, too. Leave them out where you write headers or a body of your own.
    ///
    /// # Examples
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
    /// use tollgate::{Key, MemoryStore, Quota, RateLimiter};
    ///
    /// let store = MemoryStore::new();
    /// let user = RateLimiter::new(store.clone(), Quota::per_minute(60)).name("user");
    /// let service = RateLimiter::new(store, Quota::per_second(20_000)).name("service");
    ///
    /// let levels = [user.level("ada"), service.level(Key::global()).hidden()];
    /// let decision = RateLimiter::check_all(levels).await?;
    /// let visible = decision.levels().filter(|level| !level.is_hidden());
    /// assert!(visible.map(|level| level.limiter()).eq(["user"]));
    /// # Ok::<(), tollgate::Error>(())
    /// # }).unwrap();
    /// ```
    #[must_use]
    pub fn is_hidden(&self) -> bool {
        self.record.is_hidden
    }

    /// Returns whether this level admits its cost. A check is charged only if all levels admit it.
    ///
    /// False for a level that was [not asked](Self::is_asked).
    #[must_use]
    #[inline]
    pub fn is_allowed(&self) -> bool {
        self.is_asked() && self.record.answer.is_admitted()
    }

    /// Returns the source of the answer: the store, the fallback, or a cache of this process.
    /// [`Source::None`] if the level was not asked, not counted, or has no quotas.
    #[must_use]
    pub fn source(&self) -> Source {
        self.record.answer.source()
    }

    /// Returns the units that this level would admit now. `u32::MAX` without quotas, and for a level that was
    /// [not asked](Self::is_asked). [Soft](Quota::soft) quotas count only if the level has no others.
    #[must_use]
    #[inline]
    pub fn remaining(&self) -> u32 {
        least_remaining(self.quotas())
    }

    /// Returns the units that processes hold of the key, with those of this check. They are part of the
    /// [used](QuotaDecision::used) units of each quota, beside those that were charged.
    ///
    /// 0 without a [`reserve_lease`](crate::RateLimiter::reserve_lease), and for a level that was
    /// [not asked](Self::is_asked).
    ///
    /// # Examples
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
    /// use std::time::Duration;
    /// use tollgate::{MemoryStore, Quota, RateLimiter};
    ///
    /// let tokens = RateLimiter::new(MemoryStore::new(), Quota::per_day(10_000))
    ///     .reserve_lease(Duration::from_secs(15));
    /// tokens.check_n("ada", 100).await?;
    /// let permit = RateLimiter::acquire_all([tokens.level("ada").cost(4_000)]).await?;
    ///
    /// let seen = tokens.peek("ada").await?;
    /// let level = seen.levels().next().expect("one level");
    /// assert_eq!((seen.used(), level.reserved()), (4_100, 4_000));
    /// # drop(permit);
    /// # Ok::<(), tollgate::Error>(())
    /// # }).unwrap();
    /// ```
    #[must_use]
    pub fn reserved(&self) -> u32 {
        self.record.reserved(self.limiter)
    }

    /// Returns the decision of each quota of this level, in the order in which the quotas were listed. Empty
    /// for a level that was [not asked](Self::is_asked).
    #[must_use]
    #[inline]
    pub fn quotas(&self) -> impl ExactSizeIterator<Item = QuotaDecision<'a>> + use<'a> {
        let limiter = self.limiter;
        let record = self.record;
        self.quota_list()
            .iter()
            .zip(record.answer.quotas())
            .map(move |(quota, answer)| QuotaDecision {
                limiter,
                quota,
                answer,
                record,
            })
    }

    pub(crate) fn is_held(&self) -> bool {
        self.record.is_held
    }

    pub(crate) fn has_held(&self) -> bool {
        self.record.quotas(&self.limiter.quotas).has_held()
    }

    #[inline]
    pub(crate) fn may_be_marked(&self) -> bool {
        self.is_counted() && self.quota_list().iter().any(Quota::may_mark)
    }

    #[inline]
    pub(crate) fn share(&self) -> Option<&'a str> {
        let share = self.record.share?;
        self.quota_list()
            .iter()
            .find_map(|quota| quota.share_list().name_of(share))
    }

    /// `None` if there is no such quota, or if the level was not asked.
    #[inline]
    pub(crate) fn quota_at(&self, index: usize) -> Option<QuotaDecision<'a>> {
        Some(QuotaDecision {
            limiter: self.limiter,
            quota: self.quota_list().get(index)?,
            answer: self.record.answer.quotas().get(index)?,
            record: self.record,
        })
    }

    /// The limit of the quota that a check of this level alone would report. `u32::MAX` without quotas.
    pub(crate) fn limit(&self) -> u32 {
        let reported = reported_index(std::iter::once(*self));
        self.quota_at(reported.quota)
            .map_or(u32::MAX, |quota| quota.limit())
    }

    #[inline]
    pub(crate) fn facts(&self) -> &'a LimiterFacts {
        self.limiter
    }

    #[inline]
    pub(crate) fn quota_list(&self) -> &'a [Quota] {
        self.record.quotas(&self.limiter.quotas).as_slice()
    }

    /// Returns each charge that the units of this level belong to, with their number: most levels have one.
    pub(crate) fn charges(&self) -> impl Iterator<Item = (&'a Answer, u32)> {
        let grants = &self.record.grants;
        let granted: u32 = grants.iter().map(|grant| grant.units).sum();
        let own = (&self.record.answer, self.cost().saturating_sub(granted));
        let granted = grants.iter().map(|grant| (&grant.answer, grant.units));
        [own].into_iter().chain(granted)
    }

    /// Returns whether units were charged, even if they have been refunded since.
    pub(crate) fn is_charged(&self) -> bool {
        self.charged_units() > 0
    }

    #[inline]
    pub(crate) fn charged_units(&self) -> u32 {
        if self.allowed && self.is_counted() && !self.record.is_held {
            self.cost()
        } else {
            0
        }
    }

    #[inline]
    fn is_counted(&self) -> bool {
        self.source() != Source::None
    }

    pub(crate) fn charges_same_count(&self, other: LevelDecision<'_>) -> bool {
        self.is_charged()
            && other.is_charged()
            && self.limiter.id == other.limiter.id
            && self.record.key == other.record.key
            && self
                .quota_list()
                .iter()
                .any(|quota| other.counts(quota, self.record.lease))
    }

    /// Returns whether a quota of this level has the same count as `quota` with this lease.
    fn counts(&self, quota: &Quota, lease: u64) -> bool {
        self.quota_list()
            .iter()
            .any(|own| quota.is_same_count(lease, own, self.record.lease))
    }
}

/// Leaves out the key, which may identify a person.
impl fmt::Debug for LevelDecision<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LevelDecision")
            .field("limiter", &self.limiter.name)
            .field("quotas", &self.quota_list())
            .field("answer", &self.record.answer)
            .field("cost", &self.cost())
            .finish()
    }
}

/// The part of a [`Decision`](crate::Decision) that concerns one quota.
///
/// [`DecisionView::quotas`](crate::DecisionView::quotas) returns one for each quota of the check.
///
/// # Examples
///
/// ```
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
/// use tollgate::{MemoryStore, Quota, RateLimiter};
///
/// let quotas = [Quota::per_second(2).with_name("burst"), Quota::per_day(1_000).with_name("daily")];
/// let limiter = RateLimiter::new(MemoryStore::new(), quotas);
/// let decision = limiter.check("ada").await?;
///
/// let left = decision.quotas().map(|quota| (quota.quota().name(), quota.remaining()));
/// assert!(left.eq([(Some("burst"), 1), (Some("daily"), 999)]));
/// # Ok::<(), tollgate::Error>(())
/// # }).unwrap();
/// ```
#[derive(Clone, Copy)]
pub struct QuotaDecision<'a> {
    limiter: &'a LimiterFacts,
    quota: &'a Quota,
    answer: &'a QuotaAnswer,
    record: &'a Record,
}

impl<'a> QuotaDecision<'a> {
    /// Returns the quota.
    #[must_use]
    pub fn quota(&self) -> &'a Quota {
        self.quota
    }

    /// Returns the name of the limiter that the quota belongs to.
    #[must_use]
    pub fn limiter(&self) -> &'a str {
        &self.limiter.name
    }

    /// Returns the key that the quota counts, as it is stored.
    #[must_use]
    pub fn key(&self) -> &'a Key {
        &self.record.key
    }

    /// Returns the cost that was checked against this quota, in units.
    #[must_use]
    pub fn cost(&self) -> u32 {
        self.record.cost
    }

    /// Returns the name of the [share](Quota::shares) that the check belongs to. `None` for a check without a share, and if
    /// this quota has no share of that name.
    #[must_use]
    pub fn share(&self) -> Option<&'a str> {
        let share = self.record.share?;
        self.quota.share_list().name_of(share)
    }

    pub(crate) fn ceiling(&self) -> u32 {
        self.quota.ceiling(self.record.share)
    }

    pub(crate) fn bound(&self) -> String {
        self.quota.bound(self.record.share)
    }

    /// Returns whether this quota admits the check. A check is charged only if all quotas admit it. A
    /// [soft](Quota::soft) quota admits every check, unless the key is blocked.
    #[must_use]
    pub fn is_allowed(&self) -> bool {
        self.answer.is_admitted()
    }

    /// Returns whether this is a total without room for a cost that it has room for when it begins.
    pub(crate) fn is_used_up(&self) -> bool {
        self.quota.is_total() && !self.is_allowed() && self.cost() <= self.ceiling()
    }

    pub(crate) fn is_charged_rate(&self) -> bool {
        let is_charged = self.record.answer.source() != Source::None;
        is_charged && !self.quota.is_in_flight() && !self.quota.is_soft()
    }

    /// Returns whether the wait until this quota admits the check is an estimate: until slots, or units that processes hold,
    /// return.
    pub(crate) fn is_wait_estimated(&self) -> bool {
        self.quota.is_in_flight() || {
            let reserved = self.record.reserved(self.limiter);
            self.answer
                .lacks_only_reserved(self.quota, reserved, self.cost())
        }
    }

    #[inline]
    pub(crate) fn is_exceeded(&self) -> bool {
        self.answer.is_exceeded()
    }

    #[inline]
    pub(crate) fn is_warned(&self) -> bool {
        self.quota.warns_at(self.used(), self.record.share)
    }

    /// Returns the limit of this quota.
    #[must_use]
    pub fn limit(&self) -> u32 {
        self.quota.limit()
    }

    /// Returns the units that count against this quota now: see [`DecisionView::used`](crate::DecisionView::used).
    #[must_use]
    pub fn used(&self) -> u32 {
        self.answer.used()
    }

    /// Returns the units that this quota would admit now.
    #[must_use]
    pub fn remaining(&self) -> u32 {
        self.limit().saturating_sub(self.used())
    }

    /// Returns the time until this quota has more units left: see
    /// [`DecisionView::reset_after`](crate::DecisionView::reset_after).
    #[must_use]
    pub fn reset_after(&self) -> Duration {
        self.answer.reset_after()
    }

    /// Returns the wait until this quota admits the check: see
    /// [`DecisionView::retry_after`](crate::DecisionView::retry_after). An estimate for slots
    /// [in flight](Quota::in_flight).
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        self.answer.retry_after()
    }
}

/// Leaves out the key, which may identify a person.
impl fmt::Debug for QuotaDecision<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("QuotaDecision")
            .field("limiter", &self.limiter.name)
            .field("quota", self.quota)
            .field("answer", self.answer)
            .finish()
    }
}
