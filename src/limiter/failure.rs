//! Checks while the store fails: the failure policy, and the counts of this process.

use std::time::Duration;

use super::check::{blocked, exceeded_limit, mismatch};
use super::failure_policy::{FailureAction, FailureHandler};
use super::limiter::RateLimiter;
use crate::decision::{Answer, Decision, DecisionBuilder, QuotaAnswer, Source};
use crate::error::{Error, ErrorKind};
use crate::key::Key;
use crate::quota::Quotas;

impl RateLimiter {
    /// Decides a check after the lookup of its quotas failed: by the block list, then by the failure policy
    /// with the limiter's own quotas.
    pub(crate) fn check_without_quotas(
        &self,
        key: Key,
        cost: u32,
        error: Error,
    ) -> Result<Decision, Error> {
        let mut builder = DecisionBuilder::new();
        let (key, answer) = builder.start(&self.quotas, cost, self.level_name(), key);
        match self.blocked_for(self.subject(&self.quotas, key)) {
            None => self.apply_failure_policy(builder, error),
            Some(left) => {
                *answer = blocked(&self.quotas, cost, left);
                self.conclude(builder)
            }
        }
    }

    /// Records a successful lookup of quotas, which may end an outage in the log.
    pub(crate) fn quotas_found(&self) {
        if let Some(on_failure) = &self.on_failure {
            on_failure.lookup_outages.record_success(&self.name);
        }
    }

    /// Decides by the failure policy, or returns the error if there is none.
    #[cold]
    pub(super) fn apply_failure_policy(
        &self,
        mut builder: DecisionBuilder,
        error: Error,
    ) -> Result<Decision, Error> {
        let on_failure = self
            .on_failure
            .as_deref()
            .filter(|_| is_store_failure(&error));
        let (Some(on_failure), Some((key, cost))) = (on_failure, builder.key_and_cost()) else {
            return Err(error);
        };
        let key = key.clone();
        let quotas = self.intern_quotas(builder.quota_list());
        let action = on_failure.policy.action;
        let answered = match action {
            FailureAction::Closed => None,
            FailureAction::Open => Some(admit_uncounted(quotas)),
            FailureAction::FallBack => self.fall_back(on_failure, quotas, &key, cost),
        };
        // If it cannot fall back, the limiter is closed.
        let action = answered.as_ref().map_or(FailureAction::Closed, |_| action);
        on_failure
            .outages_of(&error)
            .record_failure(&self.name, action.text(), &error);
        let Some((quotas, answer)) = answered else {
            return Err(error);
        };
        builder.start(&quotas, cost, self.level_name(), key);
        builder.set_answer(answer);
        builder
            .decide()
            .map_err(|answers| mismatch(answers, quotas.len()))?;
        Ok(builder.finish())
    }

    /// Decides by the counts of this process. Returns the applied quotas and the answer, or `None` if this
    /// process cannot decide.
    fn fall_back(
        &self,
        on_failure: &FailureHandler,
        quotas: Quotas,
        key: &Key,
        cost: u32,
    ) -> Option<(Quotas, Answer)> {
        if self.store.is_in_process() {
            // Such a store fails only if it is full. If the lookup of quotas has failed, the store still works.
            let subject = self.subject(&quotas, key);
            let answer = self.store.check_unprotected(subject.check(cost))?;
            return Some((quotas, answer));
        }
        let shares = on_failure.shares_of(&quotas, &self.quotas);
        // A cost above its share, but within the limit, will pass again when the store recovers. A refusal
        // without a wait would be wrong.
        if exceeded_limit(&shares, cost).is_some() && exceeded_limit(&quotas, cost).is_none() {
            return None;
        }
        let subject = self.subject(&shares, key);
        let answer = self.store.check_fallback(subject.check(cost))?;
        Some((shares, answer))
    }
}

/// Admits a check without counting it.
pub(super) fn admit_uncounted(quotas: Quotas) -> (Quotas, Answer) {
    let unused = QuotaAnswer::admitted(0, Duration::ZERO);
    let answer = Answer::new(Source::None, quotas.iter().map(|_| unused));
    (quotas, answer)
}

/// Returns whether an error means that the store failed. Otherwise no store could decide the check.
pub(super) fn is_store_failure(error: &Error) -> bool {
    !matches!(
        error.kind(),
        ErrorKind::CostExceedsLimit | ErrorKind::CostTooLarge | ErrorKind::Unsupported
    )
}
