//! The store in this process: the same rules as in Redis, without Redis.

mod counters;
mod entries;
mod shard;

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::check::Subject;
use super::{Answer, Block, Blocks, Check, Give, Guard, Refund, Reset, Source, Store, StoreFuture};
use crate::clock::Clock;
#[cfg(feature = "test-util")]
use crate::clock::TestClock;
use crate::identity::Fingerprint;
use crate::telemetry::StoreMeter;
use crate::{Error, ErrorKind};
use shard::Shard;

/// How many keys a store holds unless told otherwise: with a quota of 100 units, about 100 MB when
/// every key is at its limit, and a tenth of that in common traffic.
pub(crate) const DEFAULT_MAX_KEYS: usize = 100_000;

/// A shard below this size would fill up long before its neighbours.
const MIN_KEYS_PER_SHARD: usize = 1_024;

const MAX_SHARDS: usize = 64;

/// Counts in the memory of this process.
///
/// For tests, for services of one process, and as the stand-in while Redis is away. It decides by
/// the same rules as [`RedisStore`](crate::RedisStore), to the microsecond, on a monotonic clock.
/// Clones share their counts. A check is answered at once, without waiting and without a task or a
/// thread in the background.
///
/// # Memory is bounded
///
/// The store holds at most [`max_keys`](Self::with_max_keys) keys, 100 000 by default. Now and
/// then a check drops a key whose counts have died, often enough that no key is kept for long. When a
/// new key needs a place and there is none:
///
/// 1. a key whose units have all been returned is dropped;
/// 2. else the key that has used the smallest part of its limits is dropped, if that is **at most
///    half**: it gets a fresh quota when it comes back. A key that is over or near its limit is
///    never dropped to make room, so nobody frees himself by making up keys;
/// 3. else the check is answered by an [`Error`] of kind [`ErrorKind::Full`], which the
///    middleware treats as a store that does not answer, and logs.
///
/// To keep a check short, 64 keys are looked at for a place, the next 64 at the next check. What one
/// key takes is bounded by its limits: a log holds 8 bytes for each microsecond in which units were
/// charged, and up to half more while it grows.
///
/// # Examples
///
/// ```
/// use tollgate::{MemoryStore, Quota, RateLimitLayer};
///
/// let store = MemoryStore::with_max_keys(10_000);
/// let layer = RateLimitLayer::new(store.clone(), Quota::per_minute(100));
/// assert!(store.is_empty());
/// ```
#[derive(Clone)]
pub struct MemoryStore {
    inner: Arc<Inner>,
}

struct Inner {
    meter: StoreMeter,
    guard: Guard,
    blocks: Blocks,
    clock: Clock,
    max_keys: usize,
    shards: Box<[Locked]>,
}

/// A shard on cache lines of its own: its neighbours are for other threads.
#[repr(align(128))]
struct Locked(Mutex<Shard>);

impl MemoryStore {
    /// A store for 100 000 keys.
    #[must_use]
    pub fn new() -> Self {
        Self::with_max_keys(DEFAULT_MAX_KEYS)
    }

    /// A store for at most `max_keys` keys; at least one.
    #[must_use]
    pub fn with_max_keys(max_keys: usize) -> Self {
        Self::build(max_keys, Clock::monotonic())
    }

    /// A store whose time a test moves by hand.
    #[cfg(feature = "test-util")]
    #[cfg_attr(docsrs, doc(cfg(feature = "test-util")))]
    #[must_use]
    pub fn with_clock(clock: TestClock) -> Self {
        Self::build(DEFAULT_MAX_KEYS, Clock::Test(clock))
    }

    /// What metrics call the store: `memory` unless said otherwise.
    ///
    /// To be told before the store is used: this is another store.
    #[must_use]
    pub fn named(self, store: &str) -> Self {
        self.metered(StoreMeter::new(store))
    }

    pub(crate) fn metered(self, meter: StoreMeter) -> Self {
        let Inner {
            max_keys, clock, ..
        } = &*self.inner;
        Self::build_metered(*max_keys, clock.clone(), meter)
    }

    pub(crate) fn build(max_keys: usize, clock: Clock) -> Self {
        Self::build_metered(max_keys, clock, StoreMeter::new("memory"))
    }

    pub(crate) fn build_metered(max_keys: usize, clock: Clock, meter: StoreMeter) -> Self {
        let max_keys = max_keys.max(1);
        let shards = (max_keys / MIN_KEYS_PER_SHARD).clamp(1, MAX_SHARDS);
        let shard = || Locked(Mutex::new(Shard::new(max_keys / shards)));
        Self {
            inner: Arc::new(Inner {
                blocks: Blocks::with_clock(clock.clone()),
                clock,
                guard: Guard::new().in_process().metered(meter.clone()),
                meter,
                max_keys,
                shards: std::iter::repeat_with(shard).take(shards).collect(),
            }),
        }
    }

