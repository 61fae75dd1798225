//! One level of a check: its limiter, and what has become of it.

use std::time::Duration;

use smallvec::SmallVec;

use super::lease::HeldUnits;
use super::limiter::RateLimiter;
use crate::decision::{Answer, LevelData, QuotaAnswer, Source};
use crate::error::{Error, ErrorKind};
use crate::quota::{Quota, Quotas, ShareId};
use crate::store::{Check, StoreFuture, Subject};

/// The levels of a check, mostly one.
pub(crate) type Levels = SmallVec<[Level; 1]>;

/// A level of a check that goes on. Its key and its cost are in what the decision keeps of it.
pub(crate) struct Level {
    pub(crate) limiter: RateLimiter,
    /// The index of the level in its layer or call. Levels that are left out have one, too.
    pub(crate) place: usize,
    /// The quotas in place of the limiter's own.
    quotas: Option<Quotas>,
    /// The slots that the level takes of each quota in flight.
    pub(super) slots: u32,
    pub(super) state: State,
    /// The units that this process held for the level. They return on drop, unless they are kept.
    held: Option<Box<HeldUnits>>,
}

#[derive(Default)]
pub(super) enum State {
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

/// The way in which a level begins, before the store is asked. If levels differ, the last variant counts for their check.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Begun {
    /// The store decides it.
    ToAsk,
    /// This process decides it, or knows some of its units.
    IsKnown,
    /// Its key is blocked or held back.
    IsBlocked,
}

/// How a check treats its levels.
#[derive(Clone, Copy, Default)]
pub(super) struct CheckRules {
    /// Checks even keys that are blocked.
    pub(super) ignores_blocks: bool,
    /// Whether a cost above a limit is an error, since no wait helps. Otherwise it is refused with the current numbers.
    pub(super) is_within_limits: bool,
    pub(super) takes_slots: bool,
}

impl Level {
    /// Asks by the limiter's own quotas, and for one slot of each quota in flight.
    #[inline]
    pub(crate) fn new(limiter: &RateLimiter, place: usize) -> Self {
        Self {
            limiter: limiter.clone(),
            place,
            quotas: None,
            slots: 1,
            state: State::ToAsk,
            held: None,
        }
    }

    /// Asks for this many slots of each quota in flight.
    pub(crate) fn slots(self, slots: u32) -> Self {
        Self { slots, ..self }
    }

    /// Asks by the result of the lookup of the quotas, if there was one: they replace the limiter's. After an error, the
    /// level follows its failure policy with the quotas of the limiter.
    pub(crate) fn plan(mut self, plan: Option<Result<&Quotas, &Error>>) -> Self {
        match plan {
            None => {}
            Some(Ok(quotas)) => self.quotas = Some(quotas.clone()),
            Some(Err(error)) => self.state = State::Failed(error.clone()),
        }
        self
    }

    /// Returns the same level before it was asked.
    pub(super) fn asked_anew(&self) -> Self {
        Self {
            quotas: self.quotas.clone(),
            ..Self::new(&self.limiter, self.place).slots(self.slots)
        }
    }

    /// Looks at what is known without the store. Fails if the check is misuse.
    #[inline]
    pub(super) fn begin(
        &mut self,
        data: &LevelData,
        answer: &mut Answer,
        rules: CheckRules,
    ) -> Result<Begun, Error> {
        let is_asked = self.quotas().is_usual(data.cost()) || self.is_asked(data, rules)?;
        if !is_asked {
            self.state = State::Answered;
            return Ok(Begun::IsKnown);
        }
        if !rules.ignores_blocks && self.refuse_blocked(data, answer) {
            return Ok(Begun::IsBlocked);
        }
        Ok(match self.state {
            State::ToAsk if self.limiter.0.lease.is_none() => Begun::ToAsk,
            _ => Begun::IsKnown,
        })
    }

