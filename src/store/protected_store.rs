//! A store with its circuit breaker, deadline and caches. Limiters ask the store through it.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use smallvec::SmallVec;

use super::block_list::BlockList;
use super::circuit_breaker::{Admission, CircuitBreaker};
use super::future::{OutcomeRecorder, StoreFuture};
use super::memory::MemoryCounts;
use super::refusal_cache::{RefusalCache, SendMark};
use super::requests::{Adjust, Block, Change, Check, Subject};
use super::store::{Store, StoreParts};
use crate::decision::{Answer, Answers, Holding, Source, StoreId};
use crate::error::Error;
use crate::key::Key;
use crate::runtime::{is_in_runtime, spawn_or_drop};
use crate::telemetry::OutageLog;

/// A store with its deadline, circuit breaker, fallback counts and refusal cache.
#[derive(Clone)]
pub(crate) struct ProtectedStore {
    store: Arc<dyn Store>,
    id: StoreId,
    /// Its circuit breaker has the deadline and the fallback counts.
    parts: StoreParts,
}

/// The least that a refresh of the block list may take in the background: no caller waits, and a long list may take longer
/// than a check may.
const MIN_REFRESH_TIMEOUT: Duration = Duration::from_secs(1);

/// The marks of checks that are decided together. Empty if nothing is remembered.
pub(crate) type SendMarks = SmallVec<[SendMark; 1]>;

impl ProtectedStore {
    pub(crate) fn new(store: impl Store) -> Self {
        Self {
            id: store.id(),
            parts: store.parts(),
            store: Arc::new(store),
        }
    }

    pub(crate) fn id(&self) -> StoreId {
        self.id
    }

    pub(crate) fn name(&self) -> &Arc<str> {
        &self.parts.circuit_breaker.settings().name
    }

