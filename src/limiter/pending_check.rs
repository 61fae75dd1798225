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
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use smallvec::SmallVec;

use super::groups::{self, GroupsFuture};
use super::in_flight::SlotsOfCheck;
use super::lease::HeldUnits;
use super::limiter::RateLimiter;
use super::line::TooLate;
use crate::decision::{Answer, Answers, Decision, DecisionBuilder, LevelData, QuotaAnswer, Source};
use crate::error::{Error, ErrorKind, polled_after_completion};
use crate::key::IntoKey;
use crate::quota::{Quota, Quotas, ShareId};
use crate::store::{Check, PendingAnswers, SendMark, StoreFuture, Subject};

/// The result of a check.
pub(crate) type Checked = Result<Decision, CheckError>;

/// The error of a check.
#[derive(Debug)]
pub(crate) struct CheckError {
    pub(crate) error: Error,
    /// The indices of the levels that failed. The first level if the check as a whole is wrong.
    pub(crate) failed: Vec<usize>,
}

/// Indices of levels.
pub(super) type Indices = SmallVec<[usize; 4]>;

/// A check that is not decided yet. [Add](Self::add) its levels, then [start](Self::start) it.
///
/// The [limiters](Limiters) of the levels are passed to each function, so that a check that is decided at once clones none.
#[derive(Default)]
pub(crate) struct PendingCheck {
    pub(super) decision: DecisionBuilder,
    pub(super) levels: PendingLevels,
    /// The number of levels.
    pub(super) added: usize,
    ignores_blocks: bool,
    needs_fresh_list: bool,
    /// Whether a cost above a limit is an error, since no wait helps. Otherwise it is refused with the current numbers.
    is_within_limits: bool,
    /// `None` if the check takes no slots.
    pub(super) slots: Option<Box<SlotsOfCheck>>,
    step: Step,
}

/// What is known of the levels. Empty while the store is asked about all of them, by the quotas of their limiters.
#[derive(Default)]
pub(super) struct PendingLevels(Vec<PendingLevel>);

/// What is known of a level, beside its answer.
#[derive(Default)]
pub(super) struct PendingLevel {
    /// The quotas in place of the limiter's own.
    pub(super) quotas: Option<Quotas>,
    pub(super) state: LevelState,
    /// The units that this process held for the level. They return unless the check is admitted.
    pub(super) held: Option<Box<HeldUnits>>,
}

#[derive(Default)]
pub(super) enum LevelState {
    /// The store is asked, together with the other levels in this state.
    #[default]
    ToAsk,
    /// The store is asked after an earlier group.
    InLaterGroup,
    Answered,
    /// The store, or the lookup of the quotas, has failed, and no policy was applied yet.
    Failed(Error),
    /// The level falls back because of this error, and was not decided yet.
    FallsBack(Error),
}

/// The next step of a check.
#[derive(Default)]
enum Step {
    /// To ask the store about all levels.
    #[default]
    AskForAll,
    /// To ask the store for what this process cannot decide.
    AskForSome,
    /// To refuse a key that is blocked or held back.
    Refuse,
    /// To fail, because a cost cannot be charged at once.
    Fail(CheckError),
    /// To wait for the refresh of the block list, before this step.
    AwaitBlocks(StoreFuture<()>, Box<Self>),
    /// To wait for the answers of the store.
    AwaitAnswers(PendingAnswers),
    /// To wait for the groups of its levels, which are asked in turn.
    AwaitGroups(GroupsFuture),
}

/// The limiters of the levels of a check, by the indices of the levels.
pub(crate) trait Limiters {
    fn limiter(&self, level: usize) -> Option<&RateLimiter>;
}

/// The limiter of a check of one level.
impl Limiters for RateLimiter {
    #[inline]
    fn limiter(&self, _: usize) -> Option<&RateLimiter> {
        Some(self)
    }
}