    /// Returns whether the store is asked although the cost is not [usual](Quotas::is_usual). Without quotas, it is not.
    ///
    /// # Errors
    ///
    /// Fails if no store can charge the cost, or if the slots cannot be held. An error that says that a cost or the slots
    /// are above a limit is only for checks that want it: for others, the store refuses them.
    #[cold]
    fn is_asked(&self, data: &LevelData, rules: CheckRules) -> Result<bool, Error> {
        let (limiter, quotas, slots) = (&self.limiter.0, self.quotas(), self.slots);
        let (cost, share, has_failed) = (data.cost(), data.share(), !self.is_to_ask());
        if let (Some(lease), Some(what)) = (&limiter.lease, quotas.not_leased()) {
            return Err(Error::not_leased(&limiter.name, what, lease.duration()));
        }
        match quotas.min_slots(share) {
            Some(_) if !rules.takes_slots && cost > 0 => {
                return Err(Error::holds_nothing(&limiter.name));
            }
            Some(limit) if rules.takes_slots && slots > limit && rules.is_within_limits => {
                return Err(Error::slots_exceed_limit(
                    slots,
                    &quotas.lowest_bound(true, share),
                ));
            }
            _ => {}
        }
        let is_too_large =
            |quota: &Quota| !quota.is_soft() && cost > quota.algorithm().facts().max_cost;
        match quotas.min_limit(share) {
            None => Ok(has_failed),
            Some(limit) if cost > limit && rules.is_within_limits => Err(
                Error::cost_exceeds_limit(cost, &quotas.lowest_bound(false, share)),
            ),
            // A refusal would tell a wait, but to wait does not help.
            Some(limit) if cost <= limit && !has_failed && quotas.iter().any(is_too_large) => {
                Err(Error::cost_too_large(cost, quotas.max_cost()))
            }
            Some(_) => Ok(true),
        }
    }

    /// Refuses the level if its key is blocked or held back. Returns whether it is.
    #[inline]
    pub(super) fn refuse_blocked(&mut self, data: &LevelData, answer: &mut Answer) -> bool {
        let subject = self.subject(data);
        let left = subject.and_then(|subject| self.limiter.blocked_for(subject));
        if let Some((left, source)) = left {
            self.refuse(data, answer, left, source);
        }
        left.is_some()
    }

    /// Refuses the level for this time, because others wait for its key. If the key is blocked, it is refused already.
    pub(super) fn refuse_for(&mut self, data: &LevelData, answer: &mut Answer, wait: Duration) {
        if self.is_to_ask() {
            // 0 would be no wait.
            let wait = wait.max(Duration::from_millis(1));
            self.refuse(data, answer, wait, Source::RefusalCache);
        }
    }

    /// A cost above a limit has no wait: it does not pass after the block either.
    #[cold]
    fn refuse(&mut self, data: &LevelData, answer: &mut Answer, left: Duration, source: Source) {
        let quotas = self.quotas();
        let wait = (!exceeds_limit(quotas, data.share(), data.cost())).then_some(left);
        let refused = |quota: &Quota| QuotaAnswer::refused(quota.limit(), wait, left);
        *answer = Answer::new(source, quotas.iter().map(refused));
        self.state = State::Answered;
    }

    /// Admits the level without counting it.
    pub(super) fn open(&mut self, answer: &mut Answer) {
        let unused = QuotaAnswer::admitted(0, Duration::ZERO);
        let unused = self.quotas().iter().map(|_| unused);
        *answer = Answer::new(Source::None, unused);
        self.state = State::Answered;
    }

    #[inline]
    pub(super) fn quotas(&self) -> &Quotas {
        self.quotas.as_ref().unwrap_or(&self.limiter.0.quotas)
    }

    /// Decides the level by these quotas.
    pub(super) fn set_quotas(&mut self, data: &mut LevelData, quotas: Quotas) {
        data.set_quotas(&quotas);
        self.quotas = Some(quotas);
    }

    #[inline]
    pub(super) fn is_to_ask(&self) -> bool {
        matches!(self.state, State::ToAsk)
    }

    pub(super) fn waits_for_group(&self) -> bool {
        matches!(self.state, State::InLaterGroup)
    }

    #[inline]
    pub(super) fn falls_back(&self) -> bool {
        matches!(self.state, State::FallsBack(_))
    }

