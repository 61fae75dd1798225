//! Refusals that this process remembers, so that a client that keeps retrying causes almost no load on Redis.
//!
//! A check that was refused with a wait stays refused until the wait has passed, even if more is charged meanwhile.
//! So this process refuses the same check without asking Redis for 0.8 of the wait, measured from the time at
//! which the call was sent. That ends before Redis would admit the check, even while chrony slews the clock of
//! Redis and the clock of this process in opposite directions at its maximum rate of 8.3 %.
//!
//! Redis may admit the check earlier only if units are returned (by a reset, a refund or a credit), if the
//! limit is raised, or if the server's clock jumps. After a jump back, a count of a calendar window may also end a day or
//! two earlier than reported, once a limiter of a zone further west asks. Units that are returned through a limiter with this
//! cache remove the refusals of the key at once. All other changes are seen when the refusal expires, also changes by
//! a call that Redis executes after its deadline.
//!
//! With a wait of one second, a client that sends a check every millisecond reaches Redis six times: with the
//! admitted check, and 1, 801, 961, 993 and 999 ms later.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::fingerprint_cache::{FingerprintCache, fingerprint_cache};
use super::requests::{Check, Subject};
#[cfg(feature = "test-util")]
use crate::clock::TestClock;
use crate::clock::{Clock, certain_part, micros};
use crate::decision::{Answer, Wait};
use crate::key::Fingerprint;
use crate::lock::Mutex;
use crate::quota::{Quotas, ShareId};
use crate::telemetry::StoreMeter;

#[cfg(all(test, feature = "test-util"))]
mod tests;

/// The longest time that a refusal is remembered by default. It is also the longest delay until this process
/// sees units that other processes return, and limits that they raise.
pub(super) const DEFAULT_MAX_AGE: Duration = Duration::from_secs(1);

/// The most keys with remembered refusals. When there are more, the least used are evicted. A key with one
/// refusal takes about 200 bytes.
const MAX_KEYS: usize = 10_000;

/// The most remembered refusals of one key, which differ in cost, quotas or share.
const MAX_PER_KEY: usize = 8;

/// The number of lock stripes. With many, keys rarely share a lock and a generation.
const STRIPES: usize = 256;

/// A cache of refusals, so that a client that keeps retrying does not load a remote store.
///
/// Limiters look for a remembered refusal before they ask the store. They repeat it for a check of the same
/// limiter, key, quotas and cost, with a wait that is shorter by the time passed, and with
/// [`Source::RefusalCache`](crate::Source::RefusalCache).
///
/// [`RedisStore`](crate::RedisStore) has a refusal cache; see its setting
/// [`refusal_cache`](crate::RedisStore::refusal_cache). Use this type in a store outside this crate: keep one
/// cache, and return a clone from [`Store::parts`](crate::Store::parts). Clones share their
/// refusals. The cache holds the refusals of at most 10 000 keys, up to 8 for each.
///
/// # How long a refusal is repeated
///
/// For 0.8 of its wait, and for at most [`max_age`](Self::max_age), from the time at which the check was sent.
/// The margin covers two clocks that are slewed in opposite directions. An admission, a refund, a credit or a
/// reset of the key through any limiter of the store removes its refusals at once. Other processes see returned
/// units when their refusal expires.
///
/// The waits of the store must be exact: until the wait has passed, the store must refuse the check again,
/// unless units are returned. Otherwise the cache refuses checks that the store would admit.
#[derive(Clone)]
pub struct RefusalCache {
    inner: Arc<CacheInner>,
}

struct CacheInner {
    settings: CacheSettings,
    /// The refusals by the fingerprint of limiter and key. Reads take no lock; changes lock the stripe.
    refusals: FingerprintCache<Arc<[CachedRefusal]>>,
    stripes: [Stripe; STRIPES],
}

#[derive(Clone)]
struct CacheSettings {
    meter: StoreMeter,
    clock: Clock,
    max_age: Duration,
}