impl CheckError {
    pub(super) fn at(index: usize, error: Error) -> Self {
        let failed = vec![index];
        Self { error, failed }
    }
}

impl PendingCheck {
    #[inline(always)]
    pub(crate) fn new() -> Self {
        Self {
            decision: DecisionBuilder::new(),
            levels: PendingLevels::default(),
            added: 0,
            ignores_blocks: false,
            needs_fresh_list: false,
            is_within_limits: false,
            slots: None,
            step: Step::AskForAll,
        }
    }

    /// Takes slots of the quotas in flight, and holds them if the check is admitted.
    pub(crate) fn take_slots(&mut self, slots: SlotsOfCheck) {
        self.slots = Some(Box::new(slots));
    }

    /// Sets how many slots the next level takes.
    pub(crate) fn add_slots(&mut self, limiter: &RateLimiter, slots: u32) {
        if let Some(of_check) = &mut self.slots {
            of_check.add_level(limiter, slots);
        }
    }

    pub(super) fn slots(&self) -> Option<&SlotsOfCheck> {
        self.slots.as_deref()
    }

    /// Returns what the check has taken, if it takes slots.
    #[inline]
    pub(crate) fn take_permits(&mut self) -> Option<Box<SlotsOfCheck>> {
        self.slots.take()
    }

    /// Checks even keys that are blocked.
    pub(super) fn ignore_blocks(&mut self) {
        self.ignores_blocks = true;
    }

    /// Fails if the cost of a level is above its limit.
    #[inline]
    pub(super) fn stay_within_limits(&mut self) {
        self.is_within_limits = true;
    }

    /// Adds a level. `plan` is the result of the lookup of its quotas, if there was one: they replace the limiter's.
    /// After an error, the level follows its failure policy with the quotas of the limiter. `share` is the one that
    /// the request belongs to, and `place` the index of the level in its layer or call.
    #[inline(always)]
    pub(crate) fn add(
        &mut self,
        limiter: &RateLimiter,
        key: impl IntoKey,
        cost: u32,
        plan: Option<Result<&Quotas, &Error>>,
        share: Option<ShareId>,
        place: usize,
    ) {
        limiter.observe_check();
        let index = self.added;
        self.added += 1;
        if let Some(Ok(quotas)) = plan {
            self.levels.set_quotas(index, quotas.clone());
        }
        let has_failed = matches!(plan, Some(Err(_)));
        if let Some(Err(error)) = plan {
            self.levels
                .set_state(index, LevelState::Failed(error.clone()));
        }
        let quotas = self.levels.get(index).quotas(limiter);
        let share = quotas.known_share(share);
        let of_level = limiter.of_level(quotas, place);
        let level = self
            .decision
            .set_level(index, quotas, cost, share, of_level, key);
        if level.is_none() {
            return;
        }
        self.needs_fresh_list |= limiter.0.holds.needs_fresh_list && !self.ignores_blocks;
        if !quotas.is_usual(cost) {
            let slots = self.slots.as_deref().map(|slots| slots.of_level(index));
            let asked = (quotas, share, cost);
            match is_asked(limiter, asked, slots, has_failed, self.is_within_limits) {
                Ok(true) => {}
                Ok(false) => {
                    self.levels.set_state(index, LevelState::Answered);
                    return self.ask_for_less();
                }
                Err(error) => return self.fail_at(index, error),
            }
        }
        let is_blocked = !self.ignores_blocks && self.refuse_blocked(limiter, index);
        if !is_blocked && (has_failed || limiter.0.lease.is_some()) {
            self.ask_for_less();
        }
    }

    /// Refuses the check if the key of a level is blocked or held back. Returns whether it is.
    #[inline]
    fn refuse_blocked(&mut self, limiter: &RateLimiter, index: usize) -> bool {
        let level = self.levels.get(index);
        let (data, answers) = self.decision.levels_and_answers();
        if let (Some(data), Some(answer)) = (data.get(index), answers.get_mut(index))
            && let Some(subject) = level.subject(limiter, data)
            && let Some((left, source)) = limiter.blocked_for(subject)
        {
            *answer = blocked(subject, data.cost(), left, source);
            self.levels.set_state(index, LevelState::Answered);
            self.refuse();
            return true;
        }
        false
    }

