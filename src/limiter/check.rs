//! Checks: from the block list to the store, and from the answer of the store to the decision.

use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use super::lease::{HeldUnits, Take};
use super::limiter::RateLimiter;
use super::refusals::count_refusals;
use super::wait::Wait;
use crate::decision::{Answer, Decision, DecisionBuilder, QuotaAnswer, Source};
use crate::error::{Error, ErrorKind};
use crate::key::Key;
use crate::quota::{Quota, Quotas};
use crate::store::{PendingAnswer, SendMark, StoreFuture, Subject};

/// The state of a check after it was started.
#[expect(
    clippy::large_enum_variant,
    reason = "a box would be one allocation more for each check of a remote store"
)]
pub(crate) enum CheckProgress {
    Done(Result<Decision, Error>),
    /// Waits for the store: call [`RateLimiter::poll_check`].
    Pending(PendingCheck),
}

/// A check that waits for the store.
pub(crate) struct PendingCheck {
    builder: DecisionBuilder,
    answer: PendingAnswer,
    /// The units that this process held. The store was asked for the others.
    held: Option<Box<HeldUnits>>,
}

impl RateLimiter {
    /// Charges one unit to `key` if every quota has room for it.
    ///
    /// # Errors
    ///
    /// Returns an error in the same cases as [`check_n`](Self::check_n).
    pub fn check(&self, key: impl Into<Key>) -> impl Future<Output = Result<Decision, Error>> {
        self.check_n(key, 1)
    }

    /// Charges `cost` units to `key` if every quota has room for all of them.
    ///
    /// Otherwise nothing is charged, and the decision is a refusal: it is not an error. A cost of 0 charges
    /// nothing.
    ///
    /// If the future is dropped while it waits for Redis, the units may or may not have been charged. They
    /// are available again after their window.
    ///
    /// # Errors
    ///
    /// Returns an error
    ///
    /// - of kind [`CostExceedsLimit`](crate::ErrorKind::CostExceedsLimit) if the cost is above the limit of
    ///   a quota, so that no wait helps;
    /// - of kind [`CostTooLarge`](crate::ErrorKind::CostTooLarge) if the cost is above 100 000 and a quota
    ///   counts with a log ([`SlidingLog`](crate::Algorithm::SlidingLog), the default, or
    ///   [`SortedSetLog`](crate::Algorithm::SortedSetLog));
    /// - if the store fails, unless [`on_failure`](Self::on_failure) set a policy that decides.
    pub async fn check_n(&self, key: impl Into<Key>, cost: u32) -> Result<Decision, Error> {
        // Not by `complete`: a nested future makes a check in memory take 5 % more instructions.
        let checked = match self.start_check_within_limits(key, cost) {
            CheckProgress::Done(checked) => checked,
            CheckProgress::Pending(mut check) => {
                poll_fn(|cx| self.poll_check(&mut check, cx)).await
            }
        };
        self.record_check(&checked);
        checked
    }

    /// Returns the units that `key` has used and left, without charging it.
    ///
    /// [`remaining`](Decision::remaining) is the highest cost that would be admitted now. The decision is
    /// that of a check of cost 0, so [`is_allowed`](Decision::is_allowed) does not tell whether a unit is
    /// left. It ignores a block: [`Admin::peek`](crate::Admin::peek) also returns whether the key is blocked.
    ///
    /// # Errors
    ///
    /// Returns an error if the store fails, unless [`on_failure`](Self::on_failure) set a policy that
    /// decides.
    pub async fn peek(&self, key: impl Into<Key>) -> Result<Decision, Error> {
        self.check_despite_block(&self.quotas, key, 0).await
    }

