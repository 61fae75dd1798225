//! A check of one level or several, from its start to its decision.
//!
//! 1. A level is a limiter, a key, a cost and quotas. All levels have the same store, and no two have the same limiter
//!    and key.
//! 2. The check is admitted if every level admits its cost. Then every level is charged. Otherwise, none is.
//! 3. A level without quotas admits. It is not counted.
//! 4. If a key is blocked, paused, or remembered as refused, the store is not asked.
//! 5. The store decides all levels in one atomic step, if their keys are in one [group](crate::Store::atomic_group).
//!    Otherwise the groups are asked in turn, by `groups.rs`.
//! 6. If the store fails, `failure.rs` applies the policy of each level.
//! 7. The waits and counts of a level that was not asked are unknown, so the reported wait is a lower bound.

use std::future::{self, Future};
use std::mem;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use smallvec::SmallVec;

use super::asked_level::{AskedLevel, AskedLevels, CheckKind, LevelState, NextStep};
use super::checked::{CheckError, Checked, DecidedCheck, FailedCheck};
use super::decision::{Decision, Records};
use super::in_flight::{REPEATED, SlotsOfCheck};
use super::line::{Place, TooLate, Want, WhyTooLate};
use crate::decision::{Answer, Answers, Source};
use crate::error::{Error, ErrorKind, polled_after_completion};
use crate::store::{FutureState, SendMarks, StoreFuture, WaitingAnswer};
use crate::telemetry::{CheckSpan, OutcomeLabel, PermitMeter};

/// A check that is not decided yet. To [start](Self::start) it takes it: a repeat is a new check, by what the attempt has
/// brought.
pub(crate) struct PendingCheck {
    pub(crate) levels: AskedLevels,
    pub(super) kind: CheckKind,
    /// `None` if the check takes no slots.
    pub(super) slots: Option<Box<SlotsOfCheck>>,
}

/// A check that was started. Its own future, so that it is not copied into others.
#[must_use = "what was asked may be charged"]
pub(crate) enum StartedCheck {
    /// `None` after completion.
    Ended(Option<Checked>),
    /// It waits for the answer of the store to all levels that it was asked about.
    WaitsForAnswers(PendingCheck, AskedStore),
    /// It waits for a refresh of the block list, for slots in flight, or for several groups of levels.
    Waits(Pin<Box<dyn Future<Output = Checked> + Send>>),
}

/// The event that an attempt waits for.
enum AwaitedEvent {
    Answers(AskedStore),
    /// A refresh of the block list, before this step.
    Refresh(NextStep, StoreFuture<()>),
    Slots,
    Groups,
}

/// A question that the store did not answer at once, about levels that it decides together.
pub(crate) struct AskedStore {
    answers: WaitingAnswer<Answers>,
    /// Empty if no refusal is remembered.
    sent: SendMarks,
    span: CheckSpan,
}

impl PendingCheck {
    #[inline]
    pub(crate) fn new(mut levels: AskedLevels) -> Self {
        levels.iter_mut().for_each(AskedLevel::fit_cost);
        Self {
            levels,
            kind: CheckKind::Charge,
            slots: None,
        }
    }

    #[inline]
    pub(super) fn within_limits(levels: AskedLevels) -> Self {
        let mut check = Self::new(levels);
        check.kind = CheckKind::ChargeWithinLimits;
        check
    }

    pub(super) fn look(level: AskedLevel) -> Self {
        let mut check = Self::new(AskedLevels::from_buf([level]));
        check.kind = CheckKind::Look;
        check
    }

    #[inline]
    pub(crate) fn has_slots(&self) -> bool {
        self.levels.iter().any(AskedLevel::takes_slots)
    }

    pub(crate) fn wants(&self) -> impl Iterator<Item = Want> {
        self.levels.iter().map(AskedLevel::want)
    }

    #[cold]
    pub(crate) fn permit_meters(&self) -> impl Iterator<Item = PermitMeter> {
        self.levels
            .iter()
            .filter(|level| level.takes_slots())
            .map(|level| level.limiter().permits().meter.clone())
    }

