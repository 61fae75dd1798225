//! Checks while the store fails: the failure policies, and the counts of this process.

use std::sync::Arc;

use smallvec::SmallVec;

use super::asked_level::{AskedLevel, LevelState};
use super::checked::CheckError;
use super::failure_policy::FailureAction;
use super::limiter::{LimiterInner, RateLimiter};
use super::pending_check::PendingCheck;
use crate::decision::Answers;
use crate::error::{Error, ErrorKind};
use crate::key::Key;
use crate::telemetry::OutageLog;

impl RateLimiter {
    pub(crate) fn quotas_found(&self) {
        if let Some(on_failure) = &self.0.on_failure {
            on_failure.lookup_outages.record_success(&self.0.facts.name);
        }
    }

    pub(crate) fn watch_outage(&self, key: &Key, log: &Arc<OutageLog>) {
        let LimiterInner { store, facts, .. } = &*self.0;
        store.watch_outage(self.subject(&facts.quotas, key), log, &facts.name);
    }
}

impl AskedLevel {
    /// Limiters of a store without a circuit breaker of its own have counts of their own.
    fn falls_back_with(&self, limiter: &RateLimiter) -> bool {
        let store = &self.limiter().0.store;
        self.falls_back() && store.has_same_fallback(&limiter.0.store)
    }

    fn record_failure(&self, error: &Error, action: FailureAction) {
        let limiter = &self.limiter().0;
        let Some(on_failure) = &limiter.on_failure else {
            return;
        };
        let name = &limiter.facts.name;
        let outages = &on_failure.store_outages;
        if error.kind() == ErrorKind::QuotasUnknown {
            on_failure
                .lookup_outages
                .record_failure(name, action.text(), error);
        } else if outages.record_failure(name, action.text(), error) {
            limiter
                .store
                .watch_outage(self.check().subject, outages, name);
        }
    }
}

impl PendingCheck {
    /// Fails if a level that has failed has no policy or is closed.
    #[cold]
    pub(super) fn apply_policies(&mut self) -> Result<(), CheckError> {
        let mut closed = Closed::default();
        for level in &mut self.levels {
            let LevelState::Failed(error) = &level.state else {
                continue;
            };
            let error = error.clone();
            let limiter = level.limiter();
            // Without a policy, the caller gets the error.
            let action = match limiter.policy() {
                Some(policy) if error.is_store_failure() => policy.action,
                _ => FailureAction::Closed,
            };
            match action {
                FailureAction::Open => {
                    level.record_failure(&error, action);
                    if let Some(slots) = &mut self.slots {
                        slots.hold_any(limiter, &[level]);
                    }
                    level.open();
                }
                // It logs the failure when it is decided.
                FailureAction::FallBack if !limiter.0.store.is_in_process() => {
                    level.state = LevelState::FallsBack(error);
                }
                // Such a store fails only if it is full. If the lookup of quotas has failed, the store still works.
                FailureAction::FallBack if error.kind() == ErrorKind::QuotasUnknown => {
                    level.record_failure(&error, action);
                    level.state = LevelState::ToAsk;
                }
                FailureAction::FallBack | FailureAction::Closed => {
                    closed.add(level, &error);
                }
            }
        }
        closed.0.map_or(Ok(()), Err)
    }

    /// Decides the levels that fall back, by the counts of this process. Returns whether they are admitted. If
    /// not, some may be charged: see [`refunds`](Self::refunds). Fails if this process cannot decide.
    #[cold]
    pub(super) fn fall_back(&mut self) -> Result<bool, CheckError> {
        self.divide_limits()?;
        loop {
            let first = self.levels.iter().find(|level| level.falls_back());
            let Some(limiter) = first.map(|level| level.limiter().clone()) else {
                return Ok(true);
            };
            let Some(answers) = self.decide_by_fallback(&limiter) else {
                let mut closed = Closed::default();
                for level in falling_with(&self.levels, &limiter) {
                    closed.add_falling(level);
                }
                return closed.0.map_or(Ok(false), Err);
            };
            let are_admitted = answers.are_admitted();
            let together = self
                .levels
                .iter_mut()
                .filter(|level| level.falls_back_with(&limiter));
            for (level, answer) in together.zip(answers.into_answers()) {
                if let LevelState::FallsBack(error) = &level.state {
                    level.record_failure(error, FailureAction::FallBack);
                }
                level.set_answer(answer);
                if are_admitted {
                    level.state = LevelState::Charged;
                }
            }
            if !are_admitted {
                return Ok(false);
            }
        }
    }

    /// Decides the levels that fall back to the counts of this limiter. `None` if this process cannot decide.
    fn decide_by_fallback(&mut self, limiter: &RateLimiter) -> Option<Answers> {
        let store = &limiter.0.store;
        let together = falling_with(&self.levels, limiter);
        match &mut self.slots {
            None => {
                let checks: SmallVec<[_; 4]> = together.map(AskedLevel::check).collect();
                store.check_fallback(&checks)
            }
            Some(slots) => {
                let levels: SmallVec<[_; 4]> = together.collect();
                slots.hold_in_turn(limiter, &levels, |checks| store.check_fallback(checks))
            }
        }
    }

    fn divide_limits(&mut self) -> Result<(), CheckError> {
        let mut closed = Closed::default();
        let takes_slots = self.slots.is_some();
        for level in self.levels.iter_mut().filter(|level| level.falls_back()) {
            let Some(on_failure) = level.limiter().0.on_failure.clone() else {
                continue;
            };
            let quotas = level.quotas();
            let portion = on_failure.divide(quotas, &level.limiter().0.facts.quotas);
            // A request above the portion alone will pass again when the store recovers, so it is not refused without a wait.
            if level.exceeds(&portion, takes_slots) && !level.exceeds(quotas, takes_slots) {
                closed.add_falling(level);
            }
            level.record_mut().portion = Some(portion);
            level.fit_cost();
        }
        closed.0.map_or(Ok(()), Err)
    }
}

fn falling_with<'a>(
    levels: &'a [AskedLevel],
    limiter: &RateLimiter,
) -> impl Iterator<Item = &'a AskedLevel> {
    levels
        .iter()
        .filter(move |level| level.falls_back_with(limiter))
}

/// The error of levels that are closed.
#[derive(Default)]
struct Closed(Option<CheckError>);

impl Closed {
    fn add(&mut self, level: &AskedLevel, error: &Error) {
        if error.is_store_failure() {
            level.record_failure(error, FailureAction::Closed);
        }
        match &mut self.0 {
            Some(closed) => closed.failed.push(level.record().place),
            None => self.0 = Some(CheckError::at(level.record().place, error.clone())),
        }
    }

    fn add_falling(&mut self, level: &AskedLevel) {
        if let LevelState::FallsBack(error) = &level.state {
            self.add(level, error);
        }
    }
}
