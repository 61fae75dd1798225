//! The decision on a check, and its readable view.

use std::borrow::Cow;
use std::cmp::Reverse;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;
use std::{fmt, mem};

use smallvec::SmallVec;

use super::limiter::RateLimiter;
use super::line::Want;
use super::record::OwnedRecord;
use crate::decision::{
    Answer, LevelDecision, QuotaDecision, QuotaIndex, Source, least_remaining, reported_index,
};
#[cfg(test)]
use crate::quota::Quotas;
use crate::telemetry::OutcomeLabel;

/// The result of a check: admitted and charged, or refused and not charged.
///
/// A [`RateLimiter`](crate::RateLimiter) returns one. It says whether to go on, how many units are left, and
/// how long to wait. [`refund`](Self::refund) returns units, and [`settle`](Self::settle) charges the actual cost.
///
/// A decision holds the units that it charged, so it is not `Clone`: no two values can refund the same units.
/// It dereferences to its [view](Self::view), which has the numbers. Clone the view to pass them on.
///
/// With several quotas, the numbers belong to one of them: see [`DecisionView`]. A decision on several keys
/// has one [level](DecisionView::levels) for each of them. Each level is settled by the limiter that has charged it, so a
/// decision keeps its limiters and their store.
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
    /// The charge of each level. Empty until the first refund or settlement.
    charges: Vec<LevelCharge>,
}

/// The state of a level's charge.
#[derive(Clone, Copy, Debug)]
enum LevelCharge {
    /// Refunds took so many of its units.
    Held { refunded: u32 },
    /// It was settled, or another decision holds it.
    Settled,
}

/// A level to settle, whose units were taken from the decision.
#[derive(Clone, Copy)]
pub(crate) struct TakenLevel {
    /// The index of the level in the decision.
    pub(crate) index: usize,
    /// The units that it held.
    pub(crate) held: u32,
    /// The actual cost of these units.
    pub(crate) used: u32,
    /// The units that it still holds, for later refunds.
    pub(crate) kept: u32,
}

impl Decision {
    pub(super) fn set_alternative(&mut self, index: u8) {
        self.view.alternative = index;
    }

    /// Decides by the answers in these records, all of which admit the check if it is allowed. Holds the units that were charged.
    /// A level without an answer was not asked.
    #[inline]
    pub(crate) fn from_records(records: Records, is_allowed: bool) -> Self {
        Self {
            view: DecisionView::from_records(records, is_allowed),
            charges: Vec::new(),
        }
    }

    pub(crate) fn without_charge(view: DecisionView) -> Self {
        let charges = vec![LevelCharge::Settled; view.levels().len()];
        Self { view, charges }
    }

    /// Returns the units that the first level charged and that have not been refunded. 0 for a refused check.
    ///
    /// A decision on several keys has [several levels](DecisionView::levels), and each holds its own units.
    #[must_use]
    pub fn held(&self) -> u32 {
        self.held_at(0)
    }

    /// 0 if there is no such level.
    pub(crate) fn held_at(&self, level: usize) -> u32 {
        let refunded = match self.charges.get(level) {
            None => 0,
            Some(LevelCharge::Held { refunded }) => *refunded,
            Some(LevelCharge::Settled) => return 0,
        };
        self.view
            .level(level)
            .map_or(0, |level| level.charged_units())
            .saturating_sub(refunded)
    }

    /// Takes up to `units` of the units that a level holds, for a refund. No later one can take them.
    pub(super) fn take(&mut self, index: usize, units: u32) -> TakenLevel {
        let units = units.min(self.held_at(index));
        if let Some(LevelCharge::Held { refunded }) = self.charge_mut(index) {
            *refunded += units;
        }
        TakenLevel {
            index,
            held: units,
            used: 0,
            kept: self.held_at(index),
        }
    }

    /// Takes all units that a level holds, for its settlement to `used`. `None` if it was settled before.
    pub(crate) fn take_all(&mut self, index: usize, used: u32) -> Option<TakenLevel> {
        let held = self.held_at(index);
        match mem::replace(self.charge_mut(index)?, LevelCharge::Settled) {
            LevelCharge::Settled => None,
            LevelCharge::Held { .. } => Some(TakenLevel {
                index,
                held,
                used,
                kept: 0,
            }),
        }
    }

    fn charge_mut(&mut self, level: usize) -> Option<&mut LevelCharge> {
        if self.charges.is_empty() {
            let levels = self.levels().len();
            self.charges
                .resize(levels, LevelCharge::Held { refunded: 0 });
        }
        self.charges.get_mut(level)
    }

