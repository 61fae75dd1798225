//! Levels while the store fails: the failure policies, and the counts of this process.

use std::borrow::Borrow;

use super::tree::{Indices, LevelState, LevelsError, Tree};
use crate::decision::Answer;
use crate::error::ErrorKind;
use crate::limiter::check::{exceeded_limit, mismatch};
use crate::limiter::failure::{admit_uncounted, is_store_failure};
use crate::limiter::failure_policy::FailureAction;
use crate::limiter::limiter::RateLimiter;

impl<L: Borrow<RateLimiter>> Tree<L> {
    /// Applies the failure policies of levels that have failed.
    ///
    /// # Errors
    ///
    /// Fails if one of them has no policy or is closed.
    pub(super) fn apply_policies(&mut self, indices: &[usize]) -> Result<(), LevelsError> {
        let mut closed: Option<LevelsError> = None;
        for index in indices {
            let Some(level) = self.0.get_mut(*index) else {
                continue;
            };
            let LevelState::Failed(error) = &level.state else {
                continue;
            };
            let error = error.clone();
            let on_failure = level.limiter().on_failure.as_deref();
            let policy = on_failure.filter(|_| is_store_failure(&error));
            let action = policy.map_or(FailureAction::Closed, |policy| policy.policy.action);
            let is_in_process = level.limiter().store.is_in_process();
            let state = match action {
                FailureAction::Open => {
                    let (_, answer) = admit_uncounted(level.quotas().clone());
                    Some(LevelState::Answered(answer))
                }
                FailureAction::FallBack if !is_in_process => {
                    Some(LevelState::FallsBack(error.clone()))
                }
                // Such a store fails only if it is full. If the lookup of quotas has failed, the store still works.
                FailureAction::FallBack if error.kind() == ErrorKind::QuotasUnknown => {
                    Some(LevelState::NotAsked)
                }
                FailureAction::FallBack | FailureAction::Closed => None,
            };
            // A level that falls back logs the failure when it is decided.
            match state {
                Some(state @ LevelState::FallsBack(_)) => level.state = state,
                Some(state) => {
                    level.record_failure(&error, action);
                    level.state = state;
                }
                None => {
                    if is_store_failure(&error) {
                        level.record_failure(&error, FailureAction::Closed);
                    }
                    match &mut closed {
                        Some(closed) => closed.failed.push(*index),
                        None => closed = Some(LevelsError::at(*index, error)),
                    }
                }
            }
        }
        closed.map_or(Ok(()), Err)
    }

    /// Returns the levels that fall back.
    pub(super) fn falling_back(&self) -> Indices {
        let levels = self.0.iter().enumerate();
        levels
            .filter(|(_, level)| matches!(level.state, LevelState::FallsBack(_)))
            .map(|(index, _)| index)
            .collect()
    }

    /// Decides the levels that fall back together, by the counts of this process. Returns whether they are
    /// admitted.
    ///
    /// # Errors
    ///
    /// Fails if this process cannot decide.
    pub(super) fn fall_back(&mut self) -> Result<bool, LevelsError> {
        let mut left = self.falling_back();
        self.apply_shares(&left)?;
        let mut charged = Indices::new();
        while let Some(first) = left.first().and_then(|index| self.0.get(*index)) {
            // Limiters of a store without a circuit breaker of its own have counts of their own.
            let store = first.limiter().store.clone();
            let has_same = |index: &usize| {
                let level = self.0.get(*index);
                level.is_some_and(|level| level.limiter().store.has_same_fallback(&store))
            };
            let (together, others): (Indices, Indices) = left.into_iter().partition(has_same);
            left = others;
            let answers = store.check_all_fallback(&self.checks(&together));
            let Some(answers) = answers else {
                self.refund_fallback(&charged);
                return Err(self.cannot_fall_back(&together));
            };
            let is_admitted = answers.iter().all(Answer::is_admitted);
            for (index, answer) in together.iter().zip(answers) {
                if let Some(level) = self.0.get_mut(*index) {
                    if let LevelState::FallsBack(error) = &level.state {
                        level.record_failure(error, FailureAction::FallBack);
                    }
                    level.state = LevelState::Answered(answer);
                }
            }
            if !is_admitted {
                self.refund_fallback(&charged);
                return Ok(false);
            }
            charged.extend(together);
        }
        Ok(true)
    }

    /// Divides the limits of levels that fall back by the number of replicas.
    fn apply_shares(&mut self, indices: &[usize]) -> Result<(), LevelsError> {
        let mut too_expensive = Indices::new();
        for index in indices {
            let Some(level) = self.0.get_mut(*index) else {
                continue;
            };
            let limiter = level.limiter.borrow();
            let Some(on_failure) = &limiter.on_failure else {
                continue;
            };
            let quotas = level.quotas.as_ref().unwrap_or(&limiter.quotas);
            let shares = on_failure.shares_of(quotas, &limiter.quotas);
            // A cost above its share, but within the limit, will pass again when the store recovers. A refusal
            // without a wait would be wrong.
            if exceeded_limit(&shares, level.cost).is_some()
                && exceeded_limit(quotas, level.cost).is_none()
            {
                too_expensive.push(*index);
            }
            level.quotas = Some(shares);
        }
        if too_expensive.is_empty() {
            Ok(())
        } else {
            Err(self.cannot_fall_back(&too_expensive))
        }
    }

    /// Returns the error of levels that this process cannot decide: they are closed.
    fn cannot_fall_back(&self, indices: &[usize]) -> LevelsError {
        let mut failure: Option<LevelsError> = None;
        for index in indices {
            let Some(level) = self.0.get(*index) else {
                continue;
            };
            if let LevelState::FallsBack(error) = &level.state {
                level.record_failure(error, FailureAction::Closed);
                match &mut failure {
                    Some(failure) => failure.failed.push(*index),
                    None => failure = Some(LevelsError::at(*index, error.clone())),
                }
            }
        }
        failure.unwrap_or_else(|| LevelsError::at(0, mismatch(0, indices.len())))
    }
}
