//! Refusals remembered in this process: a client that keeps retrying costs Redis next to nothing.
//!
//! A check that a store refused with a wait stays refused until the wait has passed, no matter what
//! is charged meanwhile. So this process refuses the same check on its own for 0.8 of the wait,
//! measured from before the call was sent. That ends before Redis would admit the check, even while
//! chrony slews the clock of Redis and that of this process at its maximum rate of 8.3 % in
//! opposite directions.
//!
//! Only returned units let Redis admit the check earlier: a reset, a refund, a credit, a raised
//! limit, a jump of the server's clock. Limiters that share the cache forget the refusals at once.
//! Other processes, and a caller whose call Redis executes after the deadline, notice when the refusal
//! expires.
//!
//! With a wait of one second, a client that sends a check every millisecond reaches Redis six
//! times: with the check that is admitted, and 1, 801, 961, 993 and 999 ms later.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use quick_cache::UnitWeighter;
use quick_cache::sync::{Cache, DefaultLifecycle};

use super::requests::{Check, Subject};
use crate::clock::Clock;
#[cfg(feature = "test-util")]
use crate::clock::TestClock;
use crate::decision::{Answer, Wait};
use crate::key::{Fingerprint, HashFingerprint};
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

/// The refusals that this process remembers and repeats without asking the store.
///
/// A store returns its cache from [`Store::refusal_cache`](crate::Store::refusal_cache), and its limiters
/// look there before they ask the store. Clones are one cache, of the refusals of at most 10 000 keys.
///
/// A refusal is remembered for 0.8 of its wait and for at most [`max_age`](Self::max_age). It is repeated
/// to checks of the same limiter, key, quotas and cost. An admission, a refund, a credit or a reset through
/// any limiter of the store ends it at once.
///
/// The cache is exact only if a wait of the store is: while nobody returns units, a refused check must stay
/// refused until the wait that the store replied has passed.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use tollgate::store::{Check, RefusalCache, Store, StoreFuture, StoreId};
/// # use tollgate::store::{Answer, Source};
///
/// struct Remote {
///     id: StoreId,
///     refusal_cache: RefusalCache,
/// }
///
/// impl Remote {
///     fn new() -> Self {
///         let refusal_cache = RefusalCache::new().max_age(Duration::from_millis(200));
///         Self { id: StoreId::unique(), refusal_cache }
///     }
/// }
///
/// impl Store for Remote {
///     fn id(&self) -> StoreId {
///         self.id
///     }
///
///     fn check(&self, check: Check<'_>) -> StoreFuture {
///         # let _ = check;
///         // …
///         # StoreFuture::ready(Ok(Answer::new(Source::Other, [])))
///     }
///
///     fn refusal_cache(&self) -> Option<RefusalCache> {
///         Some(self.refusal_cache.clone())
///     }
/// }
/// ```
#[derive(Clone)]
pub struct RefusalCache {
    inner: Arc<Inner>,
}

struct Inner {
    settings: Settings,
    /// By limiter and key. Read without a lock, changed under the lock of the key's stripe.
    refusals: Refusals,
    stripes: [Stripe; STRIPES],
}

type Refusals = Cache<Fingerprint, Arc<[CachedRefusal]>, UnitWeighter, HashFingerprint>;

#[derive(Clone)]
struct Settings {
    meter: StoreMeter,
    clock: Clock,
    max_age: Duration,
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

impl RefusalCache {
    /// Creates a cache that remembers a refusal for at most one second.
    #[must_use]
    pub fn new() -> Self {
        Self::build(Settings {
            meter: StoreMeter::unnamed(),
            clock: Clock::monotonic(),
            max_age: DEFAULT_MAX_AGE,
        })
    }

    fn build(settings: Settings) -> Self {
        Self {
            inner: Arc::new(Inner {
                settings,
                refusals: Cache::with(
                    MAX_KEYS,
                    MAX_KEYS as u64,
                    UnitWeighter,
                    HashFingerprint::default(),
                    DefaultLifecycle::default(),
                ),
                stripes: [const { Stripe::new() }; STRIPES],
            }),
        }
    }

    fn with(&self, change: impl FnOnce(&mut Settings)) -> Self {
        let mut settings = self.inner.settings.clone();
        change(&mut settings);
        Self::build(settings)
    }

    /// Sets the longest time that a refusal is remembered; the default is one second. Zero turns the
    /// cache off. Returns another, empty cache.
    ///
    /// It is also the delay until this process notices units that other processes return, and limits that
    /// they raise.
    #[must_use]
    pub fn max_age(self, max_age: Duration) -> Self {
        self.with(|settings| settings.max_age = max_age)
    }

    /// Sets the name of the store in metrics; the default is `other`. Returns another, empty cache.
    #[must_use]
    pub fn named(self, store: &str) -> Self {
        self.meter(StoreMeter::new(store))
    }

    pub(super) fn meter(self, meter: StoreMeter) -> Self {
        self.with(|settings| settings.meter = meter)
    }

    /// Uses a clock that a test moves by hand. Returns another, empty cache.
    #[cfg(feature = "test-util")]
    #[cfg_attr(docsrs, doc(cfg(feature = "test-util")))]
    #[must_use]
    pub fn with_clock(self, clock: TestClock) -> Self {
        self.clock(Clock::Test(clock))
    }