    /// How many keys are held now, idle ones included that no check has come across yet.
    #[must_use]
    pub fn len(&self) -> usize {
        self.inner
            .shards
            .iter()
            .map(|shard| lock(shard).len())
            .sum()
    }

    /// Whether no key is held.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Drops all keys whose counts have died: two windows and a second after they last began or
    /// were trimmed.
    ///
    /// Checks do so by and by; this is for a store that is not asked any more, and
    /// whose memory is wanted.
    pub fn remove_dead(&self) {
        let now = self.inner.clock.now();
        for shard in &self.inner.shards {
            let mut shard = lock(shard);
            let held = shard.len();
            shard.remove_dead(now);
            self.tell_held(held, shard.len());
        }
    }

    /// The most keys that are held.
    #[must_use]
    pub fn max_keys(&self) -> usize {
        self.inner.max_keys
    }

    /// The shard of a subject, which alone is locked, and the name there.
    #[inline(always)]
    fn shard_of(&self, subject: Subject<'_>) -> Option<(MutexGuard<'_, Shard>, Fingerprint)> {
        let limiter = subject.limiter.fingerprint();
        let name = subject.key.fingerprint().within(limiter);
        // The map inside the shard uses the other half.
        let [_, half] = name.halves();
        let shards = &self.inner.shards;
        let scaled = (u128::from(half) * u128::try_from(shards.len()).unwrap_or(1)) >> 64;
        let shard = shards.get(usize::try_from(scaled).unwrap_or(0))?;
        Some((lock(shard), name))
    }

    /// Tells how many keys are held, when a shard holds another number than before.
    #[inline(always)]
    fn tell_held(&self, before: usize, now: usize) {
        if StoreMeter::LISTENS && before != now {
            self.inner.meter.keys_held(before, now);
        }
    }

    /// Decides over a check, and puts the answer into its place; an error when there is no room.
    #[inline]
    fn decide(&self, check: Check<'_>, answer: &mut Answer) -> Result<(), Error> {
        let now = self.inner.clock.now();
        let Some((mut shard, name)) = self.shard_of(check.subject) else {
            return Err(self.full());
        };
        let held = shard.len();
        shard.sweep_now_and_then(now);
        answer.begin(now, Source::Memory);
        let has_room = match shard.known(name) {
            Some(counters) => {
                counters.check(check, now, answer);
                true
            }
            None => shard.check_stranger(name, check, now, answer),
        };
        self.tell_held(held, shard.len());
        if has_room { Ok(()) } else { Err(self.full()) }
    }

    #[cold]
    fn full(&self) -> Error {
        Error::new(
            ErrorKind::Full,
            format!(
                "the memory store holds {} keys, all near their limits: raise max_keys",
                self.inner.max_keys
            ),
        )
    }
}

/// A shard is whole between any two of its steps, so that a panic elsewhere does not taint it.
fn lock(shard: &Locked) -> MutexGuard<'_, Shard> {
    shard.0.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Store for MemoryStore {
    fn check(&self, check: Check<'_>) -> StoreFuture {
        let mut answer = Answer::default();
        let decided = self.decide(check, &mut answer);
        StoreFuture::ready(decided.map(|()| answer))
    }

    fn check_in_place(&self, check: Check<'_>, answer: &mut Answer) -> Option<StoreFuture> {
        let decided = self.decide(check, answer);
        decided.err().map(|error| StoreFuture::ready(Err(error)))
    }

    fn reset(&self, reset: Reset<'_>) -> StoreFuture<()> {
        if let Some((mut shard, name)) = self.shard_of(reset.subject) {
            let held = shard.len();
            shard.reset(name, reset.quotas());
            self.tell_held(held, shard.len());
        }
        StoreFuture::ready(Ok(()))
    }

    fn refund(&self, refund: Refund<'_>) -> StoreFuture<()> {
        let now = self.inner.clock.now();
        if let Some((mut shard, name)) = self.shard_of(refund.subject) {
            shard.refund(name, refund, now);
        }
        StoreFuture::ready(Ok(()))
    }

    fn give(&self, give: Give<'_>) -> StoreFuture<()> {
        let now = self.inner.clock.now();
        if let Some((mut shard, name)) = self.shard_of(give.subject) {
            shard.give(name, give, now);
        }
        StoreFuture::ready(Ok(()))
    }

    fn block(&self, block: Block<'_>) -> StoreFuture<()> {
        StoreFuture::ready(self.inner.blocks.put(block))
    }

    fn blocks(&self) -> Blocks {
        self.inner.blocks.clone()
    }

    fn guard(&self) -> Guard {
        self.inner.guard.clone()
    }
}

impl Default for MemoryStore {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for MemoryStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryStore")
            .field("keys", &self.len())
            .field("max_keys", &self.inner.max_keys)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
