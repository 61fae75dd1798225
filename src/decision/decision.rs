//! The decision on a check, and its readable view.

use std::cell::RefCell;
use std::fmt;
use std::sync::LazyLock;
use std::thread::LocalKey;
use std::time::Duration;

use arrayvec::ArrayVec;
use smallvec::SmallVec;

use super::answer::{Answer, QuotaAnswer, Source, StoreId};
use super::pool::{Pooled, Reuse, Spares};
use crate::key::{Fingerprint, Key};
use crate::quota::Quota;

/// The result of a check: admitted and charged, or refused and not charged.
///
/// A [`RateLimiter`](crate::RateLimiter) returns one. It says whether to go on, how many units are left, and
/// how long to wait. Pass it to [`RateLimiter::refund`](crate::RateLimiter::refund) or
/// [`RateLimiter::settle`](crate::RateLimiter::settle) to return units, or to charge the actual cost.
///
/// A decision holds the units that it charged, so it is not `Clone`: no two values can refund the same units.
/// To pass on the numbers, clone its [view](Self::view), which has the same methods.
///
/// With several quotas, the numbers are those of one of them: see [`DecisionView`].
///
/// # Examples
///
/// ```
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
/// use tollgate::{MemoryStore, Quota, RateLimiter};
///
/// let limiter = RateLimiter::new(MemoryStore::new(), Quota::per_minute(3));
/// let decision = limiter.check_n("job:1", 2).await?;
/// assert!(decision.is_allowed());
/// assert_eq!((decision.used(), decision.remaining()), (2, 1));
///
/// let decision = limiter.check_n("job:1", 2).await?;
/// assert!(!decision.is_allowed());
/// assert!(decision.retry_after().is_some());
/// assert_eq!(decision.remaining(), 1);
/// # Ok::<(), tollgate::Error>(())
/// # }).unwrap();
/// ```
#[derive(Debug)]
#[must_use = "a decision says whether to go on"]
pub struct Decision {
    view: DecisionView,
    /// The charged units that have not been refunded.
    held: u32,
}

impl Decision {
    /// Creates the decision of a finished view, which holds the units that were charged.
    #[inline]
    pub(super) fn holding(view: DecisionView) -> Self {
        let held = if view.is_charged() { view.cost() } else { 0 };
        Self { view, held }
    }

    /// Returns the units that this decision charged and that have not been refunded. 0 for a refused check.
    #[must_use]
    pub fn held(&self) -> u32 {
        self.held
    }

    /// Returns whether the check was admitted.
    ///
    /// An admitted check was charged, unless its cost is 0 or its [source](Self::source) is
    /// [`Source::None`].
    #[must_use]
    pub fn is_allowed(&self) -> bool {
        self.view.is_allowed()
    }

    /// Returns the cost of the check, in units.
    #[must_use]
    pub fn cost(&self) -> u32 {
        self.view.cost()
    }

    /// Returns the limit of the reported quota.
    #[must_use]
    pub fn limit(&self) -> u32 {
        self.view.limit()
    }

    /// Returns the units that count against the reported quota now, with those of this check if it was
    /// admitted.
    ///
    /// They exceed the limit only if units were charged under a higher limit, for example before the limit
    /// was lowered.
    #[must_use]
    pub fn used(&self) -> u32 {
        self.view.used()
    }

    /// Returns the units that would be admitted now. With several quotas, this is the least of them.
    #[must_use]
    pub fn remaining(&self) -> u32 {
        self.view.remaining()
    }

    /// Returns the time until the reported quota has more units left than now.
    ///
    /// Zero if no unit counts against the quota, or if its limit is 0.
    #[must_use]
    pub fn reset_after(&self) -> Duration {
        self.view.reset_after()
    }

    /// Returns the shortest wait after which a refused check **of this cost** is admitted, if no other check
    /// is charged to the key meanwhile. Exact to the microsecond.
    ///
    /// `None` if the check was admitted, and if its cost is above a limit, so that no wait helps.
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        self.view.retry_after()
    }

    /// Returns the source of the decision: the store, the fallback, or a cache of this process.
    #[must_use]
    pub fn source(&self) -> Source {
        self.view.source()
    }

    /// Returns the decision of the next outer layer, if layers are nested.
    #[must_use]
    pub fn outer(&self) -> Option<&DecisionView> {
        self.view.outer()
    }

    /// Returns the decision of each quota, in the order in which the quotas were listed.
    #[must_use]
    pub fn quotas(&self) -> impl ExactSizeIterator<Item = QuotaDecision<'_>> {
        self.view.quotas()
    }

    /// Takes up to `units` of the held units, for a refund. No later refund can take them.
    pub(crate) fn take(&mut self, units: u32) -> u32 {
        let taken = units.min(self.held);
        self.held -= taken;
        taken
    }

    /// Returns the readable view of this decision, which can be cloned and passed on.
    #[must_use]
    pub fn view(&self) -> &DecisionView {
        &self.view
    }

    pub(crate) fn into_view(self) -> DecisionView {
        self.view
    }

    /// Sets the decision of the next outer layer, which admitted the same request.
    pub(crate) fn set_outer(&mut self, outer: DecisionView) {
        self.view.set_outer(outer);
    }
}

