//! Checks while the store fails: the failure policies, and the counts of this process.

use std::sync::Arc;

use smallvec::SmallVec;

use super::checked::CheckError;
use super::failure_policy::FailureAction;
use super::level::{Level, State};
use super::limiter::{Inner, RateLimiter};
use super::pending_check::PendingCheck;
use crate::error::{Error, ErrorKind};
use crate::key::Key;
use crate::store::Check;
use crate::telemetry::OutageLog;

impl RateLimiter {
    /// Records a successful lookup of quotas, which may end an outage in the log.
    pub(crate) fn quotas_found(&self) {
        if let Some(on_failure) = &self.0.on_failure {
            on_failure.lookup_outages.record_success(&self.0.facts.name);
        }
    }

    /// Watches over an outage of the store, which began with a request of this key.
    pub(crate) fn watch_outage(&self, key: &Key, log: &Arc<OutageLog>) {
        let Inner { store, facts, .. } = &*self.0;
        store.watch_outage(self.subject(&facts.quotas, key), log, &facts.name);
    }
}

impl Level {
    /// Logs that the store or the lookup of the quotas failed, and what the policy does.
    fn record_failure(&self, error: &Error, action: FailureAction) {
        let limiter = &self.limiter().0;
        let Some(on_failure) = &limiter.on_failure else {
            return;
        };
        let (name, outages) = (&limiter.facts.name, &on_failure.store_outages);
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
    /// Applies the failure policies of levels that have failed.
    ///
    /// # Errors
    ///
    /// Fails if one of them has no policy or is closed.
    #[cold]
    pub(super) fn apply_policies(&mut self) -> Result<(), CheckError> {
        let mut closed = Closed::default();
        for level in &mut self.levels {
            let State::Failed(error) = &level.state else {
                continue;
            };
            let (limiter, error) = (level.limiter(), error.clone());
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
                    level.state = State::FallsBack(error);
                }
                // Such a store fails only if it is full. If the lookup of quotas has failed, the store still works.
                FailureAction::FallBack if error.kind() == ErrorKind::QuotasUnknown => {
                    level.record_failure(&error, action);
                    level.state = State::ToAsk;
                }
                FailureAction::FallBack | FailureAction::Closed => {
                    closed.add(level, &error);
                }
            }
        }
        closed.0.map_or(Ok(()), Err)
    }

    /// Decides the levels that fall back together, by the counts of this process. Returns whether they are admitted. If
    /// not, some may be charged: see [`refunds`](Self::refunds).
    ///
    /// # Errors
    ///
    /// Fails if this process cannot decide.
    #[cold]
    pub(super) fn fall_back(&mut self) -> Result<bool, CheckError> {
        self.divide_limits()?;
        loop {
            let first = self.levels.iter().find(|level| level.falls_back());
            let Some(limiter) = first.map(|level| level.limiter().clone()) else {
                return Ok(true);
            };
            // Limiters of a store without a circuit breaker of its own have counts of their own.
            let is_together = |level: &Level| {
                let store = &level.limiter().0.store;
                level.falls_back() && store.has_same_fallback(&limiter.0.store)
            };
            let together = || self.levels.iter().filter(|level| is_together(level));
            let decide = |checks: &[Check<'_>]| limiter.0.store.check_fallback(checks);
            let answers = match &mut self.slots {
                None => {
                    let checks: SmallVec<[_; 4]> = together().map(Level::check).collect();
                    decide(&checks)
                }
                Some(slots) => {
                    let levels: SmallVec<[_; 4]> = together().collect();
                    slots.hold_in_turn(&limiter, &levels, decide)
                }
            };
            let Some(answers) = answers else {
                let mut closed = Closed::default();
                together().for_each(|level| closed.add_falling(level));
                return closed.0.map_or(Ok(false), Err);
            };
            let are_admitted = answers.are_admitted();
            let together = self.levels.iter_mut().filter(|level| is_together(level));
            for (level, answer) in together.zip(answers.into_answers()) {
                if let State::FallsBack(error) = &level.state {
                    level.record_failure(error, FailureAction::FallBack);
                }
                level.set_answer(answer);
                if are_admitted {
                    level.state = State::Charged;
                }
            }
            if !are_admitted {
                return Ok(false);
            }
        }
    }

    /// Divides the limits of levels that fall back by the number of replicas.
    fn divide_limits(&mut self) -> Result<(), CheckError> {
        let (mut closed, takes_slots) = (Closed::default(), self.slots.is_some());
        for level in self.levels.iter_mut().filter(|level| level.falls_back()) {
            let Some(on_failure) = level.limiter().0.on_failure.clone() else {
                continue;
            };
            let quotas = level.quotas();
            let portion = on_failure.portion_of(quotas, &level.limiter().0.facts.quotas);
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

/// The error of levels that are closed.
#[derive(Default)]
struct Closed(Option<CheckError>);

impl Closed {
    fn add(&mut self, level: &Level, error: &Error) {
        if error.is_store_failure() {
            level.record_failure(error, FailureAction::Closed);
        }
        match &mut self.0 {
            Some(closed) => closed.failed.push(level.record().place),
            None => self.0 = Some(CheckError::at(level.record().place, error.clone())),
        }
    }

    /// Adds a level that this process cannot decide.
    fn add_falling(&mut self, level: &Level) {
        if let State::FallsBack(error) = &level.state {
            self.add(level, error);
        }
    }
}
