//! A store with its circuit breaker, deadline and caches. Limiters ask the store through it.

use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle;

use super::circuit_breaker::{CircuitBreaker, Operation, Permit};
use super::future::{OutcomeRecorder, StoreFuture};
use super::memory::MemoryCounts;
use super::refusal_cache::{RefusalCache, SendMark};
use super::requests::{Block, Check, Credit, Refund, Reset, Subject};
use super::store::Store;
use crate::decision::{Answer, Source, StoreId};
use crate::error::{Error, ErrorKind};

/// A store with its deadline, circuit breaker, fallback counts and refusal cache.
#[derive(Clone)]
pub(crate) struct ProtectedStore {
    store: Arc<dyn Store>,
    id: StoreId,
    circuit_breaker: CircuitBreaker,
    refusal_cache: Option<RefusalCache>,
    /// `None` if the store enforces its own deadline.
    deadline: Option<Duration>,
}

/// An answer that was not written in place: it is pending, or it is an error.
pub(crate) struct PendingAnswer {
    pub(crate) future: StoreFuture,
    /// The mark for [`ProtectedStore::remember`], if the store has a refusal cache.
    pub(crate) sent: Option<SendMark>,
}

impl From<StoreFuture> for PendingAnswer {
    fn from(future: StoreFuture) -> Self {
        Self { future, sent: None }
    }
}

impl ProtectedStore {
    pub(crate) fn new(store: impl Store) -> Self {
        let circuit_breaker = store.circuit_breaker();
        Self {
            id: store.id(),
            deadline: circuit_breaker.deadline_to_enforce(),
            refusal_cache: store.refusal_cache(),
            circuit_breaker,
            store: Arc::new(store),
        }
    }

    pub(crate) fn id(&self) -> StoreId {
        self.id
    }

    /// Asks the store as [`Store::check_in_place`] does. Fails if the circuit breaker is open, and repeats a
    /// remembered refusal.
    #[inline]
    pub(crate) fn check_in_place(
        &self,
        check: Check<'_>,
        answer: &mut Answer,
    ) -> Option<PendingAnswer> {
        let (partition, permit) = self.circuit_breaker.permit(check.subject);
        match permit {
            Permit::Ask => {}
            Permit::Probe => return Some(self.probe(check, partition).into()),
            Permit::Refuse => return Some(self.refuse(partition).into()),
        }
        if let Some(cache) = &self.refusal_cache {
            return self.check_remembering(cache, check, partition, answer);
        }
        if let Some(future) = self.store.check_in_place(check, answer) {
            let future = self.protect_check(future, partition, Operation::Check);
            return Some(future.into());
        }
        self.circuit_breaker.record_success(partition);
        None
    }

    /// Repeats a remembered refusal, or else asks the store.
    #[inline(never)]
    fn check_remembering(
        &self,
        cache: &RefusalCache,
        check: Check<'_>,
        partition: usize,
        answer: &mut Answer,
    ) -> Option<PendingAnswer> {
        if let Some(refusal) = cache.get(check) {
            *answer = refusal;
            return None;
        }
        let sent = Some(cache.before_send(check));
        let future = self.store.check(check);
        let future = self.protect_check(future, partition, Operation::Check);
        Some(PendingAnswer { future, sent })
    }

    /// Remembers the answer to a check if it is a refusal. An admission removes the refusals of its key.
    pub(crate) fn remember(&self, check: Check<'_>, sent: SendMark, answer: &Answer) {
        if let Some(cache) = &self.refusal_cache {
            cache.record(check, sent, answer);
        }
    }

    /// Sends a probe in the background, so that no caller waits for it. Without a tokio runtime, the check of
    /// this caller is the probe.
    #[cold]
    fn probe(&self, check: Check<'_>, partition: usize) -> StoreFuture {
        let Ok(runtime) = Handle::try_current() else {
            let future = self.store.check(check);
            return self.protect_check(future, partition, Operation::Probe);
        };
        let future = self.store.check(Check { cost: 0, ..check });
        drop(runtime.spawn(self.protect_check(future, partition, Operation::Probe)));
        self.refuse(partition)
    }

    #[cold]
    fn refuse<T>(&self, partition: usize) -> StoreFuture<T> {
        StoreFuture::ready(Err(self.circuit_breaker.open_error(partition)))
    }

