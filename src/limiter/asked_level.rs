//! One level of a check: its limiter, its record, and what has become of it.

use std::mem;
use std::sync::Arc;
use std::time::Duration;

use smallvec::SmallVec;

use super::lease::HeldUnits;
use super::limiter::RateLimiter;
use super::line::Want;
use super::record::OwnedRecord;
use crate::decision::{Answer, QuotaAnswer, Record, Source};
use crate::error::{Error, ErrorKind};
use crate::key::IntoKey;
use crate::quota::{Quotas, ShareId};
use crate::store::{Check, StoreFuture, Subject};

/// The levels of a check, mostly one.
pub(crate) type AskedLevels = SmallVec<[AskedLevel; 1]>;

/// A level of a check that goes on. It can be checked again: what is asked stays.
pub(crate) struct AskedLevel {
    /// The limiter, what is asked, and the answer. Written in place, or copied first if an earlier decision shares it.
    owned: Arc<OwnedRecord>,
    pub(super) state: LevelState,
    /// The units that this process held for the level. They return on drop, unless they are kept.
    held: Option<Box<HeldUnits>>,
    /// When the lease lacked units for the level, by its clock. 0 if it did not, and without one.
    asked_at: u64,
}

#[derive(Default)]
pub(super) enum LevelState {
    /// The store is asked, together with the other levels in this state.
    #[default]
    ToAsk,
    /// The store is asked after an earlier group.
    InLaterGroup,
    /// Nothing returns if another level refuses, but the units that this process held.
    Answered,
    /// The store, or the fallback counts, have charged the level. It is refunded if another level refuses.
    Charged,
    /// The store, or the lookup of the quotas, has failed, and no policy was applied yet.
    Failed(Error),
    /// The level falls back because of this error, and was not decided yet.
    FallsBack(Error),
}

/// The step after the start of a level. If levels differ, the last variant counts for their check.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum NextStep {
    /// The store decides it.
    AskStore,
    /// This process decides it, or knows some of its units.
    LookHere,
    /// Its key is blocked or paused.
    Refuse,
}

/// What a check does with its levels.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum CheckKind {
    /// Charges them. A cost above a limit is refused with the current numbers.
    #[default]
    Charge,
    /// Charges them. A cost above a limit is an error, since no wait helps.
    ChargeWithinLimits,
    /// Reads them, even if their keys are blocked. Their decision says whether one more unit would be admitted.
    Look,
}

impl AskedLevel {
    /// Asks for units of a key, and for one slot of each quota in flight. A look asks for no units.
    #[inline]
    pub(crate) fn new(limiter: &RateLimiter, key: impl IntoKey, cost: u32) -> Self {
        Self::with(limiter, key, cost, |_| {})
    }

    #[inline]
    pub(crate) fn with(
        limiter: &RateLimiter,
        key: impl IntoKey,
        cost: u32,
        ask: impl FnOnce(&mut Record),
    ) -> Self {
        let lease = limiter.lease_micros(&limiter.0.facts.quotas);
        let mut record = Record::new(lease, key, cost);
        ask(&mut record);
        Self::from_owned(Arc::new(OwnedRecord {
            limiter: limiter.remembered(),
            record,
        }))
    }

    #[inline]
    fn from_owned(owned: Arc<OwnedRecord>) -> Self {
        Self {
            owned,
            state: LevelState::ToAsk,
            held: None,
            asked_at: 0,
        }
    }

    #[inline]
    pub(crate) fn limiter(&self) -> &RateLimiter {
        &self.owned.limiter
    }

    #[inline]
    pub(super) fn owned(&self) -> &OwnedRecord {
        &self.owned
    }

    pub(super) fn into_owned(self) -> Arc<OwnedRecord> {
        self.owned
    }

    /// A clamped cost is never lowered to 0, which charges nothing.
    pub(super) fn cost_by(&self, quotas: &Quotas) -> u32 {
        let Record {
            cost,
            unclamped_cost,
            share,
            ..
        } = *self.record();
        match unclamped_cost {
            Some(unclamped) => unclamped.min(quotas.max_admissible_cost(share).max(1)),
            None => cost,
        }
    }

    #[inline]
    pub(super) fn fit_cost(&mut self) {
        if self.record().unclamped_cost.is_some() {
            self.record_mut().cost = self.cost_by(self.quotas());
        }
    }