/// The lock and the generation of the keys of one stripe.
#[derive(Default)]
struct Stripe {
    /// Counts invalidations. A refusal that was in flight during an invalidation is not remembered.
    generation: AtomicU64,
    /// Held while the refusals of a key are replaced. Without it, a thread that has read them before an
    /// invalidation could insert them again afterwards.
    lock: Mutex<()>,
}

#[derive(Clone)]
struct CachedRefusal {
    quotas: Quotas,
    share: Option<ShareId>,
    lease_micros: u64,
    cost: u32,
    slots: u32,
    answer: Answer,
    /// The time at which the answer arrived, in microseconds of the clock of this process.
    answered_at: u64,
    expires_at: u64,
}

impl RefusalCache {
    /// Creates a cache that remembers a refusal for at most one second.
    #[must_use]
    pub fn new() -> Self {
        Self::build(CacheSettings {
            meter: StoreMeter::unnamed(),
            clock: Clock::monotonic(),
            max_age: DEFAULT_MAX_AGE,
        })
    }

    fn build(settings: CacheSettings) -> Self {
        Self {
            inner: Arc::new(CacheInner {
                settings,
                refusals: fingerprint_cache(MAX_KEYS, MAX_KEYS),
                stripes: std::array::from_fn(|_| Stripe::default()),
            }),
        }
    }

    fn with(&self, change: impl FnOnce(&mut CacheSettings)) -> Self {
        let mut settings = self.inner.settings.clone();
        change(&mut settings);
        Self::build(settings)
    }

    /// Sets the longest time that a refusal is remembered. The default is one second. Zero turns the cache
    /// off.
    ///
    /// It is also the longest delay until this process sees units that other processes return, and limits that
    /// they raise. Returns a new, empty cache.
    #[must_use]
    pub fn max_age(self, max_age: Duration) -> Self {
        self.with(|settings| settings.max_age = max_age)
    }

    /// Sets the name of the store in metrics. The default is `other`. Returns a new, empty cache.
    #[must_use]
    pub fn name(self, store: &str) -> Self {
        self.meter(StoreMeter::new(store))
    }

    pub(super) fn meter(self, meter: StoreMeter) -> Self {
        self.with(|settings| settings.meter = meter)
    }

    /// Uses a clock that a test moves. Returns a new, empty cache.
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

    #[inline]
    pub(super) fn get(&self, check: Check<'_>) -> Option<Answer> {
        if !self.remembers(check) {
            return None;
        }
        let refusals = self.inner.refusals.get(&check.subject.fingerprint())?;
        let now = self.inner.settings.clock.now();
        refusals
            .iter()
            .find(|refusal| refusal.matches(check) && refusal.is_valid(now))
            .map(|refusal| refusal.answer.repeated_after(now - refusal.answered_at))
    }

    /// Returns the mark for [`record`](Self::record). Call this before the check is sent.
    pub(super) fn before_send(&self, check: Check<'_>) -> SendMark {
        SendMark {
            sent_at: self.inner.settings.clock.now(),
            generation: self.stripe(check.subject.fingerprint()).generation(),
        }
    }