    /// Refuses the check of a call whose turn would come too late.
    #[cold]
    pub(crate) fn refuse_too_late(&mut self, limiters: &impl Limiters, too_late: TooLate) {
        let TooLate { level, wait } = too_late;
        if !self.levels.get(level).is_to_ask() {
            // The key is blocked or held back.
            return self.refuse();
        }
        let pending = self.levels.get(level);
        let (data, answers) = self.decision.levels_and_answers();
        if let (Some(data), Some(answer)) = (data.get(level), answers.get_mut(level))
            && let Some(limiter) = limiters.limiter(level)
            && let Some(subject) = pending.subject(limiter, data)
        {
            // 0 would be no wait.
            let wait = wait.max(Duration::from_millis(1));
            *answer = blocked(subject, data.cost(), wait, Source::RefusalCache);
            self.levels.set_state(level, LevelState::Answered);
            self.refuse();
        }
    }

    /// Refuses the check if the key of a level is in the block list meanwhile.
    #[cold]
    fn refuse_blocked_meanwhile(&mut self, limiters: &impl Limiters) {
        for index in 0..self.added {
            if let Some(limiter) = limiters.limiter(index)
                && !matches!(self.levels.get(index).state, LevelState::Answered)
            {
                self.refuse_blocked(limiter, index);
            }
        }
    }

    #[inline(never)]
    fn ask_for_less(&mut self) {
        if matches!(self.step, Step::AskForAll) {
            self.step = Step::AskForSome;
        }
    }

    #[cold]
    fn refuse(&mut self) {
        if !matches!(self.step, Step::Fail(_)) {
            self.step = Step::Refuse;
        }
    }

    #[cold]
    fn fail_at(&mut self, index: usize, error: Error) {
        if !matches!(self.step, Step::Fail(_)) {
            self.step = Step::Fail(CheckError::at(index, error));
        }
    }

    /// Starts the check. While it is pending, call [`poll`](Self::poll).
    #[inline(always)]
    pub(crate) fn start(&mut self, limiters: &impl Limiters) -> Poll<Checked> {
        if self.needs_fresh_list
            && matches!(self.step, Step::AskForAll | Step::AskForSome)
            && let Some(refresh) = self.refreshed_blocks(limiters)
        {
            self.step = Step::AwaitBlocks(refresh, Box::new(mem::take(&mut self.step)));
            return Poll::Pending;
        }
        self.start_asking(limiters)
    }

    #[cold]
    fn refreshed_blocks(&mut self, limiters: &impl Limiters) -> Option<StoreFuture<()>> {
        let (first, level) = (limiters.limiter(0)?, self.decision.levels().first()?);
        let subject = self.levels.get(0).subject(first, level)?;
        first.0.store.refreshed_blocks(subject)
    }

    /// Starts the check against the blocks that this process knows.
    #[inline(always)]
    fn start_asking(&mut self, limiters: &impl Limiters) -> Poll<Checked> {
        let data = self.decision.begin(self.added);
        if data.len() > 1 {
            if let Err(failure) = verify_together(limiters, data) {
                return Poll::Ready(Err(failure));
            }
            if matches!(self.step, Step::AskForAll)
                && groups::are_several(limiters, &self.levels, data)
            {
                self.step = Step::AskForSome;
            }
        }
        match &self.step {
            Step::AskForAll => self.ask(limiters),
            Step::Refuse => Poll::Ready(self.decide(limiters)),
            _ => self.ask_for_some(limiters),
        }
    }