    pub(crate) fn set_plan(&mut self, quotas: Quotas) {
        let quotas = match self.limiter().0.reserve_lease {
            Some(lease) => quotas.with_held(lease),
            None => quotas,
        };
        let lease = self.limiter().lease_micros(&quotas);
        let record = self.record_mut();
        record.unknown = None;
        record.lease = lease;
        record.plan = Some(quotas);
        self.fit_cost();
    }

    /// Holds the cost in this process in place of charging it, if the limiter has a lease for that.
    pub(super) fn hold_units(&mut self) {
        if self.quotas().has_held() && !self.record().is_held {
            self.record_mut().is_held = true;
        }
    }

    /// Asks by the failure policy, because the lookup of the plan has failed.
    pub(crate) fn set_unknown(&mut self, error: Error) {
        self.record_mut().unknown = Some(error);
    }

    pub(crate) fn is_unknown(&self) -> bool {
        self.record().unknown.is_some()
    }

    /// Asks again what a level of an earlier attempt has asked. Copies the record if the view of a decision still has it.
    pub(super) fn again(owned: Arc<OwnedRecord>) -> Self {
        let mut level = Self::from_owned(owned);
        level.record_mut().ask_again();
        level.fit_cost();
        level
    }

    pub(super) fn asked_anew(&self) -> Self {
        Self::from_owned(Arc::clone(&self.owned))
    }

    #[inline]
    pub(crate) fn record(&self) -> &Record {
        &self.owned.record
    }

    #[inline]
    pub(crate) fn record_mut(&mut self) -> &mut Record {
        &mut Arc::make_mut(&mut self.owned).record
    }

    pub(super) fn want(&self) -> Want {
        Want::new(&self.owned)
    }

    /// Begins an attempt, and looks at what is known without the store. Fails if the check is misuse.
    #[inline]
    pub(super) fn begin(&mut self, kind: CheckKind, takes_slots: bool) -> Result<NextStep, Error> {
        self.limiter().observe_check();
        if let Some(blocks) = &self.limiter().0.automatic_blocks {
            let now = blocks.now();
            self.record_mut().begun_at = now;
        }
        if self.record().share.is_some() {
            let share = self.quotas().known_share(self.record().share);
            self.record_mut().share = share;
        }
        if let Some(error) = &self.record().unknown {
            self.state = LevelState::Failed(error.clone());
        }
        let is_asked =
            self.quotas().is_usual(self.record().cost) || self.is_asked(kind, takes_slots)?;
        if !is_asked {
            self.state = LevelState::Answered;
            return Ok(NextStep::LookHere);
        }
        if kind != CheckKind::Look && self.refuse_blocked() {
            return Ok(NextStep::Refuse);
        }
        if self.is_to_ask() && self.limiter().0.lease.is_none() {
            Ok(NextStep::AskStore)
        } else {
            Ok(NextStep::LookHere)
        }
    }

    /// Returns whether the store is asked although the cost is not [usual](Quotas::is_usual). Without quotas, it is not.
    ///
    /// # Errors
    ///
    /// Fails if no store can charge the cost, or if the slots cannot be held. An error that says that a cost or the slots
    /// are above a limit is only for checks that want it: for others, the store refuses them.
    #[cold]
    fn is_asked(&self, kind: CheckKind, takes_slots: bool) -> Result<bool, Error> {
        let is_within_limits = kind == CheckKind::ChargeWithinLimits;
        let name = &self.limiter().0.facts.name;
        let quotas = self.quotas();
        let Record {
            cost, slots, share, ..
        } = *self.record();
        if let (Some(lease), Some(what)) = (&self.limiter().0.lease, quotas.not_leased()) {
            return Err(Error::not_leased(name, what, lease.duration));
        }
        if let (Some(_), Some(what)) = (quotas.held(), quotas.not_held()) {
            return Err(Error::not_held(name, what));
        }
        if let Some(max_slots) = quotas.min_slots(share) {
            if !takes_slots && cost > 0 {
                return Err(Error::holds_nothing(name));
            }
            if takes_slots && slots > max_slots && is_within_limits {
                let bound = quotas.lowest_bound(true, share);
                return Err(Error::slots_exceed_limit(slots, &bound));
            }
        }
        let Some(limit) = quotas.min_limit(share) else {
            return Ok(self.is_unknown());
        };
        if cost > limit && is_within_limits {
            let bound = quotas.lowest_bound(false, share);
            return Err(Error::cost_exceeds_limit(cost, &bound));
        }
        // A refusal would tell a wait, but to wait does not help.
        if cost <= limit && !self.is_unknown() && is_too_large(quotas, cost) {
            return Err(Error::cost_too_large(cost, quotas.max_cost()));
        }
        Ok(true)
    }