    pub(crate) fn place(&self, max_wait: Duration) -> Place {
        let max_calls = self
            .levels
            .iter()
            .filter_map(|level| level.limiter().0.line)
            .min();
        // A refresh of the block list, and a call for each group of levels.
        let calls = u32::try_from(self.levels.len()).map_or(u32::MAX, |calls| calls + 1);
        let deadline = self
            .levels
            .first()
            .map_or(Duration::ZERO, |level| level.limiter().0.store.deadline());
        Place::new(max_wait, max_calls, deadline.saturating_mul(calls))
    }

    /// Decides the check as far as that is possible without waiting. A store in memory decides it at once. If the future is
    /// dropped before its end, the store may or may not have charged it, and what this process held returns. A check of several
    /// groups goes on in its task.
    #[inline]
    pub(crate) fn start(mut self) -> StartedCheck {
        match self.attempt() {
            Ok(None) => StartedCheck::Ended(Some(Ok(self.decide()))),
            Ok(Some(awaited)) => self.wait_for(awaited),
            Err(failure) => StartedCheck::Ended(Some(Err(self.fail_with(failure)))),
        }
    }

    /// Begins an attempt. `None` if the levels have their answers.
    #[inline]
    fn attempt(&mut self) -> Result<Option<AwaitedEvent>, CheckError> {
        let next = self.begin()?;
        if next != NextStep::Refuse
            && let Some(refresh) = self.refreshed_blocks()
        {
            return Ok(Some(AwaitedEvent::Refresh(next, refresh)));
        }
        self.take(next)
    }

    /// Takes a step of an attempt. `None` if the levels have their answers.
    #[inline]
    fn take(&mut self, step: NextStep) -> Result<Option<AwaitedEvent>, CheckError> {
        match step {
            NextStep::AskStore => {}
            NextStep::Refuse => return Ok(None),
            NextStep::LookHere => {
                self.apply_policies()?;
                self.take_leases();
                if !self.levels.iter().any(AskedLevel::is_to_ask) {
                    self.fall_back_alone()?;
                    return Ok(None);
                }
            }
        }
        if self.levels.len() > 1 && self.takes_turns() {
            return Ok(Some(AwaitedEvent::Groups));
        }
        if self.asks_for_slots() {
            return Ok(Some(AwaitedEvent::Slots));
        }
        let mut sent = SendMarks::new();
        match self.ask_store(&mut sent).0 {
            FutureState::Waits(answers) => {
                let span = self.span();
                return Ok(Some(AwaitedEvent::Answers(AskedStore {
                    answers,
                    sent,
                    span,
                })));
            }
            FutureState::Ready(Some(Ok(ref mut answers))) => self.take_in_all(&sent, answers)?,
            FutureState::Ready(Some(Err(error))) if self.is_divided(&error) => {
                return Ok(Some(AwaitedEvent::Groups));
            }
            FutureState::Ready(Some(Err(error))) => self.fall_back_after(&error)?,
            FutureState::Ready(None) => polled_after_completion("StoreFuture"),
        }
        Ok(None)
    }

    fn wait_for(self, awaited: AwaitedEvent) -> StartedCheck {
        match awaited {
            AwaitedEvent::Answers(asked) => StartedCheck::WaitsForAnswers(self, asked),
            AwaitedEvent::Refresh(next, refresh) => {
                StartedCheck::Waits(Box::pin(self.take_after_refresh(next, refresh)))
            }
            AwaitedEvent::Slots => {
                let span = self.span();
                StartedCheck::Waits(Box::pin(in_span(span, self.take_slots())))
            }
            AwaitedEvent::Groups => {
                let span = self.span();
                StartedCheck::Waits(Box::pin(in_span(span, self.ask_in_turn())))
            }
        }
    }

    #[inline]
    fn span(&self) -> CheckSpan {
        let limiter = self.levels.first().map(AskedLevel::limiter);
        CheckSpan::new(limiter.map_or("", |limiter| &limiter.0.facts.name))
    }