/// The readable part of a [`Decision`], which can be cloned and passed on.
///
/// A [layer](crate::RateLimitLayer) inserts the view of an admitted request into the extensions of the
/// request, where the handler finds it.
///
/// # The reported quota
///
/// With several quotas, [`limit`](Self::limit), [`used`](Self::used), [`reset_after`](Self::reset_after) and
/// [`retry_after`](Self::retry_after) are those of the *reported* quota: the refusing quota with the longest
/// wait. If every quota admits the check, it is the quota with the fewest units left; among equals, the one
/// with the longer reset, then the first. [`quotas`](Self::quotas) returns the numbers of each quota.
///
/// Without quotas there is no limit: `limit` and [`remaining`](Self::remaining) are `u32::MAX`.
///
/// # Examples
///
/// A handler that returns fewer results to a client that is close to its limit:
///
/// ```
/// use tollgate::DecisionView;
///
/// fn page_size<B>(request: &http::Request<B>) -> usize {
///     match request.extensions().get::<DecisionView>() {
///         Some(decision) if decision.remaining() < 10 => 20,
///         _ => 100,
///     }
/// }
/// # assert_eq!(page_size(&http::Request::new(())), 100);
/// ```
#[derive(Clone)]
pub struct DecisionView(Pooled<DecisionData>);

/// The data of a decision.
#[derive(Clone, Debug, Default)]
pub(super) struct DecisionData {
    /// Copies of the limiter's quotas: all threads would contend for the reference count of a shared list.
    pub(super) quotas: SmallVec<[Quota; 2]>,
    pub(super) answer: Answer,
    pub(super) cost: u32,
    pub(super) allowed: bool,
    /// The index of the reported quota.
    pub(super) reported: usize,
    pub(super) charged_key: Option<ChargedKey>,
    /// The decision of the next outer layer.
    outer: Option<DecisionView>,
}

thread_local! {
    static SPARES: Spares<DecisionData> = const { RefCell::new(ArrayVec::new_const()) };
}

impl Reuse for DecisionData {
    #[inline]
    fn spares() -> &'static LocalKey<Spares<Self>> {
        &SPARES
    }

    fn empty() -> &'static Self {
        static EMPTY: LazyLock<DecisionData> = LazyLock::new(DecisionData::default);
        &EMPTY
    }

    /// Drops the outer decision, which a pooled value would keep alive.
    #[inline]
    fn release(&mut self) {
        self.outer = None;
    }
}

/// The key that a decision charged, and the limiter that charged it.
#[derive(Clone, Debug)]
pub(crate) struct ChargedKey {
    pub(crate) limiter: LimiterId,
    pub(crate) key: Key,
}

/// Identifies a limiter by its name and its store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LimiterId {
    /// A fingerprint, because all threads would contend for the reference count of the name.
    pub(crate) name: Fingerprint,
    pub(crate) store: StoreId,
}

impl DecisionView {
    #[inline]
    pub(super) fn new(data: Pooled<DecisionData>) -> Self {
        Self(data)
    }

    /// Returns the view of a request that was not checked, so that no quota limits it.
    pub(crate) fn unlimited() -> Self {
        let mut data = Pooled::<DecisionData>::take();
        *data.make_mut() = DecisionData {
            allowed: true,
            ..DecisionData::default()
        };
        Self(data)
    }

