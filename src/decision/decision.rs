//! What a check came to.

use std::cmp::Reverse;
use std::fmt;
use std::ops::Deref;
use std::time::Duration;

use smallvec::SmallVec;

use super::answer::Wait;
use super::answer::{Answer, QuotaAnswer, Source};
use super::pool::Pooled;

use crate::key::Fingerprint;
use crate::key::Key;
use crate::quota::{Quota, Quotas};

/// What a check came to: admitted and charged, or refused and not.
///
/// It is what its [view](DecisionView) shows, by `Deref`, and it is not `Clone`: of the units that
/// were charged there is one holder. Handlers and responses get the view.
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
    /// The units that were charged and not given back.
    held: u32,
}

/// Where the units of a decision were charged.
#[derive(Clone, Debug)]
pub(crate) struct ChargedKey {
    pub(crate) by: LimiterId,
    pub(crate) key: Key,
}

/// Which limiter charges: of which name, at which store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LimiterId {
    /// Not the name: a count of its references would be written by all threads.
    pub(crate) limiter: Fingerprint,
    pub(crate) store: StoreId,
}

/// Tells stores apart that live at the same time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StoreId(pub(crate) usize);

impl Decision {
    /// A decision of an answer that is there; of one for another number of quotas, that number.
    #[cfg(test)]
    pub(crate) fn new(quotas: &Quotas, cost: u32, answer: Answer) -> Result<Self, usize> {
        let mut draft = DecisionBuilder::begin();
        let shown = draft.open();
        shown.ask(quotas, cost);
        shown.put(answer);
        shown.decide()?;
        Ok(draft.end())
    }

    /// The units that were charged by this decision and not given back since: of a refused one,
    /// none.
    #[must_use]
    pub fn held(&self) -> u32 {
        self.held
    }

    /// Takes up to `units` of those that are held, to give them back: nobody else will.
    pub(crate) fn take(&mut self, units: u32) -> u32 {
        let taken = units.min(self.held);
        self.held -= taken;
        taken
    }

    /// The view of this decision, to pass on.
    #[must_use]
    pub fn view(&self) -> &DecisionView {
        &self.view
    }

    pub(crate) fn into_view(self) -> DecisionView {
        self.view
    }

    /// Tells of the decision of a layer outside, which admitted the same request before.
    pub(crate) fn nest_in(&mut self, outer: DecisionView) {
        self.view.nest_in(outer);
    }
}

impl Deref for Decision {
    type Target = DecisionView;

    fn deref(&self) -> &DecisionView {
        &self.view
    }
}

/// What a [`Decision`] shows, to be cloned and passed on: handlers find it in the extensions of
/// their request.
///
/// Of several quotas, the numbers are those of the *reported* one: the refusing quota with the
/// longest wait, else the one with the fewest units left, then the longer reset, then the first.
/// [`quotas`](Self::quotas) gives each. Without any quota nothing limits, and the numbers say so:
/// limit and remaining are `u32::MAX`.
#[derive(Clone)]
pub struct DecisionView(Pooled);

/// What is shown, and where the units were charged.
#[derive(Clone, Debug, Default)]
pub(crate) struct DecisionData {
    /// Copies: the limiter's are shared by all threads, and so would be a count of who holds them.
    quotas: SmallVec<[Quota; 2]>,
    answer: Answer,
    cost: u32,
    allowed: bool,
    reported: usize,
    charged_to: Option<ChargedKey>,
    /// Of a layer outside.
    pub(crate) outer: Option<DecisionView>,
}

#[derive(Default)]
/// A decision in the making.
pub(crate) struct DecisionBuilder(Pooled);

impl DecisionBuilder {
    #[inline]
    pub(crate) fn begin() -> Self {
        Self(Pooled::take())
    }

    /// Nobody else holds it yet.
    #[inline]
    pub(crate) fn open(&mut self) -> &mut DecisionData {
        self.0.make_mut()
    }

    /// Which key is charged how much.
    pub(crate) fn asked(&self) -> Option<(Key, u32)> {
        let charged_to = self.0.charged_to.as_ref()?;
        Some((charged_to.key.clone(), self.0.cost))
    }

    /// By what it is judged.
    pub(crate) fn asked_quotas(&self) -> &[Quota] {
        &self.0.quotas
    }

    #[inline]
    pub(crate) fn end(self) -> Decision {
        let mut decision = Decision {
            view: DecisionView(self.0),
            held: 0,
        };
        if decision.is_charged() {
            decision.held = decision.cost();
        }
        decision
    }
}