    async fn take_after_refresh(mut self, next: NextStep, refresh: StoreFuture<()>) -> Checked {
        // It logs its errors.
        let _ = refresh.await;
        let next = if self.refuse_blocked_meanwhile() {
            NextStep::Refuse
        } else {
            next
        };
        match self.take(next) {
            Ok(None) => Ok(self.decide()),
            Ok(Some(awaited)) => self.wait_for(awaited).await,
            Err(failure) => Err(self.fail_with(failure)),
        }
    }

    async fn take_slots(mut self) -> Checked {
        let ended = match self.ask(Duration::MAX).await {
            Ok(_) => Ok(()),
            Err(error) if self.is_divided(&error) => return self.ask_in_turn().await,
            Err(error) => self.fall_back_after(&error),
        };
        self.ended(ended)
    }

    #[inline]
    fn take_in_all(&mut self, sent: &SendMarks, answers: &mut Answers) -> Result<(), CheckError> {
        match self.take_in_sent(sent, answers, Duration::MAX) {
            Ok(_) => Ok(()),
            Err(error) => self.fall_back_after(&error),
        }
    }

    #[inline]
    pub(super) fn ended(self, ended: Result<(), CheckError>) -> Checked {
        match ended {
            Ok(()) => Ok(self.decide()),
            Err(failure) => Err(self.fail_with(failure)),
        }
    }

    /// Refuses an attempt of a call that waits no longer, without asking the store. Fails if the check is misuse.
    #[cold]
    pub(super) fn refuse(mut self, too_late: TooLate) -> Checked {
        if let Err(misuse) = self.begin() {
            return Err(self.fail_with(misuse));
        }
        for level in &mut self.levels {
            if level.want().line == too_late.line {
                level.refuse_for(too_late.wait);
            }
        }
        // Whatever the levels have answered meanwhile.
        Ok(self.end(false, Some(too_late.why)))
    }

    /// Fails if the check is misuse, or if a cost can never be charged at once.
    #[inline]
    fn begin(&mut self) -> Result<NextStep, CheckError> {
        if self.levels.len() > 1 {
            self.verify_together()?;
        }
        let takes_slots = self.slots.is_some();
        let mut next = NextStep::AskStore;
        for level in &mut self.levels {
            let place = level.record().place;
            let step = level
                .begin(self.kind, takes_slots)
                .map_err(|error| CheckError::at(place, error))?;
            next = next.max(step);
        }
        Ok(next)
    }

    #[inline]
    fn refreshed_blocks(&self) -> Option<StoreFuture<()>> {
        let level = self
            .levels
            .iter()
            .find(|level| level.limiter().0.pauses.needs_fresh_list())?;
        if self.kind == CheckKind::Look {
            return None;
        }
        level.limiter().0.store.refreshed_blocks(level.subject())
    }

    #[cold]
    fn refuse_blocked_meanwhile(&mut self) -> bool {
        let mut are_blocked = false;
        for level in &mut self.levels {
            if !matches!(level.state, LevelState::Answered) {
                are_blocked |= level.refuse_blocked();
            }
        }
        are_blocked
    }

    /// Returns whether levels are decided one after the other: what was charged returns if a later step refuses.
    fn takes_turns(&self) -> bool {
        self.levels.iter().any(AskedLevel::falls_back) || self.are_in_groups()
    }

    /// Returns whether the store has failed because it has found out that the levels to ask are in several groups. It has
    /// decided nothing then.
    pub(super) fn is_divided(&self, error: &Error) -> bool {
        error.kind() == ErrorKind::Unsupported && self.are_in_groups()
    }

    fn take_leases(&mut self) {
        let is_alone = self.levels.len() == 1;
        for level in &mut self.levels {
            level.take_lease(is_alone);
        }
    }

    /// Asks the store to decide levels together, and remembers its refusals for at most `max_age`. Returns whether it admits
    /// the levels.
    pub(super) async fn ask(&mut self, max_age: Duration) -> Result<bool, Error> {
        if self.asks_for_slots() {
            let mut answers = self.ask_for_slots().await?;
            let are_admitted = answers.are_admitted();
            return self.take_in(&mut answers, are_admitted);
        }
        let mut sent = SendMarks::new();
        let mut answers = self.ask_store(&mut sent).await?;
        self.take_in_sent(&sent, &mut answers, max_age)
    }