    /// Remembers a refusal, for at most `max_age`. An admission makes it forget those of the key.
    #[inline]
    pub(super) fn record(
        &self,
        check: Check<'_>,
        mark: SendMark,
        answer: &Answer,
        max_age: Duration,
    ) {
        let Some(wait) = longest_wait(answer) else {
            return self.record_admission(check);
        };
        if !self.remembers(check) {
            return;
        }
        let CacheInner {
            settings, refusals, ..
        } = &*self.inner;
        let fingerprint = check.subject.fingerprint();
        let known = refusals.get(&fingerprint);
        let now = settings.clock.now();
        // The same check may have been in flight twice.
        let is_known = known
            .iter()
            .flat_map(|known| known.iter())
            .any(|refusal| refusal.matches(check) && refusal.is_valid(now));
        if is_known {
            return;
        }
        let stripe = self.stripe(fingerprint);
        let guard = stripe.lock.lock();
        if stripe.generation() != mark.generation {
            return;
        }
        let age = certain_part(wait).min(micros(settings.max_age.min(max_age)));
        let refusal = CachedRefusal {
            quotas: check.quotas.clone(),
            share: check.share,
            lease_micros: check.lease_micros,
            cost: check.cost,
            slots: wanted_slots(check),
            answer: answer.clone(),
            answered_at: now,
            expires_at: mark.sent_at.saturating_add(age),
        };
        let known = refusals.get(&fingerprint);
        let others = known
            .iter()
            .flat_map(|known| known.iter())
            .filter(|other| !other.matches(check) && other.is_valid(now))
            .cloned();
        let all = [refusal].into_iter().chain(others).take(MAX_PER_KEY);
        refusals.insert(fingerprint, all.collect());
        drop(guard);
        self.record_len();
    }

    #[inline]
    pub(super) fn record_admission(&self, check: Check<'_>) {
        if !self.remembers(check) {
            return;
        }
        let fingerprint = check.subject.fingerprint();
        // The waits of other costs are now longer than remembered.
        if self.inner.refusals.get(&fingerprint).is_some() {
            let _guard = self.stripe(fingerprint).lock.lock();
            self.remove(fingerprint);
        }
    }

    fn remembers(&self, check: Check<'_>) -> bool {
        (check.cost > 0 || wanted_slots(check) > 0) && !self.inner.settings.max_age.is_zero()
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
        let CacheInner {
            settings, refusals, ..
        } = &*self.inner;
        settings.meter.record_refusals(|| refusals.len());
    }

    /// Removes the refusals of a key to which units are being returned: now, and again when the returned value
    /// is dropped. Drop it once the units have been returned.
    pub(super) fn invalidate(&self, subject: Subject<'_>) -> Invalidation {
        let invalidation = Invalidation {
            cache: self.clone(),
            fingerprint: subject.fingerprint(),
        };
        self.forget(invalidation.fingerprint);
        invalidation
    }

    /// Removes the refusals of a key, and those that are under way.
    pub(super) fn forget(&self, fingerprint: Fingerprint) {
        let stripe = self.stripe(fingerprint);
        let _guard = stripe.lock.lock();
        stripe.generation.fetch_add(1, Ordering::SeqCst);
        self.remove(fingerprint);
    }
}

/// The state of the cache when a check was sent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SendMark {
    sent_at: u64,
    generation: u64,
}

/// A return of units in progress. Removes the refusals of its key again on drop.
pub(super) struct Invalidation {
    cache: RefusalCache,
    fingerprint: Fingerprint,
}

impl Drop for Invalidation {
    fn drop(&mut self) {
        self.cache.forget(self.fingerprint);
    }
}

impl CachedRefusal {
    fn matches(&self, check: Check<'_>) -> bool {
        (self.cost, self.share, self.lease_micros) == (check.cost, check.share, check.lease_micros)
            && self.slots == wanted_slots(check)
            && self.quotas == *check.quotas
    }

    fn is_valid(&self, now: u64) -> bool {
        (self.answered_at..self.expires_at).contains(&now)
    }
}

fn wanted_slots(check: Check<'_>) -> u32 {
    match check.holding {
        Some(holding) if check.quotas.has_slots() => holding.wanted,
        _ => 0,
    }
}

impl Stripe {
    fn generation(&self) -> u64 {
        self.generation.load(Ordering::SeqCst)
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

/// Returns how long a refused check stays refused, in microseconds. `None` if the check was admitted.
fn longest_wait(answer: &Answer) -> Option<u64> {
    let longest = answer.quotas().iter().map(|quota| quota.wait()).max()?;
    match longest {
        Wait::Zero => None,
        Wait::Micros(micros) => Some(micros),
        Wait::Never => Some(u64::MAX),
    }
}
