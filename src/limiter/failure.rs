//! Checks while the store fails: the failure policies, and the counts of this process.

use std::time::Duration;

use super::failure_policy::{FailureAction, FailureHandler};
use super::limiter::RateLimiter;
use super::pending_check::{
    CheckError, Indices, LevelState, Limiters, PendingCheck, PendingLevel, exceeds_limit, mismatch,
};
use crate::decision::{Answer, Answers, LevelData, QuotaAnswer, Source};
use crate::error::{Error, ErrorKind};
use crate::quota::Quotas;
use crate::store::Check;

impl RateLimiter {
    /// Records a successful lookup of quotas, which may end an outage in the log.
    pub(crate) fn quotas_found(&self) {
        if let Some(on_failure) = &self.0.on_failure {
            on_failure.lookup_outages.record_success(&self.0.name);
        }
    }

    /// Logs that the store or the lookup of the quotas failed, and what the policy does.
    fn record_failure(&self, error: &Error, action: FailureAction) {
        if let Some(on_failure) = &self.0.on_failure {
            let outages = on_failure.outages_of(error);
            outages.record_failure(&self.0.name, action.text(), error);
        }
    }

    /// Returns what the policy does about an error. Without a policy, the caller gets it.
    fn action_on(&self, error: &Error) -> FailureAction {
        let on_failure = self.0.on_failure.as_deref();
        let on_failure = on_failure.filter(|_| error.is_store_failure());
        on_failure.map_or(FailureAction::Closed, |on_failure| on_failure.policy.action)
    }
}