    /// Returns the reported quota, if there is any quota.
    #[inline]
    pub(crate) fn reported(&self) -> Option<QuotaDecision<'_>> {
        let data: &DecisionData = &self.0;
        let quota = data.quotas.get(data.reported)?;
        let answer = data.answer.quotas().get(data.reported)?;
        Some(QuotaDecision { quota, answer })
    }

    /// Returns whether the check was admitted.
    ///
    /// An admitted check was charged, unless its cost is 0 or its [source](Self::source) is
    /// [`Source::None`].
    #[must_use]
    pub fn is_allowed(&self) -> bool {
        self.0.allowed
    }

    /// Returns the cost of the check, in units.
    #[must_use]
    pub fn cost(&self) -> u32 {
        self.0.cost
    }

    /// Returns the limit of the reported quota.
    #[must_use]
    pub fn limit(&self) -> u32 {
        self.reported().map_or(u32::MAX, |quota| quota.limit())
    }

    /// Returns the units that count against the reported quota now, with those of this check if it was
    /// admitted.
    ///
    /// They exceed the limit only if units were charged under a higher limit, for example before the limit
    /// was lowered.
    #[must_use]
    pub fn used(&self) -> u32 {
        self.reported().map_or(0, |quota| quota.used())
    }

    /// Returns the units that would be admitted now. With several quotas, this is the least of them.
    #[must_use]
    pub fn remaining(&self) -> u32 {
        let remaining = self.quotas().map(|quota| quota.remaining()).min();
        remaining.unwrap_or(u32::MAX)
    }

    /// Returns the time until the reported quota has more units left than now.
    ///
    /// Zero if no unit counts against the quota, or if its limit is 0.
    #[must_use]
    pub fn reset_after(&self) -> Duration {
        self.reported()
            .map_or(Duration::ZERO, |quota| quota.reset_after())
    }

    /// Returns the shortest wait after which a refused check **of this cost** is admitted, if no other check
    /// is charged to the key meanwhile. Exact to the microsecond.
    ///
    /// `None` if the check was admitted, and if its cost is above a limit, so that no wait helps.
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        self.reported().and_then(|quota| quota.retry_after())
    }

    /// Returns the source of the decision: the store, the fallback, or a cache of this process.
    #[must_use]
    pub fn source(&self) -> Source {
        self.0.answer.source()
    }

    /// Returns the decision of the next outer layer, if layers are nested.
    ///
    /// A handler finds the view of the innermost layer in its request.
    #[must_use]
    pub fn outer(&self) -> Option<&Self> {
        self.0.outer.as_ref()
    }

    /// Sets the decision of the next outer layer.
    pub(crate) fn set_outer(&mut self, outer: Self) {
        self.0.make_mut().outer = Some(outer);
    }

    pub(crate) fn answer(&self) -> &Answer {
        &self.0.answer
    }

    /// Returns whether units were charged, even if they have been refunded since.
    pub(crate) fn is_charged(&self) -> bool {
        self.is_allowed() && self.cost() > 0 && self.source() != Source::None
    }

    /// Returns whether both decisions charged the same stored count.
    pub(crate) fn charges_same_count(&self, other: &Self) -> bool {
        let (Some(one), Some(two)) = (self.charged_key(), other.charged_key()) else {
            return false;
        };
        let is_shared =
            |quota: &Quota| (other.quota_list().iter()).any(|other| quota.counts_as(other));
        self.is_charged()
            && other.is_charged()
            && (one.limiter, &one.key) == (two.limiter, &two.key)
            && self.quota_list().iter().any(is_shared)
    }

    /// Returns the limiter and the key of the check.
    pub(crate) fn charged_key(&self) -> Option<&ChargedKey> {
        self.0.charged_key.as_ref()
    }

    /// Returns the quotas of the check.
    pub(crate) fn quota_list(&self) -> &[Quota] {
        &self.0.quotas
    }

    /// Returns the decision of each quota, in the order in which the quotas were listed.
    #[must_use]
    pub fn quotas(&self) -> impl ExactSizeIterator<Item = QuotaDecision<'_>> {
        let data: &DecisionData = &self.0;
        data.quotas
            .iter()
            .zip(data.answer.quotas())
            .map(|(quota, answer)| QuotaDecision { quota, answer })
    }
}

impl fmt::Debug for DecisionView {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let DecisionData {
            quotas,
            answer,
            cost,
            allowed,
            reported,
            charged_key: _,
            outer: _,
        } = &*self.0;
        f.debug_struct("DecisionView")
            .field("quotas", quotas)
            .field("answer", answer)
            .field("cost", cost)
            .field("allowed", allowed)
            .field("reported", reported)
            .finish()
    }
}

/// The part of a [`Decision`] that concerns one quota.
///
/// [`Decision::quotas`] and [`DecisionView::quotas`] return one for each quota of the check.
///
/// # Examples
///
/// ```
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
/// use tollgate::{MemoryStore, Quota, RateLimiter};
///
/// let quotas = [Quota::per_second(2).named("burst"), Quota::per_day(1_000).named("daily")];
/// let limiter = RateLimiter::new(MemoryStore::new(), quotas);
/// let decision = limiter.check("ada").await?;
///
/// let left = decision.quotas().map(|quota| (quota.quota().name(), quota.remaining()));
/// assert!(left.eq([(Some("burst"), 1), (Some("daily"), 999)]));
/// # Ok::<(), tollgate::Error>(())
/// # }).unwrap();
/// ```
#[derive(Clone, Copy, Debug)]
pub struct QuotaDecision<'a> {
    pub(super) quota: &'a Quota,
    pub(super) answer: &'a QuotaAnswer,
}

impl<'a> QuotaDecision<'a> {
    /// Returns the quota.
    #[must_use]
    pub fn quota(&self) -> &'a Quota {
        self.quota
    }

    /// Returns whether this quota admits the check. A check is charged only if all quotas admit it.
    #[must_use]
    pub fn is_allowed(&self) -> bool {
        self.answer.is_admitted()
    }

    /// Returns the limit of this quota.
    #[must_use]
    pub fn limit(&self) -> u32 {
        self.quota.limit()
    }

    /// Returns the units that count against this quota now: see [`DecisionView::used`].
    #[must_use]
    pub fn used(&self) -> u32 {
        self.answer.used()
    }

    /// Returns the units that this quota would admit now.
    #[must_use]
    pub fn remaining(&self) -> u32 {
        self.limit().saturating_sub(self.used())
    }

    /// Returns the time until this quota has more units left: see [`DecisionView::reset_after`].
    #[must_use]
    pub fn reset_after(&self) -> Duration {
        self.answer.reset_after()
    }

    /// Returns the wait until this quota admits the check: see [`DecisionView::retry_after`].
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        self.answer.retry_after()
    }
}