    #[inline]
    pub(super) fn refuse_blocked(&mut self) -> bool {
        let left = self.limiter().blocked_for(self.subject());
        if let Some((left, source)) = left {
            self.refuse(left, source);
        }
        left.is_some()
    }

    /// Refuses the level for this time, because its key has no room in time. A block has a wait of its own.
    pub(super) fn refuse_for(&mut self, wait: Duration) {
        if self.record().answer.is_admitted() {
            // 0 would be no wait.
            let wait = wait.max(Duration::from_millis(1));
            self.refuse(wait, Source::RefusalCache);
        }
    }

    /// A cost that is never admitted has no wait: it does not pass after the block either.
    #[cold]
    fn refuse(&mut self, left: Duration, source: Source) {
        let Record { cost, share, .. } = *self.record();
        let quotas = self.quotas();
        let wait = (!is_never_admitted(quotas, share, cost)).then_some(left);
        let refused = quotas
            .iter()
            .map(|quota| QuotaAnswer::refused(quota.limit(), wait, left));
        let answer = Answer::new(source, refused);
        self.set_answer(answer);
    }

    pub(super) fn open(&mut self) {
        let unused = QuotaAnswer::admitted(0, Duration::ZERO);
        let unused = self.quotas().iter().map(|_| unused);
        let answer = Answer::new(Source::None, unused);
        self.set_answer(answer);
    }

    /// Takes in an answer. Nothing returns if another level refuses.
    pub(super) fn set_answer(&mut self, answer: Answer) {
        self.record_mut().answer = answer;
        self.state = LevelState::Answered;
    }

    /// Takes in the answer of the store, together with the `are_admitted` of all levels that were asked.
    ///
    /// # Errors
    ///
    /// Fails if there is not one answer for each quota. If the levels are refused, those to this one may be missing.
    #[inline]
    pub(super) fn take_in(&mut self, answer: &mut Answer, are_admitted: bool) -> Result<(), Error> {
        let answered = answer.quotas().len();
        let quotas = self.quotas().answers();
        if answered != quotas && (answered > 0 || are_admitted) {
            return Err(mismatch(answered, quotas));
        }
        self.record_mut().answer = mem::take(answer);
        if are_admitted
            && self.asked_at > 0
            && let Some(lease) = &self.limiter().0.lease
        {
            lease.record_charge(self.subject(), self.check().cost, self.asked_at);
        }
        Ok(())
    }

    #[inline]
    pub(crate) fn quotas(&self) -> &Quotas {
        self.owned.quotas()
    }

    /// The quotas that the store is asked to decide by, also while this process decides.
    pub(super) fn asked_quotas(&self) -> &Quotas {
        let own = &self.limiter().0.facts.quotas;
        self.record().asked_quotas(own)
    }

    #[inline]
    pub(super) fn is_to_ask(&self) -> bool {
        matches!(self.state, LevelState::ToAsk)
    }

    pub(super) fn waits_for_group(&self) -> bool {
        matches!(self.state, LevelState::InLaterGroup)
    }

    #[inline]
    pub(super) fn falls_back(&self) -> bool {
        matches!(self.state, LevelState::FallsBack(_))
    }

    /// Whether this process becomes a holder: of slots, or of units.
    pub(super) fn takes_slots(&self) -> bool {
        self.quotas().have_holders()
    }