    #[cfg(any(feature = "redis", feature = "test-util"))]
    pub(super) fn clock(self, clock: Clock) -> Self {
        self.with(|settings| settings.clock = clock)
    }

    /// Returns the remembered refusal of a check that the store would refuse as well.
    pub(super) fn get(&self, check: Check<'_>) -> Option<Answer> {
        if !self.remembers(check) {
            return None;
        }
        let refusals = self.inner.refusals.get(&check.subject.fingerprint())?;
        let now = self.inner.settings.clock.now();
        refusals
            .iter()
            .find(|refusal| refusal.matches(check.quotas(), check.cost()) && refusal.is_valid(now))
            .map(|refusal| refusal.answer.repeated_after(now - refusal.answered_at))
    }

    /// Takes the mark for [`record`](Self::record). Call this before the check is sent.
    pub(super) fn before_send(&self, check: Check<'_>) -> SendMark {
        SendMark {
            sent_at: self.inner.settings.clock.now(),
            generation: self.stripe(check.subject.fingerprint()).generation(),
        }
    }

    /// Remembers a refusal. An admission forgets the refusals of its key: it makes the waits of
    /// other costs longer than remembered.
    pub(super) fn record(&self, check: Check<'_>, mark: SendMark, answer: &Answer) {
        if !self.remembers(check) {
            return;
        }
        let Inner {
            settings, refusals, ..
        } = &*self.inner;
        let fingerprint = check.subject.fingerprint();
        let known = refusals.get(&fingerprint);
        let stripe = self.stripe(fingerprint);
        let Some(wait) = longest_wait(answer) else {
            if known.is_some() {
                let _guard = stripe.lock();
                self.remove(fingerprint);
            }
            return;
        };
        let now = settings.clock.now();
        let is_same = |refusal: &CachedRefusal| refusal.matches(check.quotas(), check.cost());
        // The same refusal, in flight at the same time.
        let mut known = known.iter().flat_map(|known| known.iter());
        if known.any(|refusal| is_same(refusal) && refusal.is_valid(now)) {
            return;
        }
        let guard = stripe.lock();
        if stripe.generation() != mark.generation {
            return;
        }
        let age = validity(wait).min(micros(settings.max_age));
        let refusal = CachedRefusal {
            quotas: check.quotas().clone(),
            cost: check.cost(),
            answer: answer.clone(),
            answered_at: now,
            expires_at: mark.sent_at.saturating_add(age),
        };
        let known = refusals.get(&fingerprint);
        let others = known.iter().flat_map(|known| known.iter());
        let others = others.filter(|other| !is_same(other) && other.is_valid(now));
        let all = [refusal].into_iter().chain(others.cloned());
        refusals.insert(fingerprint, all.take(MAX_PER_KEY).collect());
        drop(guard);
        self.record_len();
    }

    fn remembers(&self, check: Check<'_>) -> bool {
        check.cost() > 0 && !self.inner.settings.max_age.is_zero()
    }

    fn stripe(&self, fingerprint: Fingerprint) -> &Stripe {
        let [first, ..] = &self.inner.stripes;
        let [_, bits] = fingerprint.halves();
        let index = usize::try_from(bits >> 56).unwrap_or(0);
        self.inner.stripes.get(index).unwrap_or(first)
    }

    fn remove(&self, fingerprint: Fingerprint) {
        if self.inner.refusals.remove(&fingerprint).is_some() {
            self.record_len();
        }
    }

    fn record_len(&self) {
        let Inner {
            settings, refusals, ..
        } = &*self.inner;
        settings.meter.record_refusals(|| refusals.len());
    }

    /// Forgets the refusals of a key to which units are returned: now, and again when the returned
    /// value is dropped, which is when the units have been returned.
    pub(super) fn invalidate(&self, subject: Subject<'_>) -> Invalidation {
        let invalidation = Invalidation {
            cache: self.clone(),
            fingerprint: subject.fingerprint(),
        };
        invalidation.forget();
        invalidation
    }
}

/// The state of the cache when a check was sent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SendMark {
    sent_at: u64,
    generation: u64,
}

/// A return of units in progress. Forgets the refusals of its key again on drop.
pub(super) struct Invalidation {
    cache: RefusalCache,
    fingerprint: Fingerprint,
}

impl Invalidation {
    fn forget(&self) {
        let stripe = self.cache.stripe(self.fingerprint);
        let _guard = stripe.lock();
        stripe.generation.fetch_add(1, Ordering::SeqCst);
        self.cache.remove(self.fingerprint);
    }
}

impl Drop for Invalidation {
    fn drop(&mut self) {
        self.forget();
    }
}

impl CachedRefusal {
    fn matches(&self, quotas: &Quotas, cost: u32) -> bool {
        self.cost == cost && self.quotas == *quotas
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

impl Default for RefusalCache {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for RefusalCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RefusalCache")
            .field("max_age", &self.inner.settings.max_age)
            .field("keys", &self.inner.refusals.len())
            .finish_non_exhaustive()
    }
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
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
