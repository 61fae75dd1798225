//! What a limiter says where its store does not: what its policy does, and the counts of this process.

use std::time::Duration;

use super::failure_policy::{FailureAction, FailureHandler, is_of_store};
use super::limiter::{RateLimiter, blocked, limit_below, mismatch};
use crate::decision::Decision;
use crate::decision::{Answer, DecisionBuilder, QuotaAnswer, Source};
use crate::error::Error;
use crate::key::Key;
use crate::quota::Quotas;
use crate::store::{Check, Store};

impl RateLimiter {
    /// What becomes of a check whose quotas could not be found: what the policy says, by its own.
    pub(crate) fn check_without_quotas(
        &self,
        key: Key,
        cost: u32,
        error: Error,
    ) -> Result<Decision, Error> {
        let mut draft = DecisionBuilder::new();
        let (key, answer) = draft.start(&self.quotas, cost, self.charger(), key);
        match self.blocks.left_of(self.subject(&self.quotas, key)) {
            None => self.without_store(draft, error),
            Some(left) => {
                *answer = blocked(&self.quotas, cost, left);
                self.conclude(draft)
            }
        }
    }

    /// Quotas were found: said where they could not be before.
    pub(crate) fn quotas_found(&self) {
        if let Some(on_failure) = &self.on_failure {
            on_failure.quotas_notices.record_success(&self.name);
        }
    }

    /// What the policy says of a check that the store did not decide.
    #[cold]
    pub(super) fn without_store(
        &self,
        mut draft: DecisionBuilder,
        error: Error,
    ) -> Result<Decision, Error> {
        let on_failure = self.on_failure.as_deref().filter(|_| is_of_store(&error));
        let (Some(on_failure), Some((key, cost))) = (on_failure, draft.key_and_cost()) else {
            return Err(error);
        };
        let quotas = self.quotas_of(draft.quota_list());
        let answered = match on_failure.policy.then {
            FailureAction::Closed => None,
            FailureAction::Open => {
                let unused = QuotaAnswer::admitted(0, Duration::ZERO);
                let answers = quotas.iter().map(|_| unused);
                let answer = Answer::new(Source::None, answers);
                Some((quotas, answer))
            }
            FailureAction::FallBack => self.fall_back(on_failure, quotas, &key, cost),
        };
        let then = answered
            .as_ref()
            .map_or(FailureAction::Closed, |_| on_failure.policy.then);
        on_failure
            .notices_of(&error)
            .record_failure(&self.name, then.text(), &error);
        let Some((quotas, answer)) = answered else {
            return Err(error);
        };
        draft.start(&quotas, cost, self.charger(), key);
        draft.set_answer(answer);
        let of = quotas.len();
        draft.decide().map_err(|answers| mismatch(answers, of))?;
        Ok(draft.finish())
    }

    /// What this process says by its own counts, and by which quotas; nothing where it cannot tell.
    fn fall_back(
        &self,
        on_failure: &FailureHandler,
        quotas: Quotas,
        key: &Key,
        cost: u32,
    ) -> Option<(Quotas, Answer)> {
        if self.guard.is_in_process() {
            // It has not failed, unless it is full.
            let subject = self.subject(&quotas, key);
            let answer = self.store.check(Check { subject, cost });
            let answer = answer.try_ready().ok()?.ok()?;
            return Some((quotas, answer));
        }
        let shares = on_failure.shares_of(&quotas, &self.quotas);
        // To be refused for good is for the store to say.
        if limit_below(&shares, cost).is_some() && limit_below(&quotas, cost).is_none() {
            return None;
        }
        let subject = self.subject(&shares, key);
        let answer = self.guard.fallback()?.check(Check { subject, cost });
        let answer = answer.try_ready().ok()?.ok()?;
        Some((shares, answer.into_fallback()))
    }
}