    #[inline]
    pub(super) fn subject(&self) -> Subject<'_> {
        self.owned.subject()
    }

    /// The store charges what this process does not hold.
    #[inline]
    pub(super) fn check(&self) -> Check<'_> {
        let held = self.held.as_ref().map_or(0, |held| held.units());
        self.subject()
            .check(self.record().cost.saturating_sub(held))
    }

    pub(super) fn exceeds(&self, quotas: &Quotas, takes_slots: bool) -> bool {
        let share = self.record().share;
        let max_slots = quotas.min_slots(share).filter(|_| takes_slots);
        max_slots.is_some_and(|limit| self.record().slots > limit)
            || is_never_admitted(quotas, share, self.cost_by(quotas))
    }

    #[cold]
    pub(super) fn look_for_unit(&mut self) {
        if self.record().answer.source() == Source::None {
            return;
        }
        let quotas = self.quotas().clone();
        let slot_wait = if quotas.have_holders() {
            self.limiter().suggested_slot_wait()
        } else {
            Duration::ZERO
        };
        let record = self.record_mut();
        record
            .answer
            .look_for_unit(&quotas, record.share, slot_wait);
    }

    pub(super) fn group(&self) -> u64 {
        self.limiter().0.store.atomic_group(self.subject())
    }

    pub(super) fn take_lease(&mut self, is_alone: bool) {
        let Some(lease) = self.limiter().0.lease.as_ref().filter(|_| self.is_to_ask()) else {
            return;
        };
        let subject = self.subject();
        let cost = self.record().cost;
        let mut answer = Answer::default();
        let taken = lease.take(subject, cost, &mut answer);
        // Nothing else can refuse what is complete alone.
        let is_complete = taken.is_complete;
        let asked_at = taken.asked_at;
        let is_held = !taken.grants.is_empty() || is_complete && !is_alone;
        self.held = is_held.then(|| Box::new(HeldUnits::new(lease, subject, cost, taken, &answer)));
        self.asked_at = asked_at;
        if is_complete {
            self.set_answer(answer);
        }
    }

    #[cold]
    pub(super) fn fail(&mut self, error: &Error) {
        self.state = LevelState::Failed(error.clone());
        self.held = None;
        self.record_mut().answer = Answer::default();
    }

    /// Gives back what was charged, because the check is not admitted. Removes it from the answer.
    pub(super) fn withdraw(&mut self) -> Option<StoreFuture<()>> {
        if !matches!(self.state, LevelState::Charged) {
            return None;
        }
        let check = self.check();
        let answer = &self.record().answer;
        let cost = check.cost;
        // What this process holds returns with its slots.
        let is_charged = cost > 0 && !self.record().is_held;
        let is_counted = is_charged && answer.source() != Source::None;
        let refund = is_counted.then(|| {
            let charged = cost.saturating_add(answer.extra_units());
            let refund = check.refund(answer, charged, cost);
            self.limiter().0.store.adjust(refund)
        });
        self.state = LevelState::Answered;
        self.record_mut().answer.remove_charge(cost);
        refund
    }

    /// Ends an attempt: leaves the units that this process held to the decision of an admitted check, or returns them. Returns
    /// the record as the decision keeps it.
    #[inline]
    pub(super) fn end(mut self, is_admitted: bool) -> Arc<OwnedRecord> {
        if let Some(held) = self.held.take() {
            let record = self.record_mut();
            if is_admitted {
                record.grants = held.keep();
            } else if record.answer.source() == Source::Lease {
                record.answer.remove_charge(record.cost);
            }
        }
        if let Some(on_failure) = &self.limiter().0.on_failure {
            let source = self.record().answer.source();
            on_failure
                .store_outages
                .record_decision(&self.limiter().0.facts.name, source);
        }
        self.owned
    }
}

/// Returns whether no wait helps a request of this share: its cost is above a limit, or a limit is 0.
fn is_never_admitted(quotas: &Quotas, share: Option<ShareId>, cost: u32) -> bool {
    let limit = quotas.min_limit(share);
    limit.is_some_and(|limit| cost.max(1) > limit)
}

fn is_too_large(quotas: &Quotas, cost: u32) -> bool {
    quotas
        .iter()
        .any(|quota| !quota.is_soft() && cost > quota.algorithm().max_cost())
}

#[cold]
fn mismatch(answers: usize, quotas: usize) -> Error {
    Error::new(
        ErrorKind::InvalidReply,
        format!("the store answered for {answers} of {quotas} quotas"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::quota::Quota;
    use crate::store::MemoryStore;

    #[test]
    fn a_clamped_cost_is_the_whole_again_in_an_attempt_after_a_fallback() {
        let limiter = RateLimiter::new(MemoryStore::new(), Quota::per_hour(100));
        let mut level = AskedLevel::with(&limiter, "ada", 1_000, |record| {
            record.unclamped_cost = Some(1_000);
        });
        level.fit_cost();
        assert!(level.begin(CheckKind::Charge, false).is_ok());
        assert_eq!(level.record().cost, 100);
        level.record_mut().portion = Some(Quota::per_hour(25).into());
        level.fit_cost();
        assert_eq!(level.record().cost, 25);
        // A call waits for this in line, before its next attempt.
        let mut again = AskedLevel::again(level.end(true));
        assert_eq!(again.record().cost, 100);
        assert!(again.begin(CheckKind::Charge, false).is_ok());
        assert_eq!(again.record().cost, 100);
    }
}
