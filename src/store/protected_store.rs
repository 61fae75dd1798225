//! A store with its circuit breaker, deadline and caches. Limiters ask the store through it.

use std::sync::Arc;
use std::time::Duration;

use smallvec::SmallVec;
use tokio::runtime::Handle;

use super::circuit_breaker::{CircuitBreaker, Operation, Permit, Prober};
use super::future::{OutcomeRecorder, StoreFuture};
use super::memory::MemoryCounts;
use super::refusal_cache::{RefusalCache, SendMark};
use super::requests::{
    Block, Check, Credit, LimiterInfo, Refund, RefusalOutcome, Refusals, Reset, Subject,
};
use super::store::Store;
use crate::decision::{Answer, Source, StoreId};
use crate::error::{Error, ErrorKind};
use crate::key::Key;
use crate::quota::{Quota, Quotas};

/// A store with its deadline, circuit breaker, fallback counts and refusal cache.
#[derive(Clone)]
pub(crate) struct ProtectedStore {
    store: Arc<dyn Store>,
    id: StoreId,
    circuit_breaker: CircuitBreaker,
    refusal_cache: Option<RefusalCache>,
    /// `None` if the store enforces its own deadline.
    deadline: Option<Duration>,
    /// Sends probes while no limiter checks. `None` in the handle that it uses itself.
    _prober: Option<Arc<Prober>>,
}

/// The name under which an idle process probes, and the most keys of which it looks for one in a partition.
const PROBE: &str = "probe";
const PROBE_KEYS: u64 = 20_000;

/// An answer that was not written in place: it is pending, or it is an error.
pub(crate) struct PendingAnswer {
    pub(crate) future: StoreFuture,
    /// The mark for [`ProtectedStore::remember`], if the store has a refusal cache.
    pub(crate) sent: Option<SendMark>,
}

/// The answers to checks that are decided together.
pub(crate) struct PendingAnswers {
    pub(crate) future: StoreFuture<Vec<Answer>>,
    /// The mark of each check for [`ProtectedStore::remember_all`]. Empty if the store has no refusal cache.
    pub(crate) sent: SendMarks,
}

/// The marks of checks that are decided together.
pub(crate) type SendMarks = SmallVec<[SendMark; 4]>;

impl From<StoreFuture> for PendingAnswer {
    fn from(future: StoreFuture) -> Self {
        Self { future, sent: None }
    }
}

impl From<StoreFuture<Vec<Answer>>> for PendingAnswers {
    fn from(future: StoreFuture<Vec<Answer>>) -> Self {
        let sent = SendMarks::new();
        Self { future, sent }
    }
}

