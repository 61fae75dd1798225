//! A check of one level or several, from its start to its decision.
//!
//! 1. A level is a limiter, a key, a cost and quotas. All levels have the same store, and no two have the same limiter
//!    and key.
//! 2. The check is admitted if every level admits its cost. Then every level is charged. Otherwise, none is.
//! 3. A level without quotas admits. It is not counted.
//! 4. If a key is blocked, held back, or remembered as refused, the store is not asked.
//! 5. The store decides all levels in one atomic step, if their keys are in one [group](crate::Store::atomic_group).
//!    Otherwise the groups are asked in turn, by `groups.rs`.
//! 6. If the store fails, `failure.rs` applies the policy of each level.
//! 7. The waits and counts of a level that was not asked are unknown, so the reported wait is a lower bound.

use std::mem;
use std::pin::Pin;
use std::time::Duration;

use smallvec::SmallVec;

use super::in_flight::SlotsOfCheck;
use super::level::{Begun, CheckRules, Level, Levels, State, mismatch};
use super::limiter::RateLimiter;
use super::line::TooLate;
use crate::decision::{
    Answer, Answers, Decision, DecisionBuilder, DecisionView, LevelData, LevelDecision,
};
use crate::error::{Error, ErrorKind};
use crate::key::IntoKey;
use crate::quota::ShareId;
use crate::store::{Check, PendingAnswers, SendMark, StoreFuture};

/// The result of a check.
pub(crate) type Checked = Result<Decision, CheckError>;

/// The error of a check.
#[derive(Debug)]
pub(crate) struct CheckError {
    pub(crate) error: Error,
    /// The places of the levels that failed. The first level if the check as a whole is wrong.
    pub(crate) failed: Vec<usize>,
}

/// A check that is not decided yet. [Add](Self::add) its levels, then [run](Self::run) it.
pub(crate) struct PendingCheck {
    pub(super) decision: DecisionBuilder,
    pub(crate) levels: Levels,
    rules: CheckRules,
    needs_fresh_list: bool,
    /// The way in which the check begins. An error if the check is misuse, or if a cost can never be charged at once.
    begun: Result<Begun, CheckError>,
    /// `None` if the check takes no slots.
    pub(super) slots: Option<Box<SlotsOfCheck>>,
}

impl CheckError {
    pub(super) fn at(place: usize, error: Error) -> Self {
        let failed = vec![place];
        Self { error, failed }
    }
}

impl PendingCheck {
    #[inline(always)]
    pub(crate) fn new() -> Self {
        Self::with(DecisionBuilder::new(), Levels::new())
    }

    #[inline(always)]
    pub(super) fn with(decision: DecisionBuilder, levels: Levels) -> Self {
        Self {
            decision,
            levels,
            rules: CheckRules::default(),
            needs_fresh_list: false,
            begun: Ok(Begun::ToAsk),
            slots: None,
        }
    }

    /// Takes slots of the quotas in flight, and holds them if the check is admitted.
    pub(crate) fn take_slots(&mut self, slots: SlotsOfCheck) {
        self.slots = Some(Box::new(slots));
        self.rules.takes_slots = true;
    }

    /// Returns what the check has taken, if it takes slots.
    #[inline]
    pub(crate) fn take_permits(&mut self) -> Option<Box<SlotsOfCheck>> {
        self.slots.take()
    }

    /// Checks even keys that are blocked.
    pub(super) fn ignore_blocks(&mut self) {
        self.rules.ignores_blocks = true;
    }

    /// Fails if the cost of a level is above its limit.
    #[inline]
    pub(super) fn stay_within_limits(&mut self) {
        self.rules.is_within_limits = true;
    }

    /// Adds a level, with its key, its cost, and the share that the request belongs to.
    #[inline(always)]
    pub(crate) fn add(
        &mut self,
        mut level: Level,
        key: impl IntoKey,
        cost: u32,
        share: Option<ShareId>,
    ) {
        let Level { limiter, place, .. } = &level;
        limiter.observe_check();
        self.needs_fresh_list |= limiter.0.holds.needs_fresh_list && !self.rules.ignores_blocks;
        let (quotas, place, index) = (level.quotas(), *place, self.levels.len());
        let share = quotas.known_share(share);
        let of_level = limiter.of_level(quotas, place);
        let set = self
            .decision
            .set_level(index, quotas, cost, share, of_level, key);
        let begun = set.map(|(data, answer)| level.begin(data, answer, self.rules));
        self.levels.push(level);
        match (&mut self.begun, begun) {
            (_, None | Some(Ok(Begun::ToAsk))) | (Err(_), _) => {}
            (Ok(of_all), Some(Ok(begun))) => *of_all = begun.max(*of_all),
            (of_all, Some(Err(error))) => *of_all = Err(CheckError::at(place, error)),
        }
    }