    /// Asks the store to decide checks of one group, as [`Store::check`] does. Fails if the circuit breaker of the group is
    /// open, and repeats remembered refusals. Adds the marks by which new ones are to be [remembered](Self::remember).
    #[inline]
    pub(crate) fn ask(&self, checks: &[Check<'_>], sent: &mut SendMarks) -> StoreFuture {
        self.ask_by(checks, self.parts.refusal_cache.as_ref(), sent)
    }

    /// Asks the store without the refusal cache: a refusal there may be older than the units that other processes have
    /// returned.
    pub(crate) async fn check_uncached(&self, check: Check<'_>) -> Result<Answer, Error> {
        let answers = self.ask_uncached(&[check]).await?;
        Ok(answers.into_answers().next().unwrap_or_default())
    }

    pub(crate) fn ask_uncached(&self, checks: &[Check<'_>]) -> StoreFuture {
        self.ask_by(checks, None, &mut SendMarks::new())
    }

    /// Asks the store, unless the circuit breaker is open or refusals are remembered. Adds the marks by which answers of the
    /// store are to be remembered.
    #[inline]
    fn ask_by(
        &self,
        checks: &[Check<'_>],
        cache: Option<&RefusalCache>,
        sent: &mut SendMarks,
    ) -> StoreFuture {
        // The keys of a group are on one server.
        let Some(first) = checks.first() else {
            return StoreFuture::ready(Ok(Answers::default()));
        };
        let circuit_breaker = self.circuit_breaker(first.subject);
        let is_probe = match circuit_breaker.admit() {
            Admission::Ask => false,
            Admission::Probe if is_in_runtime() => {
                self.probe(*first, &circuit_breaker);
                return refuse(&circuit_breaker);
            }
            // Without a tokio runtime, the check of this caller is the probe.
            Admission::Probe => true,
            Admission::Refuse => return refuse(&circuit_breaker),
        };
        if let (Some(cache), false) = (cache, is_probe) {
            if let Some(refused) = repeat_refusals(cache, checks) {
                return StoreFuture::ready(Ok(refused));
            }
            *sent = self.before_send(checks);
        }
        let mut asked = self.store.check(checks);
        self.record(&mut asked, &circuit_breaker, is_probe);
        asked
    }

    #[inline]
    fn circuit_breaker(&self, subject: Subject<'_>) -> Cow<'_, CircuitBreaker> {
        match self.store.circuit_breaker(subject) {
            Some(circuit_breaker) => Cow::Owned(circuit_breaker),
            None => Cow::Borrowed(&self.parts.circuit_breaker),
        }
    }

    /// Repeats the remembered refusals of checks, unless their circuit breaker is open. `None` if there are none.
    pub(crate) fn repeat_refusals(&self, checks: &[Check<'_>]) -> Option<Answers> {
        let cache = self.parts.refusal_cache.as_ref()?;
        if checks.iter().any(|check| self.is_failing(check.subject)) {
            return None;
        }
        repeat_refusals(cache, checks)
    }

    pub(crate) fn supports_leases(&self) -> bool {
        self.parts.supports_leases
    }

    pub(crate) fn ends_with_process(&self) -> bool {
        self.parts.ends_with_process
    }

    pub(crate) fn block_list(&self) -> &BlockList {
        &self.parts.block_list
    }

    /// Returns whether the block list may contain a key: see [`BlockList::may_contain`]. Starts a refresh of the list in the
    /// background if one is due, unless the circuit breaker of the key is open.
    #[inline]
    pub(crate) fn may_be_blocked(&self, subject: Subject<'_>, pauses: [&Key; 2]) -> bool {
        // A key of a server that fails takes no turn, so that a key of another one refreshes.
        if self.parts.block_list.is_refresh_due() && !self.is_failing(subject) {
            let timeout = self.deadline().max(MIN_REFRESH_TIMEOUT);
            self.parts
                .block_list
                .start_refresh(|| self.store.refresh_blocks(timeout));
        }
        self.parts.block_list.may_contain(subject, pauses)
    }

    pub(crate) fn refresh_blocks(&self) -> StoreFuture<()> {
        self.bound(self.store.refresh_blocks(self.deadline()))
    }

    /// Returns a refresh of the block list that is under way, if the list is too old. It ends at the deadline. `None` if the
    /// circuit breaker of the key is open.
    pub(crate) fn refreshed_blocks(&self, subject: Subject<'_>) -> Option<StoreFuture<()>> {
        let refresh = self.parts.block_list.overdue_refresh(self.deadline())?;
        // Outside a tokio runtime there are no timers.
        if self.is_failing(subject) || !is_in_runtime() {
            return None;
        }
        let circuit_breaker = self.parts.circuit_breaker.clone();
        Some(StoreFuture::boxed(async move {
            circuit_breaker.within_deadline(refresh).await
        }))
    }

    pub(crate) fn deadline(&self) -> Duration {
        self.parts.circuit_breaker.settings().deadline
    }

    pub(crate) fn atomic_group(&self, subject: Subject<'_>) -> u64 {
        self.store.atomic_group(subject)
    }

    pub(crate) fn before_send(&self, checks: &[Check<'_>]) -> SendMarks {
        let mut marks = SendMarks::new();
        if let Some(cache) = &self.parts.refusal_cache {
            for check in checks {
                marks.push(cache.before_send(*check));
            }
        }
        marks
    }

    pub(crate) fn forget_refusals(&self, subject: Subject<'_>) {
        if let Some(cache) = &self.parts.refusal_cache {
            cache.forget(subject.fingerprint());
        }
    }

    #[inline]
    pub(crate) fn forget_outdated_refusals(&self, admitted: Check<'_>) {
        if let Some(cache) = &self.parts.refusal_cache {
            cache.record_admission(admitted);
        }
    }

    /// Remembers the answers to checks that were decided together: refusals, for at most `max_age`. An admission
    /// removes the refusals of its key.
    ///
    /// If one was refused, the others were not charged, so that the refusals of their keys stay.
    pub(crate) fn remember(
        &self,
        checks: &[Check<'_>],
        sent: &[SendMark],
        answers: &Answers,
        max_age: Duration,
    ) {
        let Some(cache) = &self.parts.refusal_cache else {
            return;
        };
        let are_admitted = answers.are_admitted();
        for ((check, mark), answer) in checks.iter().zip(sent).zip(answers.iter()) {
            if are_admitted || !answer.is_admitted() {
                cache.record(*check, *mark, answer, max_age);
            }
        }
    }

    #[cold]
    fn probe(&self, check: Check<'_>, circuit_breaker: &CircuitBreaker) {
        let mut probe = self.store.check(&[check.subject.check(0)]);
        self.record(&mut probe, circuit_breaker, true);
        if let Err(pending) = probe.try_ready() {
            spawn_or_drop(pending);
        }
    }

    /// Applies the deadline to a check, and records how it ends.
    #[inline]
    fn record(&self, asked: &mut StoreFuture, circuit_breaker: &CircuitBreaker, is_probe: bool) {
        match asked.outcome_if_ready() {
            Some(Ok(())) if !is_probe => circuit_breaker.record_success(),
            Some(outcome) => circuit_breaker.record_check(outcome, is_probe),
            None => {
                if !self.parts.circuit_breaker.settings().recorded_by_store {
                    *asked = self.bound(asked.take());
                }
                asked.record_by(OutcomeRecorder::new(circuit_breaker, is_probe));
            }
        }
    }

    /// Changes the units of a key: refunds where they were charged, in the store or in the fallback counts; resets in both;
    /// credits and charges in the store only.
    pub(crate) fn adjust(&self, adjust: Adjust<'_>) -> StoreFuture<()> {
        let is_of_fallback = match adjust.change {
            Change::Refund { answer, .. } => answer.source() == Source::Fallback,
            Change::Reset | Change::Credit { .. } | Change::Charge { .. } => false,
        };
        if (is_of_fallback || matches!(adjust.change, Change::Reset))
            && let Some(fallback) = self.fallback_if_used()
        {
            fallback.adjust(adjust);
        }
        if is_of_fallback {
            return StoreFuture::ready(Ok(()));
        }
        let circuit_breaker = self.circuit_breaker(adjust.subject);
        if circuit_breaker.is_open() {
            return refuse(&circuit_breaker);
        }
        let cache = self.parts.refusal_cache.as_ref();
        let invalidation = cache.map(|cache| cache.invalidate(adjust.subject));
        let adjusted = self.bound(self.store.adjust(adjust));
        if adjusted.outcome_if_ready().is_some() {
            return adjusted;
        }
        let circuit_breaker = circuit_breaker.into_owned();
        StoreFuture::boxed(async move {
            let outcome = adjusted.await;
            circuit_breaker.record_check(outcome.as_ref().map(drop), false);
            // Removes the remembered refusals of the key, also if the caller gives up.
            drop(invalidation);
            outcome
        })
    }

    pub(crate) fn watch_outage(
        &self,
        subject: Subject<'_>,
        log: &Arc<OutageLog>,
        limiter: &Arc<str>,
    ) {
        self.circuit_breaker(subject).watch_outage(log, limiter);
    }

    pub(crate) fn holders(&self, subject: Subject<'_>) -> StoreFuture<Vec<Holding>> {
        self.bound(self.store.holders(subject))
    }

    /// Blocks a key, even if the circuit breaker is open: the server of the block list may be another one than
    /// the server of the key.
    pub(crate) fn block(&self, block: Block<'_>) -> StoreFuture<bool> {
        self.bound(self.store.block(block))
    }

    pub(crate) fn is_failing(&self, subject: Subject<'_>) -> bool {
        self.circuit_breaker(subject).is_open()
    }

    /// Returns a number for the server that has a key now: of its circuit breaker.
    pub(crate) fn server(&self, subject: Subject<'_>) -> usize {
        self.circuit_breaker(subject).number()
    }

    /// Applies the deadline to a future that is not ready, unless the store does.
    fn bound<T: Send + 'static>(&self, pending: StoreFuture<T>) -> StoreFuture<T> {
        if pending.outcome_if_ready().is_some()
            || self.parts.circuit_breaker.settings().recorded_by_store
        {
            return pending;
        }
        let circuit_breaker = self.parts.circuit_breaker.clone();
        StoreFuture::boxed(async move { circuit_breaker.within_deadline(pending).await })
    }

    pub(crate) async fn within_deadline<T>(
        &self,
        calls: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, Error> {
        self.parts.circuit_breaker.within_deadline(calls).await
    }

    /// Decides checks together by the fallback counts. `None` if the fallback is turned off, or has no room for a
    /// key.
    pub(crate) fn check_fallback(&self, checks: &[Check<'_>]) -> Option<Answers> {
        let mut answers = self.parts.circuit_breaker.fallback()?.check(checks).ok()?;
        for answer in answers.iter_mut() {
            answer.set_source(Source::Fallback);
        }
        Some(answers)
    }

    pub(crate) fn has_same_fallback(&self, other: &Self) -> bool {
        self.parts.circuit_breaker.number() == other.parts.circuit_breaker.number()
    }

    pub(crate) fn fallback_if_used(&self) -> Option<&MemoryCounts> {
        self.parts.circuit_breaker.fallback_if_used()
    }

    pub(crate) fn is_in_process(&self) -> bool {
        self.parts.circuit_breaker.settings().is_in_process
    }
}

#[cold]
fn refuse<T>(circuit_breaker: &CircuitBreaker) -> StoreFuture<T> {
    StoreFuture::ready(Err(circuit_breaker.open_error()))
}

/// Returns the remembered refusals of checks, and an empty answer to each of the others. `None` if nothing is remembered:
/// then the store has to be asked.
#[inline]
fn repeat_refusals(cache: &RefusalCache, checks: &[Check<'_>]) -> Option<Answers> {
    let mut refused = None;
    for (index, check) in checks.iter().enumerate() {
        if let Some(refusal) = cache.get(*check) {
            let answers = refused.get_or_insert_with(|| Answers::empty(checks.len()));
            if let Some(answer) = answers.get_mut(index) {
                *answer = refusal;
            }
        }
    }
    refused
}