    /// Returns the readable view of this decision, which can be cloned and passed on.
    #[must_use]
    pub fn view(&self) -> &DecisionView {
        &self.view
    }

    pub(crate) fn into_view(self) -> DecisionView {
        self.view
    }

    pub(super) fn into_records(self) -> Records {
        self.view.records
    }

    pub(crate) fn set_outer(&mut self, outer: DecisionView) {
        self.view.set_outer(outer);
    }
}

impl DecisionView {
    #[inline]
    pub(crate) fn limiters(&self) -> impl Iterator<Item = (&RateLimiter, LevelDecision<'_>)> {
        self.records
            .iter()
            .map(|owned| (&owned.limiter, owned.read(self.allowed)))
    }

    pub(super) fn records(&self) -> &Records {
        &self.records
    }

    pub(super) fn wants(&self) -> impl Iterator<Item = Want> {
        self.records.iter().map(|owned| Want::new(owned))
    }

    #[inline]
    pub(super) fn record(&self) {
        if self.allowed {
            self.record_admission();
        } else {
            self.record_refusal();
        }
    }

    #[inline]
    pub(crate) fn record_admission(&self) {
        for (limiter, level) in self.limiters() {
            limiter.0.telemetry.record_admission(level);
        }
    }

    #[cold]
    fn record_refusal(&self) {
        if let Some((limiter, level)) = self.limiters().nth(self.reported_index()) {
            let quota = self.reported();
            let telemetry = &limiter.0.telemetry;
            telemetry.record_refusal(OutcomeLabel::Refused, Some(level), quota);
        }
        self.count_refusals();
    }

    pub(crate) fn count_refusals(&self) {
        for (limiter, level) in self.limiters() {
            if let Some(blocks) = &limiter.0.automatic_blocks {
                blocks.count_refusal(level);
            }
        }
    }

    pub(crate) fn is_paused_meanwhile(&self) -> bool {
        self.limiters()
            .any(|(limiter, level)| limiter.is_paused_meanwhile(level))
    }
}

/// A decision has the numbers of its view.
impl Deref for Decision {
    type Target = DecisionView;

    #[inline]
    fn deref(&self) -> &DecisionView {
        &self.view
    }
}

/// The readable part of a [`Decision`], which can be cloned and passed on.
///
/// A [layer](crate::RateLimitLayer) inserts the view of an admitted request into the extensions of the
/// request, where the handler finds it.
///
/// A view keeps the limiters of its levels, and so their store: the counts in memory, or the connections to Redis. Drop it, or
/// copy the numbers, where many are collected.
///
/// # The reported quota
///
/// With several quotas, [`limit`](Self::limit), [`used`](Self::used), [`reset_after`](Self::reset_after) and
/// [`retry_after`](Self::retry_after) belong to the *reported* quota: the refusing quota with the longest
/// wait. If every quota admits the check, it is the quota with the fewest units left; among equals, the one
/// with the longer reset, then the first. [`quotas`](Self::quotas) returns the numbers of each quota. A
/// [soft](crate::Quota::soft) quota is reported only if all quotas are soft.
///
/// With several [levels](Self::levels), the same rule picks the reported quota among all levels.
/// [`cost`](Self::cost) and [`source`](Self::source) then belong to its level. A level that was admitted
/// without being counted, because of [`FailurePolicy::open`](crate::FailurePolicy::open), is reported only if
/// no other level has quotas.
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
pub struct DecisionView {
    /// The levels, in the order of the check.
    records: Records,
    allowed: bool,
    /// The index of the alternative that was charged. 0 for a check without alternatives.
    // In a byte beside `allowed`: a decision is moved several times.
    alternative: u8,
    reported: QuotaIndex,
    /// The decision of the next outer layer.
    outer: Option<Arc<Self>>,
}

/// The records of the levels of a check, mostly one.
pub(crate) type Records = SmallVec<[Arc<OwnedRecord>; 1]>;

impl DecisionView {
    #[inline]
    fn from_records(records: Records, allowed: bool) -> Self {
        // Most checks have one level, and most limiters one quota.
        let reported = match &records[..] {
            [level] if level.record.answer.quotas().len() == 1 => QuotaIndex::default(),
            records => reported_index(records.iter().map(|level| level.read(allowed))),
        };
        Self {
            records,
            allowed,
            alternative: 0,
            reported,
            outer: None,
        }
    }

    pub(crate) fn unlimited() -> Self {
        Self::from_records(Records::default(), true)
    }