    /// Asks the store for what this process cannot decide: some of the levels or units, or several groups.
    #[cold]
    fn ask_for_some(&mut self, limiters: &impl Limiters) -> Poll<Checked> {
        if let Step::Fail(failure) = mem::take(&mut self.step) {
            return Poll::Ready(Err(failure));
        }
        if let Err(failure) = self.apply_policies(limiters) {
            return Poll::Ready(Err(failure));
        }
        let is_to_ask = self.take_held(limiters);
        let falls_back = self.levels.all(self.added).any(PendingLevel::falls_back);
        // What the store has charged returns if a later step refuses.
        if is_to_ask && (falls_back || self.are_in_groups(limiters)) {
            return self.ask_in_turn(limiters, &mut Context::from_waker(Waker::noop()));
        }
        if falls_back && let Err(failure) = self.fall_back(limiters) {
            return Poll::Ready(Err(failure));
        }
        if !is_to_ask {
            return Poll::Ready(self.conclude(limiters));
        }
        self.ask(limiters)
    }

    /// Asks the store about the levels that it has to decide, and takes in its answers or waits for them.
    #[inline(always)]
    fn ask(&mut self, limiters: &impl Limiters) -> Poll<Checked> {
        let Some(PendingAnswers { future, sent }) = self.ask_store(limiters) else {
            return Poll::Ready(self.conclude(limiters));
        };
        match future.try_ready() {
            Ok(answers) => {
                let mut cx = Context::from_waker(Waker::noop());
                self.finish_or_divide(limiters, &sent, answers, &mut cx)
            }
            Err(future) => {
                self.step = Step::AwaitAnswers(PendingAnswers { future, sent });
                Poll::Pending
            }
        }
    }

    /// Polls a check that was started. Must not be called again after it was ready.
    pub(crate) fn poll(&mut self, limiters: &impl Limiters, cx: &mut Context<'_>) -> Poll<Checked> {
        let (sent, answers) = match &mut self.step {
            Step::AwaitBlocks(refresh, next) => {
                // It logs its errors.
                let _ = ready!(Pin::new(refresh).poll(cx));
                self.step = mem::take(next);
                self.refuse_blocked_meanwhile(limiters);
                return match self.start_asking(limiters) {
                    Poll::Pending => self.poll(limiters, cx),
                    ready @ Poll::Ready(_) => ready,
                };
            }
            Step::AwaitGroups(groups) => {
                let (checked, permits) = ready!(groups.as_mut().poll(cx));
                self.slots = permits;
                return Poll::Ready(checked);
            }
            Step::AwaitAnswers(PendingAnswers { future, sent }) => {
                let answers = ready!(Pin::new(future).poll(cx));
                (mem::take(sent), answers)
            }
            _ => polled_after_completion("check"),
        };
        self.step = Step::default();
        self.finish_or_divide(limiters, &sent, answers, cx)
    }

    /// Decides by the answers of the store, or asks it by groups if it has found out that it divides the keys.
    #[inline(always)]
    fn finish_or_divide(
        &mut self,
        limiters: &impl Limiters,
        sent: &[SendMark],
        answers: Result<Answers, Error>,
        cx: &mut Context<'_>,
    ) -> Poll<Checked> {
        if let Err(error) = &answers
            && self.is_divided(limiters, error)
        {
            return self.ask_in_turn(limiters, cx);
        }
        Poll::Ready(self.finish(limiters, sent, answers))
    }