impl DecisionData {
    /// Writes over a decision before it, all but the answer, which the store has to put into its
    /// place.
    #[inline(always)]
    pub(crate) fn ask(&mut self, quotas: &Quotas, cost: u32) -> &mut Answer {
        // The decision before was most likely of the same limiter.
        if !quotas.are(&self.quotas) {
            self.quotas = quotas.iter().cloned().collect();
        }
        self.cost = cost;
        self.charged_to = None;
        self.answer.begin(0, Source::None);
        &mut self.answer
    }

    /// Does the same for a check that charges a key, which is made where it is kept: to copy it there
    /// takes a tenth of a check.
    #[inline(always)]
    pub(crate) fn ask_of(
        &mut self,
        quotas: &Quotas,
        cost: u32,
        by: LimiterId,
        key: impl Into<Key>,
    ) -> (&Key, &mut Answer) {
        self.ask(quotas, cost);
        let key = key.into();
        let charged_to = self.charged_to.insert(ChargedKey { by, key });
        (&charged_to.key, &mut self.answer)
    }

    pub(crate) fn put(&mut self, answer: Answer) {
        self.answer = answer;
    }

    /// Draws from the answer what the decision is. Of a store that answered for another number of
    /// quotas, that number.
    #[inline]
    pub(crate) fn decide(&mut self) -> Result<(), usize> {
        let answers = self.answer.quotas();
        if answers.len() != self.quotas.len() {
            return Err(answers.len());
        }
        // Most limiters have one quota.
        (self.allowed, self.reported) = match answers {
            [answer] => (answer.is_admitted(), 0),
            answers => {
                let allowed = answers.iter().all(QuotaAnswer::is_admitted);
                (allowed, most_telling(&self.quotas, answers))
            }
        };
        Ok(())
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
            charged_to: _,
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

impl DecisionView {
    /// The quota that is reported, unless there is none.
    #[inline]
    pub(crate) fn reported(&self) -> Option<QuotaDecision<'_>> {
        let shown: &DecisionData = &self.0;
        let quota = shown.quotas.get(shown.reported)?;
        let answer = shown.answer.quotas().get(shown.reported)?;
        Some(QuotaDecision { quota, answer })
    }

    /// Whether the check was admitted, and so charged.
    #[must_use]
    pub fn is_allowed(&self) -> bool {
        self.0.allowed
    }

    /// The units that were asked for.
    #[must_use]
    pub fn cost(&self) -> u32 {
        self.0.cost
    }

    /// The limit of the reported quota.
    #[must_use]
    pub fn limit(&self) -> u32 {
        self.reported().map_or(u32::MAX, |quota| quota.limit())
    }

    /// The units that count against the reported quota now, those of this check included if it was
    /// admitted. More than the limit only where the limit was lowered.
    #[must_use]
    pub fn used(&self) -> u32 {
        self.reported().map_or(0, |quota| quota.used())
    }

    /// The units that would be admitted right now: the least over all quotas.
    #[must_use]
    pub fn remaining(&self) -> u32 {
        let least = self.quotas().map(|quota| quota.remaining()).min();
        least.unwrap_or(u32::MAX)
    }

    /// How long until the reported quota has more units left than now; zero when nothing is charged
    /// to it, or when its limit is 0.
    #[must_use]
    pub fn reset_after(&self) -> Duration {
        self.reported()
            .map_or(Duration::ZERO, |quota| quota.reset_after())
    }

    /// Of a refused check: the shortest wait after which a check **of this cost** is admitted if
    /// nothing else happens. Exact to the microsecond.
    ///
    /// `None` for an admitted check, and for a cost above the limit, which no wait lets pass.
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        self.reported().and_then(|quota| quota.retry_after())
    }

    /// Who decided.
    #[must_use]
    pub fn source(&self) -> Source {
        self.0.answer.source()
    }

    /// What the next layer outside decided, where layers are nested: in a handler, this view is that
    /// of the innermost one.
    #[must_use]
    pub fn outer(&self) -> Option<&Self> {
        self.0.outer.as_ref()
    }

    /// Of what was not decided: no quota limits.
    pub(crate) fn of_nothing() -> Self {
        let mut draft = DecisionBuilder::begin();
        let shown = draft.open();
        shown.ask(&Quotas::from([]), 0);
        (shown.allowed, shown.reported) = (true, 0);
        draft.end().view
    }

    /// Tells of the decision of a layer outside.
    pub(crate) fn nest_in(&mut self, outer: Self) {
        self.0.make_mut().outer = Some(outer);
    }