    /// Waits until every quota has room for `cost` units, then charges them to `key`.
    ///
    /// Use it for jobs that may be late but should not fail. After a refusal, it waits for
    /// [`retry_after`](Decision::retry_after), but at most one second, and checks again: units may have been
    /// refunded meanwhile. Waiting calls form no queue, so another call may take the units first.
    ///
    /// `max_wait` is counted from the call. If the next wait would end later, the refusal is returned at
    /// once; its `retry_after` is the wait that is still needed. An error is returned at once, too, unless
    /// [`wait_through_outages`](Self::wait_through_outages) is set.
    ///
    /// If the future is dropped while it waits for time to pass, nothing is charged. While it waits for Redis,
    /// the same applies as for `check_n`.
    ///
    /// # Errors
    ///
    /// Returns an error in the same cases as [`check_n`](Self::check_n).
    ///
    /// # Panics
    ///
    /// Panics if it has to wait outside of a tokio runtime, or in a runtime without timers.
    ///
    /// # Examples
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap().block_on(async {
    /// use std::time::Duration;
    /// use tollgate::{MemoryStore, Quota, RateLimiter};
    ///
    /// let limiter = RateLimiter::new(MemoryStore::new(), Quota::new(1, Duration::from_millis(20)));
    /// let max_wait = Duration::from_secs(5);
    /// for _ in 0..3 {
    ///     assert!(limiter.until_ready("ada", 1, max_wait).await?.is_allowed());
    /// }
    /// # Ok::<(), tollgate::Error>(())
    /// # }).unwrap();
    /// ```
    pub async fn until_ready(
        &self,
        key: impl Into<Key>,
        cost: u32,
        max_wait: Duration,
    ) -> Result<Decision, Error> {
        let key = key.into();
        let mut wait = Wait::new(max_wait);
        loop {
            let started = self.start_check_within_limits(&key, cost);
            let checked = self.complete(started).await;
            let checks_again = match &checked {
                Ok(decision) => wait.after_decision(decision.view()).await,
                Err(error) if self.waits_through_outages => wait.after_failure(error).await,
                Err(_) => false,
            };
            if !checks_again {
                let checked = checked.map_err(|error| wait.explain(error));
                self.record_check(&checked);
                return checked;
            }
        }
    }

    /// Records the result of a check, and counts a refusal.
    #[inline]
    fn record_check(&self, checked: &Result<Decision, Error>) {
        self.telemetry.record_check(checked);
        if let Ok(decision) = checked
            && !decision.is_allowed()
        {
            count_refusals([self], decision.view());
        }
    }

    /// Starts a check against the limiter's own quotas.
    ///
    /// Unlike [`check_n`](Self::check_n), it sends a cost above a limit to the store, so that the refusal has
    /// the current numbers.
    #[inline]
    pub(crate) fn start_check(&self, key: impl Into<Key>, cost: u32) -> CheckProgress {
        self.start_check_with(&self.quotas, key, cost)
    }

    /// Starts a check against these quotas.
    #[inline]
    pub(crate) fn start_check_with(
        &self,
        quotas: &Quotas,
        key: impl Into<Key>,
        cost: u32,
    ) -> CheckProgress {
        let blocked_for = |subject: Subject<'_>| self.blocked_for(subject);
        self.start(quotas, key, cost, blocked_for)
    }

    /// Returns how long a blocked key is refused: until its block ends, and the quotas that have caused it admit again.
    #[inline]
    pub(super) fn blocked_for(&self, subject: Subject<'_>) -> Option<Duration> {
        let left = self.block_list.lookup(subject)?;
        let refusals = self.refusals.as_ref();
        Some(refusals.map_or(left, |refusals| left.max(refusals.wait_of(subject.key))))
    }

    /// Starts a check, unless its cost is above a limit.
    #[inline]
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

    #[inline]
    fn start(
        &self,
        quotas: &Quotas,
        key: impl Into<Key>,
        cost: u32,
        blocked_for: impl FnOnce(Subject<'_>) -> Option<Duration>,
    ) -> CheckProgress {
        self.observe_check();
        let mut builder = DecisionBuilder::new();
        let quotas = &*self.counted(quotas);
        let (key, answer) = builder.start(quotas, cost, self.level_name(), key);
        let mut held = None;
        let pending: Option<PendingAnswer> = match answer_without_store(quotas, cost) {
            Some(answer) => Some(StoreFuture::ready(answer).into()),
            None => {
                let subject = self.subject(quotas, key);
                match (blocked_for(subject), &self.lease) {
                    (Some(left), _) => {
                        let refusal = Ok(blocked(quotas, cost, left));
                        Some(StoreFuture::ready(refusal).into())
                    }
                    (None, None) => self.store.check_in_place(subject.check(cost), answer),
                    (None, Some(lease)) => match lease.take(subject, cost, answer) {
                        Take::Complete(grants) => {
                            if !grants.is_empty() {
                                builder.set_grants(0, grants);
                            }
                            None
                        }
                        Take::Partial(units) => {
                            let missing = cost - units.units();
                            held = Some(Box::new(units));
                            self.store.check_in_place(subject.check(missing), answer)
                        }
                        Take::Nothing => self.store.check_in_place(subject.check(cost), answer),
                    },
                }
            }
        };
        let Some(PendingAnswer { future, sent }) = pending else {
            // With units in hand, the answer is a remembered refusal of the others, and the units return.
            return CheckProgress::Done(self.conclude(builder));
        };
        match future.try_ready() {
            Ok(answer) => CheckProgress::Done(self.finish(builder, held, sent, answer)),
            Err(future) => {
                let answer = PendingAnswer { future, sent };
                CheckProgress::Pending(PendingCheck {
                    builder,
                    answer,
                    held,
                })
            }
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

    /// Polls a check that waits for the store. Must not be called again after it was ready.
    pub(crate) fn poll_check(
        &self,
        check: &mut PendingCheck,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Decision, Error>> {
        let PendingCheck {
            builder,
            answer,
            held,
        } = check;
        let answered = ready!(Pin::new(&mut answer.future).poll(cx));
        Poll::Ready(self.finish(std::mem::take(builder), held.take(), answer.sent, answered))
    }

    /// Decides by the answer of the store, or by the failure policy if there is none.
    fn finish(
        &self,
        mut builder: DecisionBuilder,
        held: Option<Box<HeldUnits>>,
        sent: Option<SendMark>,
        answer: Result<Answer, Error>,
    ) -> Result<Decision, Error> {
        match answer {
            Ok(answer) => {
                if let (Some(sent), Some((key, cost))) = (sent, builder.key_and_cost()) {
                    let quotas = self.intern_quotas(builder.quota_list());
                    let subject = self.subject(&quotas, key);
                    let asked = cost - held.as_ref().map_or(0, |held| held.units());
                    let max_age = self.max_refusal_age();
                    self.store
                        .remember(subject.check(asked), sent, &answer, max_age);
                }
                if let Some(held) = held.filter(|_| answer.is_admitted()) {
                    builder.set_grants(0, held.into_used());
                }
                builder.set_answer(answer);
                self.conclude(builder)
            }
            Err(error) => self.apply_failure_policy(builder, error),
        }
    }

    /// Decides by the answer in the builder.
    #[inline]
    pub(super) fn conclude(&self, mut builder: DecisionBuilder) -> Result<Decision, Error> {
        if let Err(answers) = builder.decide() {
            let error = mismatch(answers, builder.quota_list().len());
            return self.apply_failure_policy(builder, error);
        }
        let decision = builder.finish();
        if let Some(on_failure) = &self.on_failure {
            on_failure
                .store_outages
                .record_decision(&self.name, decision.source());
        }
        Ok(decision)
    }
}

/// Answers a check that needs no store: one without quotas, or one with a cost that a log cannot charge.
#[inline]
pub(in crate::limiter) fn answer_without_store(
    quotas: &Quotas,
    cost: u32,
) -> Option<Result<Answer, Error>> {
    if quotas.is_empty() {
        return Some(Ok(Answer::new(Source::None, [])));
    }
    let max_cost = quotas.max_cost();
    if cost <= max_cost {
        return None;
    }
    // A cost above a limit is refused by the store, without a wait. To split it would not help.
    if exceeded_limit(quotas, cost).is_some() {
        return None;
    }
    Some(Err(Error::cost_too_large(cost, max_cost)))
}

/// Returns the lowest limit if the cost exceeds it, so that no wait helps.
#[inline]
pub(in crate::limiter) fn exceeded_limit(quotas: &Quotas, cost: u32) -> Option<u32> {
    quotas.min_limit().filter(|limit| cost > *limit)
}

/// Refuses a check of a blocked key.
///
/// A cost above a limit has no wait: it does not pass after the block either.
#[cold]
pub(in crate::limiter) fn blocked(quotas: &Quotas, cost: u32, left: Duration) -> Answer {
    let wait = exceeded_limit(quotas, cost).is_none().then_some(left);
    let refused = |quota: &Quota| QuotaAnswer::refused(quota.limit(), wait, left);
    Answer::new(Source::Block, quotas.iter().map(refused))
}

/// Returns the error for a store whose answer has another number of quotas than the check.
#[cold]
pub(in crate::limiter) fn mismatch(answers: usize, quotas: usize) -> Error {
    Error::new(
        ErrorKind::InvalidReply,
        format!("the store answered for {answers} of {quotas} quotas"),
    )
}