    /// Takes the units that this process holds. The store is asked for the others. Returns whether there are any.
    fn take_held(&mut self, limiters: &impl Limiters) -> bool {
        let is_alone = self.added == 1;
        // When a slot is free at last, the lease of a unit may have ended.
        let waits_for_slots =
            self.slots.as_ref().is_some_and(|slots| slots.waits()) && self.asks_for_slots(limiters);
        let mut is_to_ask = false;
        for index in 0..self.added {
            let level = self.levels.get(index);
            let Some(limiter) = limiters.limiter(index).filter(|_| level.is_to_ask()) else {
                continue;
            };
            let (data, answers) = self.decision.levels_and_answers();
            let (Some(data), Some(answer)) = (data.get(index), answers.get_mut(index)) else {
                continue;
            };
            let lease = limiter.0.lease.as_ref().filter(|_| !waits_for_slots);
            let (Some(lease), Some(subject)) = (lease, level.subject(limiter, data)) else {
                is_to_ask = true;
                continue;
            };
            let taken = lease.take(subject, data.cost(), answer);
            is_to_ask |= !taken.is_complete;
            if taken.is_nothing() {
                continue;
            }
            // Nothing else can refuse what is complete alone.
            if !(is_alone && taken.is_complete) {
                let held = HeldUnits::new(lease, subject, data.cost(), &taken, answer);
                self.levels.set_held(index, held);
            }
            if taken.is_complete && !is_alone {
                self.levels.set_state(index, LevelState::Answered);
            }
            if !taken.grants.is_empty() {
                self.decision.set_grants(index, taken.grants);
            }
        }
        is_to_ask
    }

    /// Asks the groups of the levels in turn, in a task that goes on if the caller is dropped.
    #[cold]
    fn ask_in_turn(&mut self, limiters: &impl Limiters, cx: &mut Context<'_>) -> Poll<Checked> {
        let groups = groups::ask_in_turn(mem::take(self), limiters);
        self.step = Step::AwaitGroups(groups);
        self.poll(limiters, cx)
    }

    /// Asks the store to decide levels together. `None` if their answers were written.
    #[inline(always)]
    pub(super) fn ask_store(&mut self, limiters: &impl Limiters) -> Option<PendingAnswers> {
        let first = limiters.limiter(0)?;
        let store = &first.0.store;
        if self.slots.is_some() && self.enters_line(limiters) {
            return self.ask_for_slots(limiters);
        }
        let (data, answers) = self.decision.levels_and_answers();
        if let [data] = data {
            // Without a vector.
            let level = self.levels.get(0);
            let check = level.check(first, data).filter(|_| level.is_to_ask())?;
            return store.check(&[check], answers);
        }
        let checks = checks(limiters, &self.levels, data, to_ask);
        if checks.len() == data.len() {
            return store.check(&checks, answers);
        }
        let mut some = Answers::empty(checks.len());
        let pending = store.check(&checks, &mut some);
        drop(checks);
        if pending.is_none() {
            self.set_answers(some, to_ask);
        }
        pending
    }

    /// Returns whether a level to ask takes slots, and notes it with those of the check: others have no line.
    #[cold]
    fn enters_line(&mut self, limiters: &impl Limiters) -> bool {
        let asks_for_slots = self.asks_for_slots(limiters);
        if let Some(slots) = &mut self.slots {
            slots.set_in_line(asks_for_slots);
        }
        asks_for_slots
    }

    fn asks_for_slots(&self, limiters: &impl Limiters) -> bool {
        let mut indices = 0..self.added;
        indices.any(|index| {
            self.levels.get(index).is_to_ask() && self.levels.takes_slots(index, limiters)
        })
    }

    /// Asks the store about levels, some of which take slots. `None` if there is nothing to ask.
    #[cold]
    fn ask_for_slots(&mut self, limiters: &impl Limiters) -> Option<PendingAnswers> {
        let shares = self.shares_of_asked(limiters);
        let checks = checks(limiters, &self.levels, self.decision.levels(), to_ask);
        let is_to_ask = |index: &usize| self.levels.get(*index).is_to_ask();
        let asked: Indices = (0..self.added).filter(is_to_ask).collect();
        let (slots, first) = (self.slots.as_mut()?, limiters.limiter(0)?);
        (!checks.is_empty()).then(|| slots.ask(first, &checks, &asked, shares))
    }

