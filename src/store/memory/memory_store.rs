//! The store in this process: the same rules as in Redis, without Redis.

use std::fmt;
use std::sync::Arc;

use super::counters::DROPPABLE_PART;
use super::overflow::Overflow;
use super::shard::Shard;
use super::table::Table;
use crate::clock::Clock;
#[cfg(feature = "test-util")]
use crate::clock::TestClock;
use crate::decision::CountScope;
use crate::decision::{Answer, Source};
use crate::error::{Error, ErrorKind};
use crate::key::Fingerprint;
use crate::store::block_list::BlockList;
use crate::store::circuit_breaker::CircuitBreaker;
use crate::store::future::StoreFuture;
use crate::store::requests::Subject;
use crate::store::requests::{Block, Check, Credit, Refund, Reset};
use crate::store::store::Store;
use crate::telemetry::StoreMeter;

/// How many keys a store holds by default: with a quota of 100 units, about 100 MB when every key is at
/// its limit, and a tenth of that in common traffic.
pub(crate) const DEFAULT_MAX_KEYS: usize = 100_000;

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
/// 3. else the new key shares a count with others, as the next section says. A line in the log says so,
///    once a minute at most.
///
/// To keep a check short, 64 keys are looked at for a place, the next 64 at the next check. What one
/// key takes is bounded by its limits: a log holds 8 bytes for each microsecond in which units were
/// charged, and up to half more while it grows.
///
/// # A flood of new keys does not shut out the others
///
/// While the store is full of keys near their limits, a new key shares one count, and so one limit, with
/// other new keys:
///
/// - A key that holds an address ([`peer_ip`](crate::key::peer_ip), [`client_ip`](crate::key::client_ip),
///   also as a part of a tuple) shares with the addresses of its network, which is an IPv4 /24 or an IPv6
///   /48. There is room for one network for every eight keys, and for 64 at least.
/// - Any other key shares one of 64 counts of its limiter, by its hash. So does a network for which there
///   is no room, by 64 counts of their own.
///
/// So a flood from a few networks is refused by the limits of those networks, and clients elsewhere have
/// theirs. While a shared count has units that count, all new keys that belong to it stay there, also
/// when there is room again: a client that comes back has no second limit. No key is admitted more than
/// its limit in this way, and all keys of a shared count together are not either. `reset` and `give` for
/// such a key apply to the count that it shares.
///
/// If there are more than 4 096 shared counts, of more than 32 limiters, a check is answered by an
/// [`Error`] of kind [`ErrorKind::Full`].
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
    pub(crate) inner: Arc<Inner>,
}