    /// Refuses the check of a call whose turn would come too late.
    #[cold]
    pub(crate) fn refuse_too_late(&mut self, too_late: TooLate) {
        let level = parts(&mut self.levels, &mut self.decision).nth(too_late.level);
        if let Some((level, data, answer)) = level {
            level.refuse_for(data, answer, too_late.wait);
        }
        if let Ok(begun) = &mut self.begun {
            *begun = Begun::IsBlocked;
        }
    }

    /// Decides the check. If it is dropped before its end, the store may or may not have charged it, and what this process
    /// held returns. A check of several groups goes on in its task.
    pub(crate) async fn run(&mut self) -> Checked {
        self.decision.begin(self.levels.len());
        if self.needs_fresh_list
            && let Some(refresh) = self.refreshed_blocks()
        {
            // It logs its errors.
            let _ = refresh.await;
            self.refuse_blocked_meanwhile();
        }
        if self.levels.len() > 1 {
            self.verify_together()?;
        }
        match mem::replace(&mut self.begun, Ok(Begun::ToAsk))? {
            Begun::ToAsk => {}
            Begun::IsBlocked => return self.decide(),
            Begun::IsKnown => {
                self.apply_policies()?;
                self.take_leases();
                if !self.levels.iter().any(Level::is_to_ask) {
                    self.fall_back_alone()?;
                    return self.decide();
                }
            }
        }
        if self.levels.len() > 1 && self.takes_turns() {
            return self.ask_in_turn().await;
        }
        let answered = match self.slots.is_some() && self.asks_for_slots() {
            true => self.ask_for_slots().await,
            false => match self.ask_store() {
                None => Ok(()),
                Some(PendingAnswers { future, sent }) => {
                    let answers = future.await;
                    self.answered(&sent, answers, Duration::MAX)
                }
            },
        };
        match answered.and_then(|()| self.decision.decide().map_err(mismatch)) {
            Ok(is_admitted) => Ok(self.decided(is_admitted)),
            Err(error) if self.is_divided(&error) => self.ask_in_turn().await,
            Err(error) => self.fall_back_after(&error),
        }
    }

    /// Returns a refresh of the block list to wait for, unless what is known decides already.
    #[cold]
    fn refreshed_blocks(&mut self) -> Option<StoreFuture<()>> {
        if !matches!(self.begun, Ok(Begun::ToAsk | Begun::IsKnown)) {
            return None;
        }
        let (level, data, _) = parts(&mut self.levels, &mut self.decision).next()?;
        let subject = level.subject(data)?;
        level.limiter.0.store.refreshed_blocks(subject)
    }

    /// Refuses the check if the key of a level is in the block list meanwhile.
    #[cold]
    fn refuse_blocked_meanwhile(&mut self) {
        for (level, data, answer) in parts(&mut self.levels, &mut self.decision) {
            if !matches!(level.state, State::Answered) && level.refuse_blocked(data, answer) {
                self.begun = Ok(Begun::IsBlocked);
            }
        }
    }

    /// Returns whether levels are decided one after the other: what was charged returns if a later step refuses.
    fn takes_turns(&self) -> bool {
        self.levels.iter().any(Level::falls_back) || self.are_in_groups()
    }

    /// Returns whether the store has failed because it has found out that the levels to ask are in several groups. It has
    /// decided nothing then.
    pub(super) fn is_divided(&self, error: &Error) -> bool {
        error.kind() == ErrorKind::Unsupported && self.are_in_groups()
    }

    /// Takes the units that this process holds. The store is asked for the others.
    fn take_leases(&mut self) {
        let is_alone = self.levels.len() == 1;
        for (level, data, answer) in parts(&mut self.levels, &mut self.decision) {
            level.take_lease(data, answer, is_alone);
        }
    }