    #[inline]
    fn take_in_sent(
        &mut self,
        sent: &SendMarks,
        answers: &mut Answers,
        max_age: Duration,
    ) -> Result<bool, Error> {
        let are_admitted = answers.are_admitted();
        if !are_admitted {
            self.estimate_waits(answers);
        }
        if !sent.is_empty() {
            if are_admitted {
                self.forget_outdated_refusals();
            } else {
                self.remember(sent, answers, max_age);
            }
        }
        self.take_in(answers, are_admitted)
    }

    #[inline]
    fn ask_store(&self, sent: &mut SendMarks) -> StoreFuture {
        match &self.levels[..] {
            // Without a vector: a check is large.
            [level] => level.limiter().0.store.ask(&[level.check()], sent),
            [first, ..] => {
                let checks: Vec<_> = asked(&self.levels).map(AskedLevel::check).collect();
                first.limiter().0.store.ask(&checks, sent)
            }
            [] => StoreFuture::ready(Ok(Answers::default())),
        }
    }

    #[inline]
    fn forget_outdated_refusals(&self) {
        for level in asked(&self.levels) {
            let store = &level.limiter().0.store;
            store.forget_outdated_refusals(level.check());
        }
    }

    fn remember(&self, sent: &SendMarks, answers: &Answers, max_age: Duration) {
        let Some(first) = self.levels.first() else {
            return;
        };
        // Other processes return units when their lease ends.
        let shortest_lease = self
            .levels
            .iter()
            .filter_map(|level| level.limiter().0.lease.as_ref())
            .map(|lease| lease.duration)
            .min();
        let max_age = shortest_lease.map_or(max_age, |lease| max_age.min(lease));
        let has_held = self.levels.iter().any(|level| level.quotas().has_held());
        let max_age = if has_held {
            max_age.min(REPEATED)
        } else {
            max_age
        };
        let checks: SmallVec<[_; 1]> = asked(&self.levels).map(AskedLevel::check).collect();
        let store = &first.limiter().0.store;
        store.remember(&checks, sent, answers, max_age);
    }

    #[inline]
    fn estimate_waits(&self, answers: &mut Answers) {
        for (level, answer) in asked(&self.levels).zip(answers.iter_mut()) {
            if level.quotas().has_held() && !answer.is_admitted() {
                let estimate = level.limiter().suggested_slot_wait();
                answer.estimate_waits(level.quotas(), level.record().cost, estimate);
            }
        }
    }

    #[inline]
    fn asks_for_slots(&self) -> bool {
        self.slots.is_some() && asked(&self.levels).any(AskedLevel::takes_slots)
    }

    #[inline]
    fn take_in(&mut self, answers: &mut Answers, are_admitted: bool) -> Result<bool, Error> {
        let mut answers = answers.iter_mut();
        for level in self.levels.iter_mut().filter(|level| level.is_to_ask()) {
            match answers.next() {
                Some(answer) => level.take_in(answer, are_admitted)?,
                None => level.take_in(&mut Answer::default(), are_admitted)?,
            }
        }
        Ok(are_admitted)
    }