    pub(super) fn takes_slots(&self) -> bool {
        self.quotas().has_slots()
    }

    /// Returns what the level counts. `None` without a key.
    #[inline]
    pub(super) fn subject<'a>(&'a self, data: &'a LevelData) -> Option<Subject<'a>> {
        Some(Subject {
            share: data.share(),
            lease_micros: data.lease(),
            ..Subject::new(&self.limiter.0.scope, data.key()?, self.quotas())
        })
    }

    /// Returns the check of this level: what the store has to charge.
    #[inline]
    pub(super) fn check<'a>(&'a self, data: &'a LevelData) -> Option<Check<'a>> {
        let held = self.held.as_ref().map_or(0, |held| held.units());
        let subject = self.subject(data)?;
        Some(subject.check(data.cost().saturating_sub(held)))
    }

    /// Returns the group of the level: see [`Store::atomic_group`](crate::Store::atomic_group).
    pub(super) fn group(&self, data: &LevelData) -> Option<u64> {
        let subject = self.subject(data)?;
        Some(self.limiter.0.store.atomic_group(subject))
    }

    /// Takes the units that this process holds. The store is asked for the others.
    pub(super) fn take_lease(&mut self, data: &LevelData, answer: &mut Answer, is_alone: bool) {
        let lease = self.limiter.0.lease.as_ref().filter(|_| self.is_to_ask());
        let Some((lease, subject)) = lease.zip(self.subject(data)) else {
            return;
        };
        let taken = lease.take(subject, data.cost(), answer);
        // Nothing else can refuse what is complete alone.
        let is_decided = is_alone && taken.is_complete && taken.grants.is_empty();
        let held = (!taken.is_nothing() && !is_decided)
            .then(|| Box::new(HeldUnits::new(lease, subject, data.cost(), &taken, answer)));
        self.held = held;
        if taken.is_complete {
            self.state = State::Answered;
        }
    }

    /// Marks the level as failed. What this process held for it returns.
    #[cold]
    pub(super) fn fail(&mut self, answer: &mut Answer, error: &Error) {
        self.state = State::Failed(error.clone());
        self.held = None;
        *answer = Answer::default();
    }

    /// Gives back what was charged, because the check is not admitted. Removes it from the answer.
    pub(super) fn withdraw(
        &mut self,
        data: &LevelData,
        answer: &mut Answer,
    ) -> Option<StoreFuture<()>> {
        if !matches!(self.state, State::Charged) {
            return None;
        }
        let (cost, refund) = {
            let check = self.check(data)?;
            let is_counted = check.cost > 0 && answer.source() != Source::None;
            let refund = is_counted.then(|| {
                let charged = check.cost.saturating_add(answer.extra_units());
                let refund = check.refund(answer, charged, check.cost);
                self.limiter.0.store.adjust(refund)
            });
            (check.cost, refund)
        };
        self.state = State::Answered;
        answer.remove_charge(cost);
        refund
    }

    /// Leaves the units that this process held to the decision of an admitted check, or returns them.
    #[inline]
    pub(super) fn end(&mut self, data: &mut LevelData, answer: &mut Answer, is_admitted: bool) {
        if let Some(held) = self.held.take() {
            if is_admitted {
                data.set_grants(held.keep());
            } else if answer.source() == Source::Lease {
                answer.remove_charge(data.cost());
            }
        }
        if let Some(on_failure) = &self.limiter.0.on_failure {
            let outages = &on_failure.store_outages;
            outages.record_decision(&self.limiter.0.name, answer.source());
        }
    }
}

/// Returns whether the cost of a request of this share is above a limit, so that no wait helps.
pub(super) fn exceeds_limit(quotas: &Quotas, share: Option<ShareId>, cost: u32) -> bool {
    quotas.min_limit(share).is_some_and(|limit| cost > limit)
}

/// Returns the error for a store whose answer has another number of quotas than the check.
#[cold]
pub(super) fn mismatch((answers, quotas): (usize, usize)) -> Error {
    Error::new(
        ErrorKind::InvalidReply,
        format!("the store answered for {answers} of {quotas} quotas"),
    )
}
