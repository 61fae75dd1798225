//! The decision on a check, and the view of it that is passed on.

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
/// Not `Clone`: the charged units have one holder. Handlers and responses get its
/// [view](Self::view), which has the same methods and can be cloned.
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
    /// The units that were charged and not returned since.
    held: u32,
}

impl Decision {
    /// Wraps a finished view, and holds the units that it charged.
    #[inline]
    pub(super) fn holding(view: DecisionView) -> Self {
        let held = if view.is_charged() { view.cost() } else { 0 };
        Self { view, held }
    }

    /// Returns the units that this decision charged and that were not refunded since. A refused
    /// decision holds none.
    #[must_use]
    pub fn held(&self) -> u32 {
        self.held
    }

    /// Returns whether the check was admitted, and so charged.
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

    /// Returns the units that count against the reported quota now, including those of this check if
    /// it was admitted. Exceeds the limit only if the limit was lowered.
    #[must_use]
    pub fn used(&self) -> u32 {
        self.view.used()
    }

    /// Returns the units that would be admitted right now: the least over all quotas.
    #[must_use]
    pub fn remaining(&self) -> u32 {
        self.view.remaining()
    }

    /// Returns the time until the reported quota has more units left than now. Zero if nothing is
    /// charged to it, or if its limit is 0.
    #[must_use]
    pub fn reset_after(&self) -> Duration {
        self.view.reset_after()
    }

    /// Returns the shortest wait after which a refused check **of this cost** is admitted if nothing
    /// else happens. Exact to the microsecond.
    ///
    /// `None` for an admitted check, and for a cost above the limit, which is never admitted.
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        self.view.retry_after()
    }

    /// Returns the source of the decision.
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

    /// Takes up to `units` of the held units, for a refund. Nothing else can refund them then.
    pub(crate) fn take(&mut self, units: u32) -> u32 {
        let taken = units.min(self.held);
        self.held -= taken;
        taken
    }

    /// Returns the view of this decision, which can be cloned and passed on.
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

/// The readable part of a [`Decision`], which can be cloned and passed on. Handlers find it in the
/// extensions of their request.
///
/// With several quotas, the numbers are those of the *reported* one: the refusing quota with the
/// longest wait, else the one with the fewest units left, then the longer reset, then the first.
/// [`quotas`](Self::quotas) returns each. Without any quota nothing limits: limit and remaining are
/// `u32::MAX`.
#[derive(Clone)]
pub struct DecisionView(Pooled<DecisionData>);

/// The data of a decision.
#[derive(Clone, Debug, Default)]
pub(super) struct DecisionData {
    /// Copies: all threads share the limiter's quotas, and would share their reference count.
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

    /// Lets go of the outer decision, which a spare would otherwise hold.
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
    /// A fingerprint of the name: all threads would write the reference count of the name itself.
    pub(crate) name: Fingerprint,
    pub(crate) store: StoreId,
}

impl DecisionView {
    #[inline]
    pub(super) fn new(data: Pooled<DecisionData>) -> Self {
        Self(data)
    }

    /// Returns the view of a request without a check: no quota limits it.
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

    /// Returns whether the check was admitted, and so charged.
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

    /// Returns the units that count against the reported quota now, including those of this check if
    /// it was admitted. Exceeds the limit only if the limit was lowered.
    #[must_use]
    pub fn used(&self) -> u32 {
        self.reported().map_or(0, |quota| quota.used())
    }

    /// Returns the units that would be admitted right now: the least over all quotas.
    #[must_use]
    pub fn remaining(&self) -> u32 {
        let remaining = self.quotas().map(|quota| quota.remaining()).min();
        remaining.unwrap_or(u32::MAX)
    }

    /// Returns the time until the reported quota has more units left than now. Zero if nothing is
    /// charged to it, or if its limit is 0.
    #[must_use]
    pub fn reset_after(&self) -> Duration {
        self.reported()
            .map_or(Duration::ZERO, |quota| quota.reset_after())
    }

    /// Returns the shortest wait after which a refused check **of this cost** is admitted if nothing
    /// else happens. Exact to the microsecond.
    ///
    /// `None` for an admitted check, and for a cost above the limit, which is never admitted.
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        self.reported().and_then(|quota| quota.retry_after())
    }

    /// Returns the source of the decision.
    #[must_use]
    pub fn source(&self) -> Source {
        self.0.answer.source()
    }

    /// Returns the decision of the next outer layer, if layers are nested. A handler sees the view of
    /// the innermost layer.
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

    /// Returns whether a store was charged, refunded since or not.
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

    /// Returns the key that the check was to charge, and the limiter.
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

    /// Returns whether this quota admits the check, which is charged only if all quotas do.
    #[must_use]
    pub fn is_allowed(&self) -> bool {
        self.answer.is_admitted()
    }

    /// Returns the limit of this quota.
    #[must_use]
    pub fn limit(&self) -> u32 {
        self.quota.limit()
    }

    /// Returns the used units of this quota, as [`DecisionView::used`].
    #[must_use]
    pub fn used(&self) -> u32 {
        self.answer.used()
    }

    /// Returns the units that this quota would admit right now.
    #[must_use]
    pub fn remaining(&self) -> u32 {
        self.limit().saturating_sub(self.used())
    }

    /// Returns the time until this quota has more units left, as [`DecisionView::reset_after`].
    #[must_use]
    pub fn reset_after(&self) -> Duration {
        self.answer.reset_after()
    }

    /// Returns the wait for this quota, as [`DecisionView::retry_after`].
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        self.answer.retry_after()
    }
}