    pub(crate) fn answer(&self) -> &Answer {
        &self.0.answer
    }

    /// Whether units were charged somewhere, given back or not.
    pub(crate) fn is_charged(&self) -> bool {
        self.is_allowed() && self.cost() > 0 && self.source() != Source::None
    }

    /// Whether both were charged, to one count.
    pub(crate) fn charges_as(&self, other: &Self) -> bool {
        let (Some(one), Some(two)) = (self.where_charged(), other.where_charged()) else {
            return false;
        };
        let is_shared = |quota: &Quota| other.asked_quotas().iter().any(|of| quota.counts_as(of));
        self.is_charged()
            && other.is_charged()
            && (one.by, &one.key) == (two.by, &two.key)
            && self.asked_quotas().iter().any(is_shared)
    }

    pub(crate) fn where_charged(&self) -> Option<&ChargedKey> {
        self.0.charged_to.as_ref()
    }

    /// By what it was judged.
    pub(crate) fn asked_quotas(&self) -> &[Quota] {
        &self.0.quotas
    }

    /// What each quota says, in the order in which the quotas were given.
    #[must_use]
    pub fn quotas(&self) -> impl ExactSizeIterator<Item = QuotaDecision<'_>> {
        let shown: &DecisionData = &self.0;
        shown
            .quotas
            .iter()
            .zip(shown.answer.quotas())
            .map(|(quota, answer)| QuotaDecision { quota, answer })
    }
}

/// Which quota is reported.
fn most_telling(quotas: &[Quota], answers: &[QuotaAnswer]) -> usize {
    let answers = quotas.iter().zip(answers);
    answers
        .map(|(quota, answer)| QuotaDecision { quota, answer })
        .enumerate()
        .min_by_key(|(_, quota)| {
            let wait = Reverse(quota.answer.wait());
            (wait, quota.remaining(), Reverse(quota.reset_after()))
        })
        .map_or(0, |(index, _)| index)
}

/// What one quota of a [`Decision`] says.
#[derive(Clone, Copy, Debug)]
pub struct QuotaDecision<'a> {
    quota: &'a Quota,
    answer: &'a QuotaAnswer,
}

impl<'a> QuotaDecision<'a> {
    /// The quota.
    #[must_use]
    pub fn quota(&self) -> &'a Quota {
        self.quota
    }

    /// Whether this quota admits the check; it is charged only if all do.
    #[must_use]
    pub fn is_allowed(&self) -> bool {
        self.answer.is_admitted()
    }

    /// The limit of this quota.
    #[must_use]
    pub fn limit(&self) -> u32 {
        self.quota.limit()
    }

    /// As [`DecisionView::used`], of this quota.
    #[must_use]
    pub fn used(&self) -> u32 {
        self.answer.used()
    }

    /// The units that this quota would admit right now.
    #[must_use]
    pub fn remaining(&self) -> u32 {
        self.limit().saturating_sub(self.used())
    }

    /// As [`DecisionView::reset_after`], of this quota.
    #[must_use]
    pub fn reset_after(&self) -> Duration {
        Duration::from_micros(self.answer.reset_micros())
    }

    /// As [`DecisionView::retry_after`], of this quota.
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        match self.answer.wait() {
            Wait::Zero | Wait::Never => None,
            Wait::Micros(micros) => Some(Duration::from_micros(micros)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn decide<const N: usize>(quotas: [(u32, QuotaAnswer); N]) -> Decision {
        let list: Quotas = (1..)
            .zip(&quotas)
            .map(|(n, (limit, _))| Quota::new(*limit, n * SECOND))
            .collect();
        let answers = quotas.into_iter().map(|(_, answer)| answer);
        Decision::new(&list, 1, Answer::new(Source::Memory, answers)).unwrap()
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

    #[test]
    fn of_admitting_quotas_the_fewest_left_then_the_longer_reset_then_the_first_is_reported() {
        let reported = |quotas: [(u32, QuotaAnswer); 2]| decide(quotas).view.0.reported;
        let admitted = QuotaAnswer::admitted;
        assert_eq!(
            reported([(9, admitted(1, SECOND)), (5, admitted(1, SECOND))]),
            1
        );
        assert_eq!(
            reported([(5, admitted(1, SECOND)), (5, admitted(1, 2 * SECOND))]),
            1
        );
        assert_eq!(
            reported([(5, admitted(1, SECOND)), (5, admitted(1, SECOND))]),
            0
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
    fn without_a_quota_nothing_limits() {
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
