//! Refusals remembered in this process: a client that keeps retrying costs Redis next to nothing.
//!
//! A check that Redis refused with a wait stays refused until the wait has passed, no matter what
//! is charged meanwhile. So this process refuses the same check on its own for 0.8 of the wait,
//! measured from before the call was sent. That ends before Redis would admit the check, even while
//! chrony slews the clock of Redis and that of this process at its maximum rate of 8.3 % in
//! opposite directions.
//!
//! Only returned units let Redis admit the check earlier: a reset, a refund, a credit, a raised
//! limit, a jump of the server's clock. The store that returns units forgets the refusals at once.
//! Other stores, and a store whose call Redis executes after the deadline, notice when the refusal
//! expires.
//!
//! With a wait of one second, a client that sends a check every millisecond reaches Redis six
//! times: with the check that is admitted, and 1, 801, 961, 993 and 999 ms later.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use quick_cache::sync::Cache;

use super::requests::{Check, Subject};
use crate::clock::Clock;
use crate::decision::{Answer, Wait};
use crate::key::Fingerprint;
use crate::quota::Quotas;
use crate::telemetry::StoreMeter;

#[cfg(all(test, feature = "test-util"))]
mod tests;

/// The default of the longest time that a refusal is remembered. It is also the delay until this
/// process notices what others reset, gave back or raised.
pub(super) const DEFAULT_MAX_AGE: Duration = Duration::from_secs(1);

/// The limit on keys with remembered refusals. The busiest stay. About 200 bytes each, with mostly
/// one refusal a key.
const MAX_KEYS: usize = 10_000;

/// The limit on remembered refusals of one key. They differ in cost or quotas.
const MAX_PER_KEY: usize = 8;

/// The stripes of the locks: units returned to one key seldom concern the refusals of another.
const STRIPES: usize = 256;

/// The refusals that this process remembers.
pub(crate) struct RefusalCache {
    meter: StoreMeter,
    /// By limiter and key. Read without a lock, changed under the lock of the key's stripe.
    refusals: Cache<Fingerprint, Arc<[CachedRefusal]>>,
    stripes: [Stripe; STRIPES],
    clock: Clock,
    /// In microseconds.
    max_age: u64,
}

/// The state that the keys of one stripe share.
struct Stripe {
    /// Counts invalidations. A refusal that was in flight during one is not remembered.
    generation: AtomicU64,
    /// Held while the refusals of a key are replaced. Otherwise, a thread that has read them before
    /// an invalidation could put them back.
    lock: Mutex<()>,
}

#[derive(Clone)]
struct CachedRefusal {
    quotas: Quotas,
    cost: u32,
    answer: Answer,
    /// When the answer arrived, in microseconds of the clock of this process.
    answered_at: u64,
    expires_at: u64,
}

/// The state of the cache when a check was sent.
#[derive(Clone, Copy, Debug)]
pub(super) struct SendMark {
    sent_at: u64,
    generation: u64,
}

impl RefusalCache {
    pub(super) fn new(clock: Clock, max_age: Duration, meter: StoreMeter) -> Self {
        Self {
            meter,
            refusals: Cache::new(MAX_KEYS),
            stripes: [const { Stripe::new() }; STRIPES],
            clock,
            max_age: u64::try_from(max_age.as_micros()).unwrap_or(u64::MAX),
        }
    }

    /// Returns the remembered refusal of a check that Redis would refuse as well.
    pub(super) fn get(&self, check: Check<'_>) -> Option<Answer> {
        if self.max_age == 0 || check.cost() == 0 {
            return None;
        }
        let refusals = self.refusals.get(&check.subject.fingerprint())?;
        let now = self.clock.now();
        refusals
            .iter()
            .find(|refusal| refusal.matches(check) && refusal.is_valid(now))
            .map(|refusal| refusal.answer.repeated_after(now - refusal.answered_at))
    }

    /// Takes the mark for [`record`](Self::record). Call this before the check is sent.
    pub(super) fn before_send(&self, check: Check<'_>) -> SendMark {
        SendMark {
            sent_at: self.clock.now(),
            generation: self.stripe(check.subject.fingerprint()).generation(),
        }
    }