    #[cold]
    fn ask_for_slots(
        &mut self,
    ) -> Pin<Box<dyn Future<Output = Result<Answers, Error>> + Send + '_>> {
        let Self { levels, slots, .. } = self;
        let levels: Vec<_> = asked(levels).collect();
        match (slots, levels.first()) {
            (Some(slots), Some(first)) => Box::pin(slots.ask(first.limiter(), &levels)),
            _ => Box::pin(future::ready(Ok(Answers::default()))),
        }
    }

    #[cold]
    fn fall_back_after(&mut self, error: &Error) -> Result<(), CheckError> {
        self.fail(error);
        self.apply_policies()?;
        self.fall_back_alone()
    }

    /// Decides an attempt as if the store had failed with this error, without asking it.
    pub(super) fn decide_without_store(mut self, error: &Error) -> Checked {
        let ended = match self.begin() {
            Ok(NextStep::Refuse) => Ok(()),
            Ok(NextStep::AskStore | NextStep::LookHere) => self.fall_back_after(error),
            Err(misuse) => Err(misuse),
        };
        self.ended(ended)
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

    #[cold]
    pub(super) fn fail(&mut self, error: &Error) {
        for level in self.levels.iter_mut().filter(|level| level.is_to_ask()) {
            level.fail(error);
        }
    }

    pub(super) fn refunds(&mut self) -> Vec<StoreFuture<()>> {
        self.levels
            .iter_mut()
            .filter_map(AskedLevel::withdraw)
            .collect()
    }

    /// Decides by the answers. A level that was not asked admits nothing.
    #[inline]
    pub(super) fn decide(mut self) -> DecidedCheck {
        if self.kind == CheckKind::Look {
            self.levels.iter_mut().for_each(AskedLevel::look_for_unit);
        }
        let is_admitted = self.levels.iter().all(|level| level.owned().is_admitted());
        self.end(is_admitted, None)
    }

    /// Ends an attempt. What this process held returns, unless it is admitted.
    #[inline]
    fn end(self, is_admitted: bool, end_of_wait: Option<WhyTooLate>) -> DecidedCheck {
        let Self {
            levels,
            kind,
            slots,
        } = self;
        // Most checks have one level.
        let records = match levels.into_inner() {
            Ok([level]) => Records::from_buf([level.end(is_admitted)]),
            Err(levels) => levels
                .into_iter()
                .map(|level| level.end(is_admitted))
                .collect(),
        };
        DecidedCheck {
            decision: Decision::from_records(records, is_admitted),
            kind,
            // Those of other groups return.
            slots: slots.filter(|_| is_admitted),
            end_of_wait,
        }
    }

    #[cold]
    pub(super) fn fail_with(self, failure: CheckError) -> Box<FailedCheck> {
        let Self { levels, kind, .. } = self;
        let CheckError { error, failed } = failure;
        Box::new(FailedCheck {
            error,
            failed,
            levels,
            kind,
        })
    }

    pub(super) fn asked_anew(&self) -> Self {
        Self {
            levels: self.levels.iter().map(AskedLevel::asked_anew).collect(),
            kind: self.kind,
            slots: None,
        }
    }

    #[cold]
    pub(super) fn failure(&self, error: Error) -> CheckError {
        let first_place = self.levels.first().map_or(0, |level| level.record().place);
        CheckError::at(first_place, error)
    }

    pub(super) fn are_in_groups(&self) -> bool {
        let mut groups = asked(&self.levels).map(AskedLevel::group);
        let first = groups.next();
        groups.any(|group| Some(group) != first)
    }

    pub(super) fn verify_together(&self) -> Result<(), CheckError> {
        for (index, level) in self.levels.iter().enumerate() {
            for other in self.levels.iter().take(index) {
                verify_pair(other, level).map_err(|error| self.failure(error))?;
            }
        }
        Ok(())
    }
}

impl Future for StartedCheck {
    type Output = Checked;

    #[inline]
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Checked> {
        let started = &mut *self;
        let answers = match started {
            Self::Ended(checked) => match checked.take() {
                Some(checked) => return Poll::Ready(checked),
                None => polled_after_completion("StartedCheck"),
            },
            Self::Waits(check) => return check.as_mut().poll(cx),
            Self::WaitsForAnswers(_, asked) => ready!(Pin::new(&mut asked.answers).poll(cx)),
        };
        let Self::WaitsForAnswers(mut check, asked) = mem::replace(started, Self::Ended(None))
        else {
            polled_after_completion("StartedCheck")
        };
        let ended = match answers {
            Ok(mut answers) => check.take_in_all(&asked.sent, &mut answers),
            Err(error) if check.is_divided(&error) => {
                *started = Self::Waits(Box::pin(in_span(asked.span, check.ask_in_turn())));
                return self.poll(cx);
            }
            Err(error) => check.fall_back_after(&error),
        };
        let checked = check.ended(ended);
        record(&asked.span, &checked);
        Poll::Ready(checked)
    }
}

async fn in_span(span: CheckSpan, check: impl Future<Output = Checked> + Send) -> Checked {
    let checked = check.await;
    record(&span, &checked);
    checked
}