    pub(crate) fn joined(views: Vec<Self>) -> Self {
        let allowed = views.iter().all(Self::is_allowed);
        let records = views.into_iter().flat_map(|view| view.records).collect();
        Self::from_records(records, allowed)
    }

    #[inline]
    pub(crate) fn reported(&self) -> Option<QuotaDecision<'_>> {
        let level = self.level(self.reported.level)?;
        level.quota_at(self.reported.quota)
    }

    /// Returns the quota whose numbers the response to an admitted request tells: the rate with the fewest units left, or slots
    /// if there is no rate. After a refusal, it is the reported quota.
    #[inline]
    pub(crate) fn header_quota(&self) -> Option<QuotaDecision<'_>> {
        let reported = self.reported()?;
        if !self.allowed || !reported.quota().is_in_flight() {
            return Some(reported);
        }
        let tightest_rate = self
            .quotas()
            .filter(QuotaDecision::is_charged_rate)
            .min_by_key(|rate| (rate.remaining(), Reverse(rate.reset_after())));
        tightest_rate.or(Some(reported))
    }

    /// Returns the part that responses may tell: the view without its [hidden](LevelDecision::is_hidden) levels. It is an
    /// admission if only hidden levels refuse.
    #[inline]
    pub(crate) fn visible(&self) -> Cow<'_, Self> {
        if !self.records.iter().any(|level| level.record.is_hidden) {
            return Cow::Borrowed(self);
        }
        let records: Records = self
            .records
            .iter()
            .filter(|level| !level.record.is_hidden)
            .cloned()
            .collect();
        let allowed = self.allowed
            || records
                .iter()
                .map(|level| &level.record.answer)
                .all(Answer::is_admitted);
        Cow::Owned(Self::from_records(records, allowed))
    }

    /// Returns whether the check was admitted.
    ///
    /// An admitted check was charged, unless its cost is 0 or its [source](Self::source) is
    /// [`Source::None`].
    #[must_use]
    #[inline]
    pub fn is_allowed(&self) -> bool {
        self.allowed
    }

    /// Returns the cost of the check, in units. With several [levels](Self::levels), it is the cost of the level
    /// with the reported quota.
    #[must_use]
    pub fn cost(&self) -> u32 {
        self.reported_level().map_or(0, |level| level.cost())
    }

    /// Returns the limit of the reported quota.
    #[must_use]
    pub fn limit(&self) -> u32 {
        self.reported().map_or(u32::MAX, |quota| quota.limit())
    }

    /// Returns the units that count against the reported quota now, including this check's if it was
    /// admitted.
    ///
    /// They exceed the limit only if units were charged under a higher limit, for example before the limit
    /// was lowered.
    #[must_use]
    pub fn used(&self) -> u32 {
        self.reported().map_or(0, |quota| quota.used())
    }

    /// Returns the units that would be admitted now. With several quotas, this is the least of them, without
    /// [soft](crate::Quota::soft) ones.
    #[must_use]
    #[inline]
    pub fn remaining(&self) -> u32 {
        least_remaining(self.levels().flat_map(|level| level.quotas()))
    }

    /// Returns whether a [soft](crate::Quota::soft) quota had no room for the check, so that it would have refused it. The check
    /// was not charged to this quota.
    ///
    /// It says nothing about [`is_allowed`](Self::is_allowed), which depends on the other quotas.
    #[must_use]
    pub fn is_exceeded(&self) -> bool {
        self.quotas().any(|quota| quota.is_exceeded())
    }

    /// Returns whether the used units of a quota have reached the part of its limit that
    /// [`warn_at`](crate::Quota::warn_at) sets.
    #[must_use]
    pub fn is_warned(&self) -> bool {
        self.quotas().any(|quota| quota.is_warned())
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
    /// is charged to the key meanwhile. Exact to the microsecond, unless it is
    /// [estimated](Self::is_wait_estimated).
    ///
    /// `None` if the check was admitted, and if no wait helps: its cost is above a limit, or a [total](crate::Quota::total)
    /// is used up.
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        self.reported().and_then(|quota| quota.retry_after())
    }

    /// Returns whether [`retry_after`](Self::retry_after) is an estimate, because a quota
    /// [in flight](crate::Quota::in_flight) has refused: the time at which a slot returns is unknown.
    ///
    /// The estimate is the median time for which this process held the last permits of the limiter, from 1 to 60 seconds.
    #[must_use]
    pub fn is_wait_estimated(&self) -> bool {
        let reported = self.reported();
        reported.is_some_and(|quota| quota.is_wait_estimated() && quota.retry_after().is_some())
    }

    /// Returns the index of the alternative that a [`check_first`](crate::RateLimiter::check_first), or a
    /// [pool of keys](crate::OutboundLayer::first_of), has charged. `None` if all alternatives refuse.
    ///
    /// Every other check has one alternative, with the index 0.
    #[must_use]
    pub fn alternative(&self) -> Option<usize> {
        self.allowed.then_some(self.alternative.into())
    }

    /// Returns the source of the decision: the store, the fallback, or a cache of this process. With several
    /// [levels](Self::levels), it is the source of the level with the reported quota.
    #[must_use]
    pub fn source(&self) -> Source {
        self.reported_level()
            .map_or(Source::None, |level| level.source())
    }

    /// Returns the decision of the next outer layer, if layers are nested.
    ///
    /// A handler finds the view of the innermost layer in its request.
    #[must_use]
    pub fn outer(&self) -> Option<&Self> {
        self.outer.as_deref()
    }

    pub(crate) fn set_outer(&mut self, outer: Self) {
        self.outer = Some(Arc::new(outer));
    }

    #[cfg(all(test, feature = "test-util"))]
    pub(crate) fn answer(&self) -> &Answer {
        &self.records.first().unwrap().record.answer
    }

    pub(crate) fn reported_index(&self) -> usize {
        self.reported.level
    }

    #[inline]
    pub(crate) fn reported_level(&self) -> Option<LevelDecision<'_>> {
        self.level(self.reported_index())
    }

    #[inline]
    pub(crate) fn level(&self, index: usize) -> Option<LevelDecision<'_>> {
        Some(self.records.get(index)?.read(self.allowed))
    }

    pub(crate) fn charges_same_count(&self, other: &Self) -> bool {
        self.levels()
            .any(|level| other.levels().any(|other| level.charges_same_count(other)))
    }

    /// Returns a view that reports the quotas of one level: its numbers and its cost belong to that level.
    pub(crate) fn for_level(&self, index: usize) -> Self {
        let in_level = reported_index(self.levels().skip(index).take(1));
        Self {
            reported: QuotaIndex {
                level: index,
                quota: in_level.quota,
            },
            ..self.clone()
        }
    }

    /// Returns the decision of each quota, level by level, in the order in which the quotas were listed.
    ///
    /// The quotas of a level that was [not asked](LevelDecision::is_asked) are left out.
    #[must_use]
    pub fn quotas(&self) -> impl ExactSizeIterator<Item = QuotaDecision<'_>> {
        let quotas: SmallVec<[_; 4]> = self.levels().flat_map(|level| level.quotas()).collect();
        quotas.into_iter()
    }

    /// Returns the part of each level, in the order of the check.
    ///
    /// A check of one key has one level. A check of [several keys](crate::RateLimiter::check_all) has one for
    /// each of them.
    #[must_use]
    #[inline]
    pub fn levels(&self) -> impl ExactSizeIterator<Item = LevelDecision<'_>> + Clone {
        let allowed = self.allowed;
        self.records.iter().map(move |level| level.read(allowed))
    }
}