pub(crate) struct Inner {
    meter: StoreMeter,
    guard: CircuitBreaker,
    blocks: BlockList,
    clock: Clock,
    max_keys: usize,
    pub(crate) keys: Table,
    overflow: Overflow,
}

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
        Self {
            inner: Arc::new(Inner {
                blocks: BlockList::with_clock(clock.clone()),
                clock,
                guard: CircuitBreaker::new().in_process().metered(meter.clone()),
                meter,
                max_keys,
                keys: Table::new(max_keys, DROPPABLE_PART),
                overflow: Overflow::new(max_keys),
            }),
        }
    }

    /// How many keys are held now, idle ones included that no check has come across yet.
    #[must_use]
    pub fn len(&self) -> usize {
        self.inner.keys.len()
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
        for shard in self.inner.keys.shards() {
            let (mut shard, now) = shard.lock_now(&self.inner.clock);
            let held = shard.len();
            shard.remove_dead(now);
            self.tell_held(held, shard.len());
        }
        self.inner.overflow.remove_dead(&self.inner.clock);
    }

    /// The most keys that are held.
    #[must_use]
    pub fn max_keys(&self) -> usize {
        self.inner.max_keys
    }

    /// Tells how many keys are held, when a shard holds another number than before.
    #[inline(always)]
    fn tell_held(&self, before: usize, now: usize) {
        if StoreMeter::IS_ENABLED && before != now {
            self.inner.meter.record_keys(before, now);
        }
    }

    /// Decides over a check, and puts the answer into its place; an error when there is no room.
    #[inline]
    fn decide(&self, check: Check<'_>, answer: &mut Answer) -> Result<(), Error> {
        let Inner { keys, clock, .. } = &*self.inner;
        let name = check.subject.fingerprint();
        let (mut shard, now) = keys.lock_now(name, clock);
        let held = shard.len();
        shard.sweep_occasionally(now);
        answer.clear(now, Source::Memory);
        let has_room = match shard.get_mut(name) {
            Some(counters) => {
                counters.check(check, now, answer);
                true
            }
            None => self.check_new_key(&mut shard, check, now, answer),
        };
        self.tell_held(held, shard.len());
        if has_room { Ok(()) } else { Err(self.full()) }
    }

    /// Decides over a check of a key that has no count of its own. Its shard stays locked, so that no
    /// other check of the key finds a place meanwhile.
    #[inline(never)]
    fn check_new_key(
        &self,
        shard: &mut Shard,
        check: Check<'_>,
        now: u64,
        answer: &mut Answer,
    ) -> bool {
        let Inner {
            overflow, clock, ..
        } = &*self.inner;
        if overflow.check_active(check, clock, answer)
            || shard.check_new_key(check.subject.fingerprint(), check, now, answer)
        {
            return true;
        }
        if overflow.should_warn(now) {
            tracing::warn!(target: "tollgate::diagnostics",
                "the memory store holds {} keys, all near their limits: new keys share the count of their \
                 network (IPv4 /24, IPv6 /48), or one of a few; raise `max_keys` if these are clients",
                self.inner.max_keys
            );
        }
        overflow.check(check, clock, answer)
    }

    /// Does something with the counts of a key: its own, or those that it shares with others now.
    fn with_counts<T>(
        &self,
        subject: Subject<'_>,
        act: impl FnOnce(&mut Shard, Fingerprint, u64) -> T,
    ) -> T {
        let Inner {
            keys,
            overflow,
            clock,
            ..
        } = &*self.inner;
        let name = subject.fingerprint();
        let (mut shard, now) = keys.lock_now(name, clock);
        if shard.get_mut(name).is_none()
            && let Some((mut shard, now, place)) = overflow.active(subject, clock)
        {
            return act(&mut shard, place.name, now);
        }
        let held = shard.len();
        let done = act(&mut shard, name, now);
        self.tell_held(held, shard.len());
        done
    }

    #[cold]
    fn full(&self) -> Error {
        Error::new(
            ErrorKind::Full,
            format!(
                "the memory store holds {} keys, all near their limits, and no shared count has room: \
                 raise max_keys",
                self.inner.max_keys
            ),
        )
    }
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
        self.with_counts(reset.subject, |shard, name, _| {
            shard.reset(name, reset.quotas());
        });
        StoreFuture::ready(Ok(()))
    }

    /// The units are where they were charged, wherever the key is counted now.
    fn refund(&self, refund: Refund<'_>) -> StoreFuture<()> {
        let Inner {
            keys,
            overflow,
            clock,
            ..
        } = &*self.inner;
        match refund.answer().scope() {
            CountScope::Own => {
                let name = refund.subject.fingerprint();
                let (mut shard, now) = keys.lock_now(name, clock);
                shard.refund(name, refund, now);
            }
            counted => {
                let place = overflow.lock_now(refund.subject, counted, clock);
                if let Some((mut shard, now, name)) = place {
                    shard.refund(name, refund, now);
                }
            }
        }
        StoreFuture::ready(Ok(()))
    }

    fn credit(&self, give: Credit<'_>) -> StoreFuture<()> {
        self.with_counts(give.subject, |shard, name, now| {
            shard.credit(name, give, now);
        });
        StoreFuture::ready(Ok(()))
    }

    fn block(&self, block: Block<'_>) -> StoreFuture<()> {
        StoreFuture::ready(self.inner.blocks.put(block))
    }

    fn block_list(&self) -> BlockList {
        self.inner.blocks.clone()
    }

    fn circuit_breaker(&self) -> CircuitBreaker {
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