    /// Decides after the store has answered, or has failed.
    fn finish(
        &mut self,
        limiters: &impl Limiters,
        sent: &[SendMark],
        answers: Result<Answers, Error>,
    ) -> Checked {
        match self.answered(limiters, sent, answers, Duration::MAX) {
            Ok(()) => self.conclude(limiters),
            Err(error) => self.fall_back_after(limiters, &error),
        }
    }

    /// Decides by the answers of the store, if there is one for each quota.
    #[inline(always)]
    fn conclude(&mut self, limiters: &impl Limiters) -> Checked {
        match self.decision.decide() {
            Ok(()) => Ok(self.decided(limiters)),
            Err((answers, quotas)) => self.fall_back_after(limiters, &mismatch(answers, quotas)),
        }
    }

    /// Decides by the failure policies.
    #[cold]
    fn fall_back_after(&mut self, limiters: &impl Limiters, error: &Error) -> Checked {
        self.fail(error);
        self.apply_policies(limiters)?;
        self.fall_back(limiters)?;
        self.decide(limiters)
    }

    /// Stores the answers to the levels that were asked, and remembers refusals for at most `max_age`.
    pub(super) fn answered(
        &mut self,
        limiters: &impl Limiters,
        sent: &[SendMark],
        answers: Result<Answers, Error>,
        max_age: Duration,
    ) -> Result<(), Error> {
        let answers = answers?;
        if let (false, Some(first)) = (sent.is_empty(), limiters.limiter(0)) {
            let checks = self.checks(limiters, to_ask);
            // Other processes return units when their lease ends.
            let of_levels = (0..self.added).filter_map(|index| limiters.limiter(index));
            let ages = of_levels.map(RateLimiter::max_refusal_age);
            let max_age = ages.fold(max_age, Duration::min);
            first.0.store.remember(&checks, sent, &answers, max_age);
        }
        self.set_answers(answers, to_ask);
        Ok(())
    }

    /// Sets the answers to such levels, in their order.
    pub(super) fn set_answers(
        &mut self,
        answers: Answers,
        is_such: impl Fn(usize, &PendingLevel) -> bool,
    ) {
        let (_, own) = self.decision.levels_and_answers();
        if self.added == 1 && answers.len() == 1 {
            *own = answers;
            return;
        }
        let levels = self.levels.all(self.added).zip(own.iter_mut()).enumerate();
        let such = levels.filter(|(index, (level, _))| is_such(*index, level));
        for ((_, (_, own)), answer) in such.zip(answers.into_answers()) {
            *own = answer;
        }
    }

    /// Marks the levels that were asked as failed. What this process held for them returns.
    #[cold]
    pub(super) fn fail(&mut self, error: &Error) {
        for (index, level) in self.levels.all_mut(self.added).enumerate() {
            if level.is_to_ask() {
                level.state = LevelState::Failed(error.clone());
                level.held = None;
                self.decision.set_grants(index, Vec::new());
                self.decision.set_answer(index, Answer::default());
            }
        }
    }

    /// Decides by the answers. A level without an answer was not asked.
    pub(super) fn decide(&mut self, limiters: &impl Limiters) -> Checked {
        match self.decision.decide() {
            Ok(()) => Ok(self.decided(limiters)),
            Err((answers, quotas)) => Err(CheckError::at(0, mismatch(answers, quotas))),
        }
    }

    /// Returns the decision. What this process held returns, unless the check is admitted.
    #[inline(always)]
    fn decided(&mut self, limiters: &impl Limiters) -> Decision {
        for index in 0..self.added {
            if let Some(held) = self.levels.take_held(index) {
                if self.decision.are_admitted() {
                    held.keep();
                } else if self.decision.source_at(index) == Source::Lease {
                    self.decision.remove_charge(index);
                }
            }
            if let Some(limiter) = limiters.limiter(index)
                && let Some(on_failure) = &limiter.0.on_failure
            {
                let (outages, source) = (&on_failure.store_outages, self.decision.source_at(index));
                outages.record_decision(&limiter.0.name, source);
            }
        }
        mem::take(&mut self.decision).finish()
    }