    /// Applies the deadline to a check, and records its outcome in the circuit breaker.
    fn protect_check(
        &self,
        future: StoreFuture,
        partition: usize,
        operation: Operation,
    ) -> StoreFuture {
        match future.try_ready() {
            Ok(answer) => {
                let outcome = answer.as_ref().map(drop);
                self.circuit_breaker.record(partition, operation, outcome);
                StoreFuture::ready(answer)
            }
            Err(pending) => {
                let recorder =
                    OutcomeRecorder::new(&self.circuit_breaker, partition, operation, None);
                self.bound(pending).recorded_by(recorder)
            }
        }
    }

    /// Returns units where they were charged: in the store or in the fallback counts.
    pub(crate) fn refund(&self, refund: Refund<'_>) -> StoreFuture<()> {
        if refund.answer().source() != Source::Fallback {
            return self.adjust(refund.subject, || self.store.refund(refund));
        }
        if let Some(fallback) = self.fallback_if_used() {
            fallback.refund(refund);
        }
        StoreFuture::ready(Ok(()))
    }

    /// Removes the units of a key in the store and in the fallback counts.
    pub(crate) fn reset(&self, reset: Reset<'_>) -> StoreFuture<()> {
        if let Some(fallback) = self.fallback_if_used() {
            fallback.reset(reset);
        }
        self.adjust(reset.subject, || self.store.reset(reset))
    }

    /// Credits units in the store, but not in the fallback counts.
    pub(crate) fn credit(&self, credit: Credit<'_>) -> StoreFuture<()> {
        self.adjust(credit.subject, || self.store.credit(credit))
    }

    /// Sends a request that returns units to the store, unless the circuit breaker is open.
    fn adjust(
        &self,
        subject: Subject<'_>,
        send: impl FnOnce() -> StoreFuture<()>,
    ) -> StoreFuture<()> {
        let partition = self.circuit_breaker.partition_of(subject);
        if self.circuit_breaker.is_open_at(partition) {
            return self.refuse(partition);
        }
        let cache = self.refusal_cache.as_ref();
        let invalidation = cache.map(|cache| cache.invalidate(subject));
        match send().try_ready() {
            Ok(outcome) => StoreFuture::ready(outcome),
            Err(pending) => {
                let recorder = OutcomeRecorder::new(
                    &self.circuit_breaker,
                    partition,
                    Operation::Adjust,
                    invalidation,
                );
                self.bound(pending).recorded_by(recorder)
            }
        }
    }

    /// Blocks a key, even if the circuit breaker is open: the server of the block list may be another one than
    /// the server of the key.
    pub(crate) fn block(&self, block: Block<'_>) -> StoreFuture<()> {
        match self.store.block(block).try_ready() {
            Ok(outcome) => StoreFuture::ready(outcome),
            Err(pending) => self.bound(pending),
        }
    }

    /// Applies the deadline to a pending future, unless the store enforces its own.
    fn bound<T: Send + 'static>(&self, pending: StoreFuture<T>) -> StoreFuture<T> {
        match self.deadline {
            // Outside a tokio runtime there are no timers.
            Some(deadline) if Handle::try_current().is_ok() => {
                StoreFuture::boxed(within_deadline(deadline, pending))
            }
            _ => pending,
        }
    }

    /// Decides by the fallback counts. `None` if the fallback is turned off, or has no room for the key.
    pub(crate) fn check_fallback(&self, check: Check<'_>) -> Option<Answer> {
        let mut answer = Answer::default();
        self.circuit_breaker
            .fallback()?
            .check(check, &mut answer)
            .ok()?;
        Some(answer.into_fallback())
    }

    /// Returns the fallback counts, if a limiter of the store has ever fallen back.
    pub(crate) fn fallback_if_used(&self) -> Option<&MemoryCounts> {
        self.circuit_breaker.fallback_if_used()
    }

    /// Returns whether the store is the memory of this process.
    pub(crate) fn is_in_process(&self) -> bool {
        self.circuit_breaker.is_in_process()
    }

    /// Asks the store without the circuit breaker. `None` unless it answers at once and without an error.
    pub(crate) fn check_unprotected(&self, check: Check<'_>) -> Option<Answer> {
        self.store.check(check).try_ready().ok()?.ok()
    }
}

async fn within_deadline<T>(deadline: Duration, future: StoreFuture<T>) -> Result<T, Error> {
    let outcome = tokio::time::timeout(deadline, future).await;
    outcome.unwrap_or_else(|_| {
        let text = format!("the store did not answer within {deadline:?}");
        Err(Error::new(ErrorKind::Timeout, text))
    })
}
