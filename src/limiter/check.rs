//! The path of a check: block list, store, decision.

use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use super::limiter::RateLimiter;
use crate::decision::{Answer, Decision, DecisionBuilder, QuotaAnswer, Source};
use crate::error::{Error, ErrorKind};
use crate::key::Key;
use crate::quota::{Quota, Quotas};
use crate::store::{Check, StoreFuture, Subject};

/// A check that was started.
pub(crate) enum CheckProgress {
    Done(Result<Decision, Error>),
    /// Waits for its store: see [`RateLimiter::poll_check`].
    Pending(PendingCheck),
}

/// A check that waits for its store.
pub(crate) struct PendingCheck {
    builder: DecisionBuilder,
    answer: StoreFuture,
}

impl RateLimiter {
    /// Starts a check against the limiter's own quotas.
    ///
    /// Unlike [`check_n`](Self::check_n) it passes on a cost above a limit, which the store refuses for
    /// good, with the current numbers.
    #[inline(always)]
    pub(crate) fn start_check(&self, key: impl Into<Key>, cost: u32) -> CheckProgress {
        self.start_check_with(&self.quotas, key, cost)
    }

    /// Starts a check against these quotas.
    #[inline(always)]
    pub(crate) fn start_check_with(
        &self,
        quotas: &Quotas,
        key: impl Into<Key>,
        cost: u32,
    ) -> CheckProgress {
        let blocked_for = |subject: Subject<'_>| self.block_list.lookup(subject);
        self.start(quotas, key, cost, blocked_for)
    }

    /// Starts a check, unless its cost is above a limit and so can never pass.
    #[inline(always)]
    pub(super) fn start_check_within_limits(
        &self,
        key: impl Into<Key>,
        cost: u32,
    ) -> CheckProgress {
        match exceeded_limit(&self.quotas, cost) {
            None => self.start_check(key, cost),
            Some(limit) => CheckProgress::Done(Err(Error::cost_exceeds_limit(cost, limit))),
        }
    }

    /// Checks against these quotas, even if the key is blocked.
    pub(super) async fn check_despite_block(
        &self,
        quotas: &Quotas,
        key: impl Into<Key>,
        cost: u32,
    ) -> Result<Decision, Error> {
        let started = self.start(quotas, key, cost, |_| None);
        self.complete(started).await
    }

    #[inline(always)]
    fn start(
        &self,
        quotas: &Quotas,
        key: impl Into<Key>,
        cost: u32,
        blocked_for: impl FnOnce(Subject<'_>) -> Option<Duration>,
    ) -> CheckProgress {
        let mut builder = DecisionBuilder::new();
        let (key, answer) = builder.start(quotas, cost, self.id(), key);
        let future = match answer_without_store(quotas, cost) {
            Some(answer) => Some(StoreFuture::ready(answer)),
            None => {
                let subject = self.subject(quotas, key);
                match blocked_for(subject) {
                    None => self.store.check_in_place(Check { subject, cost }, answer),
                    Some(left) => Some(StoreFuture::ready(Ok(blocked(quotas, cost, left)))),
                }
            }
        };
        match future.map(StoreFuture::try_ready) {
            None => CheckProgress::Done(self.conclude(builder)),
            Some(Ok(answer)) => CheckProgress::Done(self.finish(builder, answer)),
            Some(Err(answer)) => CheckProgress::Pending(PendingCheck { builder, answer }),
        }
    }

    /// Waits until a check is done.
    pub(super) async fn complete(&self, started: CheckProgress) -> Result<Decision, Error> {
        match started {
            CheckProgress::Done(checked) => checked,
            CheckProgress::Pending(mut check) => {
                poll_fn(|cx| self.poll_check(&mut check, cx)).await
            }
        }
    }

    /// Polls a check that waits for its store. Do not poll it again once it is ready.
    pub(crate) fn poll_check(
        &self,
        check: &mut PendingCheck,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Decision, Error>> {
        let answer = ready!(Pin::new(&mut check.answer).poll(cx));
        Poll::Ready(self.finish(std::mem::take(&mut check.builder), answer))
    }

    /// Decides by the answer of the store, or by the failure policy if there is none.
    fn finish(
        &self,
        mut builder: DecisionBuilder,
        answer: Result<Answer, Error>,
    ) -> Result<Decision, Error> {
        match answer {
            Ok(answer) => {
                builder.set_answer(answer);
                self.conclude(builder)
            }
            Err(error) => self.apply_failure_policy(builder, error),
        }
    }

    /// Decides by the answer that was written to the builder.
    #[inline(always)]
    pub(super) fn conclude(&self, mut builder: DecisionBuilder) -> Result<Decision, Error> {
        if let Err(answers) = builder.decide() {
            let error = mismatch(answers, builder.quota_list().len());
            return self.apply_failure_policy(builder, error);
        }
        let decision = builder.finish();
        if let Some(on_failure) = &self.on_failure {
            on_failure
                .store_outages
                .decided(&self.name, decision.source());
        }
        Ok(decision)
    }
}

/// Answers a check that the store cannot change: of no quota, or of a cost too large to charge at once.
#[inline(always)]
fn answer_without_store(quotas: &Quotas, cost: u32) -> Option<Result<Answer, Error>> {
    if quotas.is_empty() {
        return Some(Ok(Answer::new(Source::None, [])));
    }
    let max_cost = quotas.max_cost();
    if cost <= max_cost {
        return None;
    }
    // The store refuses a cost above a limit for good. Splitting it would not help.
    if exceeded_limit(quotas, cost).is_some() {
        return None;
    }
    Some(Err(Error::cost_too_large(cost, max_cost)))
}

/// Returns the lowest limit if the cost exceeds it, so that no wait makes the cost fit.
#[inline(always)]
pub(super) fn exceeded_limit(quotas: &Quotas, cost: u32) -> Option<u32> {
    quotas.min_limit().filter(|limit| cost > *limit)
}

/// Refuses a check of a blocked key, whatever the key has used.
///
/// A cost above a limit has no wait: it does not pass after the block either.
#[cold]
pub(super) fn blocked(quotas: &Quotas, cost: u32, left: Duration) -> Answer {
    let wait = exceeded_limit(quotas, cost).is_none().then_some(left);
    let refused = |quota: &Quota| QuotaAnswer::refused(quota.limit(), wait, left);
    Answer::new(Source::Block, quotas.iter().map(refused))
}

/// The error of a store that did not answer each quota.
#[cold]
pub(super) fn mismatch(answers: usize, quotas: usize) -> Error {
    Error::new(
        ErrorKind::InvalidReply,
        format!("the store answered for {answers} of {quotas} quotas"),
    )
}