    /// Returns the checks of such levels: what the store has to charge.
    pub(super) fn checks<'a>(
        &'a self,
        limiters: &'a impl Limiters,
        is_such: impl Fn(usize, &PendingLevel) -> bool,
    ) -> Checks<'a> {
        checks(limiters, &self.levels, self.decision.levels(), is_such)
    }
}

impl PendingLevels {
    /// Returns a level.
    #[inline]
    pub(super) fn get(&self, index: usize) -> &PendingLevel {
        self.0.get(index).unwrap_or(&PendingLevel::TO_ASK)
    }

    /// Returns whether a level has quotas in flight.
    pub(super) fn takes_slots(&self, index: usize, limiters: &impl Limiters) -> bool {
        let limiter = limiters.limiter(index);
        limiter.is_some_and(|limiter| self.get(index).quotas(limiter).has_slots())
    }

    /// Returns this many levels.
    #[inline]
    pub(super) fn all(&self, levels: usize) -> impl Iterator<Item = &PendingLevel> {
        (0..levels).map(|index| self.get(index))
    }

    /// Returns this many levels.
    pub(super) fn all_mut(&mut self, levels: usize) -> impl Iterator<Item = &mut PendingLevel> {
        if self.0.len() < levels {
            self.0.resize_with(levels, PendingLevel::default);
        }
        self.0.iter_mut().take(levels)
    }

    pub(super) fn set_state(&mut self, index: usize, state: LevelState) {
        if let Some(level) = self.all_mut(index + 1).last() {
            level.state = state;
        }
    }

    pub(super) fn set_quotas(&mut self, index: usize, quotas: Quotas) {
        if let Some(level) = self.all_mut(index + 1).last() {
            level.quotas = Some(quotas);
        }
    }

    fn set_held(&mut self, index: usize, held: HeldUnits) {
        if let Some(level) = self.all_mut(index + 1).last() {
            level.held = Some(Box::new(held));
        }
    }

    #[inline]
    fn take_held(&mut self, index: usize) -> Option<Box<HeldUnits>> {
        self.0.get_mut(index)?.held.take()
    }
}

impl PendingLevel {
    const TO_ASK: Self = Self {
        quotas: None,
        state: LevelState::ToAsk,
        held: None,
    };

    #[inline]
    pub(super) fn quotas<'a>(&'a self, limiter: &'a RateLimiter) -> &'a Quotas {
        self.quotas.as_ref().unwrap_or(&limiter.0.quotas)
    }

    #[inline]
    pub(super) fn is_to_ask(&self) -> bool {
        matches!(self.state, LevelState::ToAsk)
    }

    #[inline]
    pub(super) fn falls_back(&self) -> bool {
        matches!(self.state, LevelState::FallsBack(_))
    }

    /// Returns what the level counts. `None` without a key.
    #[inline]
    fn subject<'a>(&'a self, limiter: &'a RateLimiter, data: &'a LevelData) -> Option<Subject<'a>> {
        Some(Subject {
            share: data.share(),
            lease_micros: data.lease(),
            ..Subject::new(&limiter.0.scope, data.key()?, self.quotas(limiter))
        })
    }

    /// Returns the check of this level: what the store has to charge.
    #[inline]
    pub(super) fn check<'a>(
        &'a self,
        limiter: &'a RateLimiter,
        data: &'a LevelData,
    ) -> Option<Check<'a>> {
        let held = self.held.as_ref().map_or(0, |held| held.units());
        let subject = self.subject(limiter, data)?;
        Some(subject.check(data.cost().saturating_sub(held)))
    }
}

#[inline]
fn to_ask(_: usize, level: &PendingLevel) -> bool {
    level.is_to_ask()
}

/// Checks that are decided together.
pub(super) type Checks<'a> = SmallVec<[Check<'a>; 4]>;