impl PendingCheck {
    /// Applies the failure policies of levels that have failed.
    ///
    /// # Errors
    ///
    /// Fails if one of them has no policy or is closed.
    #[cold]
    pub(super) fn apply_policies(&mut self, limiters: &impl Limiters) -> Result<(), CheckError> {
        let mut closed = Closed::default();
        for (index, level) in self.levels.all_mut(self.added).enumerate() {
            let (LevelState::Failed(error), Some(limiter)) =
                (&level.state, limiters.limiter(index))
            else {
                continue;
            };
            let (error, action) = (error.clone(), limiter.action_on(error));
            level.state = match action {
                FailureAction::Open => {
                    limiter.record_failure(&error, action);
                    let check = self.decision.levels().get(index);
                    let check = check.and_then(|data| level.check(limiter, data));
                    if let (Some(slots), Some(check)) = (&mut self.slots, check) {
                        let admit = |checks: &[Check<'_>]| Some(Answers::empty(checks.len()));
                        slots.hold(limiter, &[check], &[index], admit);
                    }
                    let unused = QuotaAnswer::admitted(0, Duration::ZERO);
                    let unused = level.quotas(limiter).iter().map(|_| unused);
                    let answer = Answer::new(Source::None, unused);
                    self.decision.set_answer(index, answer);
                    LevelState::Answered
                }
                // It logs the failure when it is decided.
                FailureAction::FallBack if !limiter.0.store.is_in_process() => {
                    LevelState::FallsBack(error)
                }
                // Such a store fails only if it is full. If the lookup of quotas has failed, the store still works.
                FailureAction::FallBack if error.kind() == ErrorKind::QuotasUnknown => {
                    limiter.record_failure(&error, action);
                    LevelState::ToAsk
                }
                FailureAction::FallBack | FailureAction::Closed => {
                    closed.add(index, limiter, &error);
                    continue;
                }
            };
        }
        closed.0.map_or(Ok(()), Err)
    }

    /// Decides the levels that fall back together, by the counts of this process. Returns whether they are
    /// admitted.
    ///
    /// # Errors
    ///
    /// Fails if this process cannot decide.
    #[cold]
    pub(super) fn fall_back(&mut self, limiters: &impl Limiters) -> Result<bool, CheckError> {
        self.apply_shares(limiters)?;
        let mut charged = Indices::new();
        loop {
            let mut falling_back = self.falling_back();
            let Some(limiter) = falling_back
                .first()
                .and_then(|index| limiters.limiter(*index))
            else {
                return Ok(true);
            };
            // Limiters of a store without a circuit breaker of its own have counts of their own.
            let first = &limiter.0.store;
            falling_back.retain(|index| {
                let other = limiters.limiter(*index);
                other.is_some_and(|other| other.0.store.has_same_fallback(first))
            });
            let together = falling_back;
            let is_decided = |index, _: &PendingLevel| together.contains(&index);
            let mut slots = self.slots.take();
            let checks = self.checks(limiters, is_decided);
            let answers = match &mut slots {
                Some(slots) => slots.fall_back(limiter, &checks, &together),
                None => first.check_fallback(&checks),
            };
            drop(checks);
            self.slots = slots;
            let Some(answers) = answers else {
                // Fallback counts refund at once.
                drop(self.refunds(limiters, &charged));
                return Err(self.cannot_fall_back(limiters, &together));
            };
            let are_admitted = answers.are_admitted();
            self.set_answers(answers, is_decided);
            for index in &together {
                if let (LevelState::FallsBack(error), Some(limiter)) =
                    (&self.levels.get(*index).state, limiters.limiter(*index))
                {
                    limiter.record_failure(error, FailureAction::FallBack);
                    self.levels.set_state(*index, LevelState::Answered);
                }
            }
            if !are_admitted {
                drop(self.refunds(limiters, &charged));
                return Ok(false);
            }
            charged.extend(together);
        }
    }

    /// Returns the levels that fall back.
    fn falling_back(&self) -> Indices {
        let levels = self.levels.all(self.added).enumerate();
        let levels = levels.filter(|(_, level)| level.falls_back());
        levels.map(|(index, _)| index).collect()
    }

    /// Divides the limits of levels that fall back by the number of replicas.
    fn apply_shares(&mut self, limiters: &impl Limiters) -> Result<(), CheckError> {
        let mut too_expensive = Indices::new();
        for (index, level) in self.levels.all_mut(self.added).enumerate() {
            let (Some(limiter), Some(data)) =
                (limiters.limiter(index), self.decision.levels().get(index))
            else {
                continue;
            };
            let (true, Some(on_failure)) = (level.falls_back(), &limiter.0.on_failure) else {
                continue;
            };
            let slots = self.slots.as_ref().map(|slots| slots.of_level(index));
            let share = Share::new(level.quotas(limiter), limiter, on_failure, data, slots);
            let shares = match share {
                Share::Decides(shares) => shares,
                Share::TooSmall(shares) => {
                    too_expensive.push(index);
                    shares
                }
            };
            self.decision.set_quotas(index, &shares);
            level.quotas = Some(shares);
        }
        if too_expensive.is_empty() {
            Ok(())
        } else {
            Err(self.cannot_fall_back(limiters, &too_expensive))
        }
    }

    /// Returns the quotas by which this process decides the levels to ask if the store fails. `None` unless all of them fall
    /// back then, and no others.
    pub(super) fn shares_of_asked(&self, limiters: &impl Limiters) -> Option<Vec<Quotas>> {
        let first = &limiters.limiter(0)?.0.store;
        let mut all = Vec::new();
        for (index, data) in self.decision.levels().iter().enumerate() {
            let (level, limiter) = (self.levels.get(index), limiters.limiter(index)?);
            match &level.state {
                LevelState::Answered => continue,
                LevelState::ToAsk if level.held.is_none() => {}
                _ => return None,
            }
            let on_failure = limiter.0.on_failure.as_deref()?;
            let slots = self.slots.as_ref().map(|slots| slots.of_level(index));
            let quotas = level.quotas(limiter);
            match Share::new(quotas, limiter, on_failure, data, slots) {
                Share::Decides(shares)
                    if on_failure.policy.action == FailureAction::FallBack
                        && limiter.0.store.has_same_fallback(first)
                        && !first.is_in_process() =>
                {
                    all.push(shares);
                }
                _ => return None,
            }
        }
        Some(all)
    }

    /// Returns the error of levels that this process cannot decide: they are closed.
    fn cannot_fall_back(&self, limiters: &impl Limiters, indices: &[usize]) -> CheckError {
        let mut closed = Closed::default();
        for index in indices {
            if let (LevelState::FallsBack(error), Some(limiter)) =
                (&self.levels.get(*index).state, limiters.limiter(*index))
            {
                closed.add(*index, limiter, error);
            }
        }
        let wrong = || CheckError::at(0, mismatch(0, indices.len()));
        closed.0.unwrap_or_else(wrong)
    }
}

/// The share of this process in the quotas of a level.
enum Share {
    Decides(Quotas),
    /// The cost is above it, but within the limit, so it will pass again when the store recovers. A refusal without a wait
    /// would be wrong. The same holds for slots.
    TooSmall(Quotas),
}

impl Share {
    fn new(
        quotas: &Quotas,
        limiter: &RateLimiter,
        on_failure: &FailureHandler,
        data: &LevelData,
        slots: Option<u32>,
    ) -> Self {
        let shares = on_failure.shares_of(quotas, &limiter.0.quotas);
        let is_above = |quotas: &Quotas| {
            let limit = quotas.min_slots(data.share());
            let is_missing = limit.zip(slots).is_some_and(|(limit, slots)| slots > limit);
            is_missing || exceeds_limit(quotas, data.share(), data.cost())
        };
        match is_above(&shares) && !is_above(quotas) {
            true => Self::TooSmall(shares),
            false => Self::Decides(shares),
        }
    }
}

/// The error of levels that are closed.
#[derive(Default)]
struct Closed(Option<CheckError>);

impl Closed {
    fn add(&mut self, index: usize, limiter: &RateLimiter, error: &Error) {
        if error.is_store_failure() {
            limiter.record_failure(error, FailureAction::Closed);
        }
        match &mut self.0 {
            Some(closed) => closed.failed.push(index),
            None => self.0 = Some(CheckError::at(index, error.clone())),
        }
    }
}