    fn stripe(&self, fingerprint: Fingerprint) -> &Stripe {
        let [first, ..] = &self.stripes;
        let [_, bits] = fingerprint.halves();
        let index = usize::try_from(bits >> 56).unwrap_or(0);
        self.stripes.get(index).unwrap_or(first)
    }

    /// Remembers a refusal. An admission forgets the refusals of its key: it makes the waits of
    /// other costs longer than remembered.
    pub(super) fn record(&self, check: Check<'_>, answer: &Answer, mark: SendMark) {
        if self.max_age == 0 || check.cost() == 0 {
            return;
        }
        let fingerprint = check.subject.fingerprint();
        let stripe = self.stripe(fingerprint);
        let Some(wait) = longest_wait(answer) else {
            self.remove(fingerprint, stripe.lock());
            return;
        };
        let answered_at = self.clock.now();
        let age = validity(wait).min(self.max_age);
        let refusal = CachedRefusal {
            quotas: check.quotas().clone(),
            cost: check.cost(),
            answer: answer.clone(),
            answered_at,
            expires_at: mark.sent_at.saturating_add(age),
        };
        let guard = stripe.lock();
        if stripe.generation() != mark.generation {
            return;
        }
        let known = self.refusals.get(&fingerprint);
        let others = known.iter().flat_map(|refusals| refusals.iter());
        let others = others.filter(|other| !other.matches(check) && other.is_valid(answered_at));
        let refusals = [refusal].into_iter().chain(others.cloned());
        let refusals = refusals.take(MAX_PER_KEY).collect();
        self.refusals.insert(fingerprint, refusals);
        drop(guard);
        self.meter.refusals(|| self.refusals.len());
    }

    fn remove(&self, fingerprint: Fingerprint, guard: MutexGuard<'_, ()>) {
        let removed = self.refusals.remove(&fingerprint);
        drop(guard);
        if removed.is_some() {
            self.meter.refusals(|| self.refusals.len());
        }
    }

    /// Forgets the refusals of a key to which units are returned: now, and again when the returned
    /// value is dropped, which is when the units have been returned.
    pub(super) fn invalidate(self: &Arc<Self>, subject: Subject<'_>) -> Invalidation {
        let invalidation = Invalidation {
            cache: Arc::clone(self),
            fingerprint: subject.fingerprint(),
        };
        invalidation.forget();
        invalidation
    }
}

/// A return of units in progress. Forgets the refusals of its key again on drop.
pub(super) struct Invalidation {
    cache: Arc<RefusalCache>,
    fingerprint: Fingerprint,
}

impl Invalidation {
    fn forget(&self) {
        let stripe = self.cache.stripe(self.fingerprint);
        let guard = stripe.lock();
        stripe.generation.fetch_add(1, Ordering::SeqCst);
        self.cache.remove(self.fingerprint, guard);
    }
}

impl Drop for Invalidation {
    fn drop(&mut self) {
        self.forget();
    }
}

impl CachedRefusal {
    fn matches(&self, check: Check<'_>) -> bool {
        self.cost == check.cost() && self.quotas == *check.quotas()
    }

    fn is_valid(&self, now: u64) -> bool {
        (self.answered_at..self.expires_at).contains(&now)
    }
}

impl Stripe {
    const fn new() -> Self {
        Self {
            generation: AtomicU64::new(0),
            lock: Mutex::new(()),
        }
    }

    fn generation(&self) -> u64 {
        self.generation.load(Ordering::SeqCst)
    }

    fn lock(&self) -> MutexGuard<'_, ()> {
        // A panic cannot leave anything inconsistent: the lock protects no data of its own.
        self.lock.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns for how long a refusal with this wait is remembered at most.
///
/// A clock that is 8.3 % slow shows 0.917 of a time of which a clock that is 8.3 % fast shows
/// 1.083, and 0.8 is less than 0.917 / 1.083.
fn validity(wait: u64) -> u64 {
    wait / 5 * 4
}

/// Returns how long a refused check stays refused, in microseconds. `None` if it was admitted.
fn longest_wait(answer: &Answer) -> Option<u64> {
    let waits = answer.quotas().iter().map(|quota| quota.wait());
    match waits.max()? {
        Wait::Zero => None,
        Wait::Micros(micros) => Some(micros),
        Wait::Never => Some(u64::MAX),
    }
}