impl fmt::Debug for DecisionView {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let levels: Vec<_> = self.levels().collect();
        f.debug_struct("DecisionView")
            .field("levels", &levels)
            .field("allowed", &self.allowed)
            .field("reported", &self.reported())
            .finish()
    }
}

#[cfg(test)]
impl Decision {
    pub(crate) fn new(quotas: &Quotas, cost: u32, answer: Answer) -> Self {
        Self::with_one_level("default", quotas, cost, answer)
    }

    pub(crate) fn by(limiter: &str, quotas: &Quotas, answer: Answer) -> Self {
        Self::with_one_level(limiter, quotas, 1, answer)
    }

    fn with_one_level(limiter: &str, quotas: &Quotas, cost: u32, answer: Answer) -> Self {
        let store = crate::MemoryStore::new();
        let limiter = RateLimiter::new(store, quotas.clone()).name(limiter);
        let mut record = crate::decision::Record::new(0, "ada", cost);
        let is_allowed = answer.is_admitted();
        record.answer = answer;
        let level = Arc::new(OwnedRecord { limiter, record });
        Self::from_records(Records::from_buf([level]), is_allowed)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::decision::QuotaAnswer;
    use crate::quota::Quota;

    const SECOND: Duration = Duration::from_secs(1);

    fn decide<const N: usize>(quotas: [(u32, QuotaAnswer); N]) -> Decision {
        let list: Quotas = (1..)
            .zip(&quotas)
            .map(|(n, (limit, _))| Quota::new(*limit, n * SECOND))
            .collect();
        let answers = quotas.into_iter().map(|(_, answer)| answer);
        Decision::new(&list, 1, Answer::new(Source::Memory, answers))
    }

    #[test]
    fn the_refusing_quota_with_the_longest_wait_is_reported() {
        let decision = decide([
            (5, QuotaAnswer::refused(5, Some(SECOND), SECOND)),
            (7, QuotaAnswer::admitted(7, 9 * SECOND)),
            (6, QuotaAnswer::refused(6, Some(3 * SECOND), SECOND)),
        ]);
        assert!(!decision.is_allowed());
        assert_eq!((decision.limit(), decision.used()), (6, 6));
        assert_eq!(decision.retry_after(), Some(3 * SECOND));
    }

    #[test]
    fn never_is_the_longest_wait() {
        let decision = decide([
            (5, QuotaAnswer::refused(5, Some(9 * SECOND), SECOND)),
            (0, QuotaAnswer::refused(0, None, Duration::ZERO)),
        ]);
        assert_eq!((decision.limit(), decision.retry_after()), (0, None));
        assert!(!decision.is_allowed());
    }

    fn reported_quota(quotas: [(u32, QuotaAnswer); 2]) -> usize {
        let decision = decide(quotas);
        let reported = decision.view().reported().unwrap().quota().clone();
        decision
            .quotas()
            .position(|quota| *quota.quota() == reported)
            .unwrap()
    }

    #[test]
    fn if_all_quotas_admit_the_one_with_the_fewest_units_left_is_reported() {
        let admitted = QuotaAnswer::admitted(1, SECOND);
        let with_longer_reset = QuotaAnswer::admitted(1, 2 * SECOND);
        assert_eq!(reported_quota([(9, admitted), (5, admitted)]), 1);
        assert_eq!(reported_quota([(5, admitted), (5, with_longer_reset)]), 1);
        assert_eq!(reported_quota([(5, admitted), (5, admitted)]), 0);
    }

    #[test]
    fn a_soft_quota_is_reported_only_if_all_are_soft() {
        let hard = Quota::per_second(9);
        let soft = [1, 2].map(|n| Quota::new(5, n * SECOND).soft());
        let exceeded = QuotaAnswer::refused(5, Some(7 * SECOND), SECOND).softened(&soft[0]);
        let answers = [exceeded, QuotaAnswer::admitted(4, SECOND)];
        let only_soft = Decision::new(
            &Quotas::from(&soft),
            1,
            Answer::new(Source::Memory, answers),
        );
        assert!(only_soft.is_allowed() && only_soft.is_exceeded());
        assert_eq!((only_soft.limit(), only_soft.remaining()), (5, 0));
        assert_eq!(only_soft.retry_after(), None);

        let [first, second] = soft;
        let quotas = Quotas::from([first, hard, second]);
        let admitted = QuotaAnswer::admitted(2, SECOND);
        let answer = Answer::new(Source::Memory, [answers[0], admitted, answers[1]]);
        let decision = Decision::new(&quotas, 1, answer);
        assert!(decision.is_allowed() && decision.is_exceeded());
        assert_eq!(
            (decision.limit(), decision.used(), decision.remaining()),
            (9, 2, 7)
        );

        let refused = QuotaAnswer::refused(9, Some(3 * SECOND), SECOND);
        let answer = Answer::new(Source::Memory, [answers[0], refused, answers[1]]);
        let decision = Decision::new(&quotas, 1, answer);
        assert!(!decision.is_allowed() && decision.is_exceeded());
        assert_eq!(
            (decision.limit(), decision.retry_after()),
            (9, Some(3 * SECOND))
        );
    }

    #[test]
    fn remaining_is_the_least_and_never_negative() {
        let decision = decide([
            (5, QuotaAnswer::refused(9, Some(SECOND), SECOND)),
            (7, QuotaAnswer::refused(6, Some(2 * SECOND), SECOND)),
        ]);
        assert_eq!((decision.remaining(), decision.used()), (0, 6));
    }

    #[test]
    fn without_quotas_there_is_no_limit() {
        let decision = decide([]);
        assert!(decision.is_allowed());
        assert_eq!(
            (decision.limit(), decision.used(), decision.remaining()),
            (u32::MAX, 0, u32::MAX)
        );
        assert_eq!(
            (decision.retry_after(), decision.reset_after()),
            (None, Duration::ZERO)
        );
    }
}