#[inline]
fn record(span: &CheckSpan, checked: &Checked) {
    if span.is_disabled() {
        return;
    }
    let Ok(DecidedCheck { decision, .. }) = checked else {
        span.record(OutcomeLabel::Failed, Source::None, "");
        return;
    };
    let outcome = if decision.is_allowed() {
        OutcomeLabel::Admitted
    } else {
        OutcomeLabel::Refused
    };
    let limiter = decision.limiters().next().map(|(limiter, _)| limiter);
    let store = limiter.map_or("", |limiter| limiter.0.store.name());
    span.record(outcome, decision.source(), store);
}

/// Fails if the limiters of these levels have several stores.
pub(super) fn verify_store(one: &AskedLevel, other: &AskedLevel) -> Result<(), Error> {
    let facts = &one.limiter().0.facts;
    let others = &other.limiter().0.facts;
    if facts.id.store == others.id.store {
        return Ok(());
    }
    Err(Error::levels(
        &facts.name,
        &others.name,
        "their stores differ",
        "create both limiters with clones of one store",
    ))
}

/// Fails if the store cannot decide these levels together.
fn verify_pair(one: &AskedLevel, other: &AskedLevel) -> Result<(), Error> {
    verify_store(one, other)?;
    let facts = &one.limiter().0.facts;
    let others = &other.limiter().0.facts;
    if facts.id == others.id && one.record().key == other.record().key {
        return Err(Error::levels(
            &facts.name,
            &others.name,
            "they count the same key under the same name",
            "give each limiter its own name, or check the key once with the sum of the costs",
        ));
    }
    Ok(())
}

pub(super) fn asked(levels: &[AskedLevel]) -> impl Iterator<Item = &AskedLevel> {
    levels.iter().filter(|level| level.is_to_ask())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::RateLimiter;
    use crate::quota::Quota;
    use crate::store::MemoryStore;

    /// What is known of the level that has no room.
    #[derive(Clone, Copy, Debug)]
    enum Known {
        Nothing,
        Blocked,
        PlanFailed,
    }

    #[tokio::test]
    async fn an_attempt_that_is_too_late_is_refused_whatever_is_known_of_its_levels() {
        let store = MemoryStore::new();
        let hour = Duration::from_secs(3_600);
        let limiters = [
            RateLimiter::new(store.clone(), Vec::new()).name("free"),
            RateLimiter::new(store.clone(), Quota::per_hour(9)).name("rate"),
            RateLimiter::new(store, Quota::in_flight(1)).name("slots"),
        ];
        for (key, known) in [Known::Nothing, Known::Blocked, Known::PlanFailed]
            .into_iter()
            .enumerate()
        {
            for named in 0..limiters.len() {
                let key = u64::try_from(10 * key + named).unwrap();
                let levels = limiters
                    .iter()
                    .map(|limiter| AskedLevel::new(limiter, key, 1));
                let mut check = PendingCheck::new(levels.collect());
                check.slots = Some(Box::new(SlotsOfCheck::new(None)));
                match known {
                    Known::Nothing => {}
                    Known::Blocked => {
                        let admin = limiters[named].admin();
                        admin.block(key, hour).await.unwrap();
                    }
                    Known::PlanFailed => {
                        let error = Error::new(ErrorKind::QuotasUnknown, "no database");
                        check.levels[named].set_unknown(error);
                    }
                }
                let line = check.levels[named].want().line;
                let wait = Duration::from_secs(5);
                let why = WhyTooLate::WaitOver;
                let Ok(mut decided) = check.refuse(TooLate { line, wait, why }) else {
                    panic!("{known:?}, {named}");
                };
                assert!(decided.take_slots().is_empty());
                let refused = decided.decision;
                assert!(!refused.is_allowed(), "{known:?}, {named}");
                let reported = refused.reported_level().map(|level| level.limiter());
                if named > 0 {
                    assert_eq!(reported, Some(&*limiters[named].0.facts.name));
                    assert!(refused.retry_after() >= Some(wait), "{known:?}, {named}");
                }
            }
        }
    }
}