/// Returns the checks of such levels: what the store has to charge.
#[inline]
fn checks<'a>(
    limiters: &'a impl Limiters,
    levels: &'a PendingLevels,
    data: &'a [LevelData],
    is_such: impl Fn(usize, &PendingLevel) -> bool,
) -> Checks<'a> {
    let mut checks = Checks::new();
    for (index, data) in data.iter().enumerate() {
        let level = levels.get(index);
        if is_such(index, level) {
            let limiter = limiters.limiter(index);
            checks.extend(limiter.and_then(|limiter| level.check(limiter, data)));
        }
    }
    checks
}

/// Returns whether the store is asked about a level whose cost is not [usual](Quotas::is_usual). Without quotas, it is not.
///
/// # Errors
///
/// Fails if no store can charge the cost, or if the slots cannot be held. An error that says that a cost or the slots are
/// above a limit is only for checks that want it: for others, the store refuses them.
#[cold]
fn is_asked(
    limiter: &RateLimiter,
    (quotas, share, cost): (&Quotas, Option<ShareId>, u32),
    slots: Option<u32>,
    has_failed: bool,
    is_within_limits: bool,
) -> Result<bool, Error> {
    if let (Some(lease), Some(what)) = (&limiter.0.lease, quotas.not_leased()) {
        return Err(Error::not_leased(&limiter.0.name, what, lease.duration()));
    }
    if let Some(limit) = quotas.min_slots(share) {
        match slots {
            None if cost > 0 => return Err(Error::holds_nothing(&limiter.0.name)),
            Some(slots) if slots > limit && is_within_limits => {
                return Err(Error::slots_exceed_limit(
                    slots,
                    &quotas.lowest_bound(true, share),
                ));
            }
            _ => {}
        }
    }
    let is_too_large =
        |quota: &Quota| !quota.is_soft() && cost > quota.algorithm().facts().max_cost;
    match quotas.min_limit(share) {
        None => Ok(has_failed),
        Some(limit) if cost > limit && is_within_limits => Err(Error::cost_exceeds_limit(
            cost,
            &quotas.lowest_bound(false, share),
        )),
        // A refusal would tell a wait, but to wait does not help.
        Some(limit) if cost <= limit && !has_failed && quotas.iter().any(is_too_large) => {
            Err(Error::cost_too_large(cost, quotas.max_cost()))
        }
        Some(_) => Ok(true),
    }
}

/// Fails if the store cannot decide the levels together.
fn verify_together(limiters: &impl Limiters, levels: &[LevelData]) -> Result<(), CheckError> {
    let failed = |one: &RateLimiter, other: &RateLimiter, why, remedy| {
        let error = Error::levels(&one.0.name, &other.0.name, why, remedy);
        Err(CheckError::at(0, error))
    };
    let levels = levels.iter().enumerate();
    let levels = levels.filter_map(|(index, level)| Some((limiters.limiter(index)?, level.key())));
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

/// Returns whether the cost of a request of this share is above a limit, so that no wait helps.
pub(super) fn exceeds_limit(quotas: &Quotas, share: Option<ShareId>, cost: u32) -> bool {
    quotas.min_limit(share).is_some_and(|limit| cost > limit)
}

/// Refuses a check of a key that is blocked, held back, or waited for by others.
///
/// A cost above a limit has no wait: it does not pass after the block either.
#[cold]
fn blocked(subject: Subject<'_>, cost: u32, left: Duration, source: Source) -> Answer {
    let wait = (!exceeds_limit(subject.quotas, subject.share, cost)).then_some(left);
    let refused = |quota: &Quota| QuotaAnswer::refused(quota.limit(), wait, left);
    Answer::new(source, subject.quotas.iter().map(refused))
}

/// Returns the error for a store whose answer has another number of quotas than the check.
#[cold]
pub(super) fn mismatch(answers: usize, quotas: usize) -> Error {
    Error::new(
        ErrorKind::InvalidReply,
        format!("the store answered for {answers} of {quotas} quotas"),
    )
}