impl ProtectedStore {
    pub(crate) fn new(store: impl Store) -> Self {
        let circuit_breaker = store.circuit_breaker();
        let store = Self {
            id: store.id(),
            deadline: circuit_breaker.deadline_to_enforce(),
            refusal_cache: store.refusal_cache(),
            circuit_breaker,
            store: Arc::new(store),
            _prober: None,
        };
        let handle = store.clone();
        let prober: Arc<Prober> = Arc::new(move |partition| handle.probe_partition(partition));
        store.circuit_breaker.add_prober(&prober);
        Self {
            _prober: Some(prober),
            ..store
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

    /// Returns whether the store charges more than the cost of a check: see [`Store::supports_leases`].
    pub(crate) fn supports_leases(&self) -> bool {
        self.store.supports_leases()
    }

    /// Tells the store of a limiter: see [`Store::announce`].
    pub(crate) fn announce(&self, limiter: LimiterInfo<'_>) {
        self.store.announce(limiter);
    }

    /// Asks the store for units that this process will hold. Does not use the refusal cache: a refusal there may
    /// be older than the units that other processes have returned.
    pub(crate) fn grant(&self, check: Check<'_>) -> StoreFuture {
        let (partition, permit) = self.circuit_breaker.permit(check.subject);
        match permit {
            Permit::Ask => {
                let future = self.store.check(check);
                self.protect_check(future, partition, Operation::Check)
            }
            Permit::Probe => self.probe(check, partition),
            Permit::Refuse => self.refuse(partition),
        }
    }

    /// Returns the group of a check: see [`Store::atomic_group`].
    pub(crate) fn atomic_group(&self, check: Check<'_>) -> u64 {
        self.store.atomic_group(check)
    }

    /// Returns the remembered refusal of a check, unless the circuit breaker is open.
    pub(crate) fn remembered(&self, check: Check<'_>) -> Option<Answer> {
        let cache = self.refusal_cache.as_ref()?;
        let partition = self.circuit_breaker.partition_of(check.subject);
        if self.circuit_breaker.is_open_at(partition) {
            return None;
        }
        cache.get(check)
    }

    /// Asks the store to decide checks of one group together. Fails if the circuit breaker of the group is open.
    pub(crate) fn check_all(&self, checks: &[Check<'_>]) -> PendingAnswers {
        let mut operation = Operation::Check;
        let mut asked = None;
        // The keys of a group are in one partition.
        if let Some(check) = checks.first() {
            let (partition, permit) = self.circuit_breaker.permit(check.subject);
            match permit {
                Permit::Ask => {}
                Permit::Probe if Handle::try_current().is_err() => operation = Operation::Probe,
                Permit::Probe => {
                    drop(self.probe(*check, partition));
                    return self.refuse(partition).into();
                }
                Permit::Refuse => return self.refuse(partition).into(),
            }
            asked = Some(partition);
        }
        let sent = match &self.refusal_cache {
            None => SendMarks::new(),
            Some(cache) => {
                let marks = checks.iter().map(|check| cache.before_send(*check));
                marks.collect()
            }
        };
        let future = self.store.check_all(checks);
        PendingAnswers {
            future: self.protect_check(future, asked.unwrap_or(0), operation),
            sent,
        }
    }

    /// Remembers the answers to checks that were decided together.
    ///
    /// If one was refused, the others were not charged, so that the refusals of their keys stay. A refusal is
    /// remembered for at most `max_age`.
    pub(crate) fn remember_all(
        &self,
        checks: &[Check<'_>],
        sent: &[SendMark],
        answers: &[Answer],
        max_age: Duration,
    ) {
        let Some(cache) = &self.refusal_cache else {
            return;
        };
        let all_admitted = answers.iter().all(Answer::is_admitted);
        for ((check, mark), answer) in checks.iter().zip(sent).zip(answers) {
            if all_admitted || !answer.is_admitted() {
                cache.record(*check, *mark, answer, max_age);
            }
        }
    }

    /// Remembers the answer to a check if it is a refusal, for at most `max_age`. An admission removes the
    /// refusals of its key.
    #[inline]
    pub(crate) fn remember(
        &self,
        check: Check<'_>,
        sent: SendMark,
        answer: &Answer,
        max_age: Duration,
    ) {
        if let Some(cache) = &self.refusal_cache {
            cache.record(check, sent, answer, max_age);
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
        let future = self.store.check(check.subject.check(0));
        drop(runtime.spawn(self.protect_check(future, partition, Operation::Probe)));
        self.refuse(partition)
    }

    /// Sends a probe of a partition in the background, with a key that no client has.
    fn probe_partition(&self, partition: usize) {
        let (limiter, quotas) = (Key::from(PROBE), Quotas::from(Quota::per_second(1)));
        // Other keys each time: few may be in a partition with few slots.
        let first = self.circuit_breaker.now();
        for number in first..first.saturating_add(PROBE_KEYS) {
            let key = Key::from(number.to_string());
            let subject = Subject {
                limiter: &limiter,
                key: &key,
                quotas: &quotas,
            };
            if self.circuit_breaker.partition_of(subject) == partition {
                if let (partition, Permit::Probe) = self.circuit_breaker.permit(subject) {
                    drop(self.probe(subject.check(0), partition));
                }
                return;
            }
        }
    }

    #[cold]
    fn refuse<T>(&self, partition: usize) -> StoreFuture<T> {
        StoreFuture::ready(Err(self.circuit_breaker.open_error(partition)))
    }

    /// Applies the deadline to a check, and records its outcome in the circuit breaker.
    fn protect_check<T: Send + 'static>(
        &self,
        future: StoreFuture<T>,
        partition: usize,
        operation: Operation,
    ) -> StoreFuture<T> {
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

    /// Counts refusals, and blocks keys that were refused too often.
    pub(crate) fn count_refusals(
        &self,
        refusals: &[Refusals<'_>],
    ) -> StoreFuture<Vec<RefusalOutcome>> {
        match self.store.count_refusals(refusals).try_ready() {
            Ok(outcomes) => StoreFuture::ready(outcomes),
            Err(pending) => self.bound(pending),
        }
    }

    /// Returns whether the circuit breaker of a key is open.
    pub(crate) fn is_failing(&self, limiter: &Key, key: &Key) -> bool {
        let subject = Subject {
            limiter,
            key,
            quotas: &Quotas::from([]),
        };
        let partition = self.circuit_breaker.partition_of(subject);
        self.circuit_breaker.is_open_at(partition)
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

    /// Decides checks together by the fallback counts. `None` in the same cases as for one check.
    pub(crate) fn check_all_fallback(&self, checks: &[Check<'_>]) -> Option<Vec<Answer>> {
        let answers = self.circuit_breaker.fallback()?.check_all(checks).ok()?;
        Some(answers.into_iter().map(Answer::into_fallback).collect())
    }

    /// Returns whether both have the same fallback counts.
    pub(crate) fn has_same_fallback(&self, other: &Self) -> bool {
        self.circuit_breaker.is_same(&other.circuit_breaker)
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