    /// Asks the store to decide levels together. `None` if their answers were written.
    #[inline(always)]
    pub(super) fn ask_store(&mut self) -> Option<PendingAnswers> {
        let store = &self.levels.first()?.limiter.0.store;
        let (data, answers) = self.decision.levels_and_answers();
        if let ([level], [data]) = (&self.levels[..], &*data) {
            // Without a vector.
            let check = level.check(data).filter(|_| level.is_to_ask())?;
            return store.check(&[check], answers);
        }
        let checks = checks(&self.levels, data, Level::is_to_ask);
        if checks.len() == self.levels.len() {
            return store.check(&checks, answers);
        }
        let mut some = Answers::empty(checks.len());
        let pending = store.check(&checks, &mut some);
        drop(checks);
        if pending.is_none() {
            self.set_answers(some, Level::is_to_ask);
        }
        pending
    }

    /// Returns whether a level to ask takes slots.
    pub(super) fn asks_for_slots(&self) -> bool {
        let mut to_ask = self.levels.iter().filter(|level| level.is_to_ask());
        to_ask.any(Level::takes_slots)
    }

    /// Asks the store about levels, some of which take slots.
    #[cold]
    pub(super) fn ask_for_slots(
        &mut self,
    ) -> Pin<Box<dyn Future<Output = Result<(), Error>> + Send + '_>> {
        Box::pin(async move {
            let asked = {
                let checks = checks(&self.levels, self.decision.levels(), Level::is_to_ask);
                let asked = || self.levels.iter().filter(|level| level.is_to_ask());
                let wanted = asked().map(|level| (&level.limiter, level.slots));
                let (Some(slots), Some(first)) = (&mut self.slots, asked().next()) else {
                    return Ok(());
                };
                slots.ask(&first.limiter, &checks, wanted.collect())
            };
            let answers = asked.await?;
            self.set_answers(answers, Level::is_to_ask);
            Ok(())
        })
    }

    /// Decides by the failure policies.
    #[cold]
    fn fall_back_after(&mut self, error: &Error) -> Checked {
        self.fail(error);
        self.apply_policies()?;
        self.fall_back_alone()?;
        self.decide()
    }

    /// Decides the levels that fall back, after none was charged by the store.
    fn fall_back_alone(&mut self) -> Result<(), CheckError> {
        let fell_back = self.fall_back();
        if !matches!(fell_back, Ok(true)) {
            // Fallback counts refund at once.
            drop(self.refunds());
        }
        fell_back.map(drop)
    }

    /// Stores the answers to the levels that were asked, and remembers refusals for at most `max_age`.
    #[inline]
    pub(super) fn answered(
        &mut self,
        sent: &[SendMark],
        answers: Result<Answers, Error>,
        max_age: Duration,
    ) -> Result<(), Error> {
        let answers = answers?;
        if let (false, Some(first)) = (sent.is_empty(), self.levels.first()) {
            let checks = checks(&self.levels, self.decision.levels(), Level::is_to_ask);
            // Other processes return units when their lease ends.
            let ages = self
                .levels
                .iter()
                .map(|level| level.limiter.max_refusal_age());
            let max_age = ages.fold(max_age, Duration::min);
            let store = &first.limiter.0.store;
            store.remember(&checks, sent, &answers, max_age);
        }
        self.set_answers(answers, Level::is_to_ask);
        Ok(())
    }

    /// Sets the answers to such levels, in their order.
    pub(super) fn set_answers(&mut self, answers: Answers, is_such: impl Fn(&Level) -> bool) {
        if let ([_], [_]) = (&self.levels[..], &answers[..]) {
            let (_, own) = self.decision.levels_and_answers();
            *own = answers;
            return;
        }
        let parts = parts(&mut self.levels, &mut self.decision);
        let such = parts.filter(|(level, ..)| is_such(level));
        for ((.., own), answer) in such.zip(answers.into_answers()) {
            *own = answer;
        }
    }

    /// Marks the levels that were asked as failed.
    #[cold]
    pub(super) fn fail(&mut self, error: &Error) {
        for (level, _, answer) in parts(&mut self.levels, &mut self.decision) {
            if level.is_to_ask() {
                level.fail(answer, error);
            }
        }
    }

    /// Starts the refunds of all that levels were charged, and removes the units from their answers.
    pub(super) fn refunds(&mut self) -> Vec<StoreFuture<()>> {
        let parts = parts(&mut self.levels, &mut self.decision);
        let refunds = parts.filter_map(|(level, data, answer)| level.withdraw(data, answer));
        refunds.collect()
    }

    /// Decides by the answers. A level without an answer was not asked.
    pub(super) fn decide(&mut self) -> Checked {
        match self.decision.decide() {
            Ok(is_admitted) => Ok(self.decided(is_admitted)),
            Err(numbers) => Err(self.failure(mismatch(numbers))),
        }
    }

    /// Returns the decision. What this process held returns, unless the check is admitted.
    #[inline(always)]
    fn decided(&mut self, is_admitted: bool) -> Decision {
        for (level, data, answer) in parts(&mut self.levels, &mut self.decision) {
            level.end(data, answer, is_admitted);
        }
        mem::take(&mut self.decision).finish()
    }

    /// Returns the limiter of each level of the decision that this check has made.
    #[inline]
    pub(crate) fn limiters_of<'a>(
        &'a self,
        decision: &'a DecisionView,
    ) -> impl Iterator<Item = (&'a RateLimiter, LevelDecision<'a>)> {
        let limiters = self.levels.iter().map(|level| &level.limiter);
        limiters.zip(decision.levels())
    }

    /// Returns the failure of the check as a whole.
    #[cold]
    pub(super) fn failure(&self, error: Error) -> CheckError {
        let first = self.levels.first();
        CheckError::at(first.map_or(0, |level| level.place), error)
    }

    /// Returns the limiters of the levels that have failed.
    pub(super) fn failed_limiters(
        &self,
        failure: &CheckError,
    ) -> impl Iterator<Item = &RateLimiter> {
        let failed = |level: &&Level| failure.failed.contains(&level.place);
        let levels = self.levels.iter().filter(failed);
        levels.map(|level| &level.limiter)
    }

    /// Returns whether a key of this admitted check is held back since the store was asked.
    pub(crate) fn is_held_meanwhile(&self, decision: &DecisionView) -> bool {
        let mut levels = self.limiters_of(decision);
        levels.any(|(limiter, level)| limiter.is_held_meanwhile(level))
    }

    /// Returns whether the levels to ask are in several groups.
    pub(super) fn are_in_groups(&self) -> bool {
        let levels = self.levels.iter().zip(self.decision.levels());
        let to_ask = levels.filter(|(level, _)| level.is_to_ask());
        let mut groups = to_ask.filter_map(|(level, data)| level.group(data));
        let first = groups.next();
        groups.any(|group| Some(group) != first)
    }

    /// Fails if the store cannot decide the levels together.
    fn verify_together(&self) -> Result<(), CheckError> {
        let failed = |one: &RateLimiter, other: &RateLimiter, why, remedy| {
            let error = Error::levels(&one.0.name, &other.0.name, why, remedy);
            Err(self.failure(error))
        };
        let levels = self.levels.iter().map(|level| &level.limiter);
        let levels = levels.zip(self.decision.levels().iter().map(LevelData::key));
        let levels: SmallVec<[_; 4]> = levels.collect();
        for (index, (limiter, key)) in levels.iter().enumerate() {
            for (other, other_key) in levels.iter().take(index) {
                if other.0.id.store != limiter.0.id.store {
                    let remedy = "create both limiters with clones of one store";
                    return failed(other, limiter, "their stores differ", remedy);
                }
                if other.0.id.name == limiter.0.id.name && other_key == key {
                    let why = "they count the same key under the same name";
                    let remedy = "give each limiter its own name, or check the key once with the sum of the costs";
                    return failed(other, limiter, why, remedy);
                }
            }
        }
        Ok(())
    }
}

/// Returns the levels of a check, with what the decision keeps of each.
#[inline]
pub(super) fn parts<'a>(
    levels: &'a mut Levels,
    decision: &'a mut DecisionBuilder,
) -> impl Iterator<Item = (&'a mut Level, &'a mut LevelData, &'a mut Answer)> {
    let (data, answers) = decision.levels_and_answers();
    let parts = levels.iter_mut().zip(data).zip(answers.iter_mut());
    parts.map(|((level, data), answer)| (level, data, answer))
}

/// Checks that are decided together.
pub(super) type Checks<'a> = SmallVec<[Check<'a>; 4]>;

/// Returns the checks of such levels: what the store has to charge.
#[inline]
pub(super) fn checks<'a>(
    levels: &'a Levels,
    data: &'a [LevelData],
    is_such: impl Fn(&Level) -> bool,
) -> Checks<'a> {
    let mut checks = Checks::new();
    for (level, data) in levels.iter().zip(data) {
        if let (true, Some(check)) = (is_such(level), level.check(data)) {
            checks.push(check);
        }
    }
    checks
}
