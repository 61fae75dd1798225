//! The public store in the memory of this process.

use std::fmt;
use std::sync::Arc;

use super::memory_counts::{DEFAULT_MAX_KEYS, MemoryCounts};
use crate::clock::Clock;
#[cfg(feature = "test-util")]
use crate::clock::TestClock;
use crate::decision::{Answer, StoreId};
use crate::store::block_list::BlockList;
use crate::store::circuit_breaker::CircuitBreaker;
use crate::store::future::StoreFuture;
use crate::store::requests::{Block, Check, Credit, Refund, Reset};
use crate::store::store::Store;
use crate::telemetry::StoreMeter;

/// Counts in the memory of this process.
///
/// For tests, for services of one process, and as the fallback while Redis is unreachable. It decides by
/// the same rules as [`RedisStore`](crate::RedisStore), to the microsecond, on a monotonic clock. Clones
/// share their counts. A check is answered at once, without a task or a thread in the background.
///
/// # Memory is bounded
///
/// The store holds at most [`max_keys`](Self::with_max_keys) keys, 100 000 by default. Now and
/// then a check drops a key whose counts have died, often enough that no key stays for long. A new key
/// that finds the store full gets room as follows:
///
/// 1. A key whose units have all returned is dropped.
/// 2. Else the key that has used the smallest part of its limits is dropped, if that is **at most
///    half**. It gets a fresh quota when it comes back. A key over or near its limit is never dropped,
///    so clients cannot free themselves by making up keys.
/// 3. Else the new key shares a count with others, as the next section says. A log line says so, at
///    most once a minute.
///
/// To keep checks short, each looks at 64 keys for room, and the next check at the next 64. The limits
/// of a key bound its memory: a log holds 8 bytes for each microsecond in which units were charged, and
/// up to half more while it grows.
///
/// # A flood of new keys does not shut out other clients
///
/// While the store is full of keys near their limits, a new key shares one count, and so one limit, with
/// other new keys:
///
/// - A key that holds an address ([`peer_ip`](crate::key::peer_ip), [`client_ip`](crate::key::client_ip),
///   also as a part of a tuple) shares with the addresses of its network, an IPv4 /24 or an IPv6 /48.
///   There is room for one network for every eight keys, and for at least 64.
/// - Any other key shares one of 64 counts of its limiter, by its hash. A network without room does the
///   same, with another 64 counts.
///
/// A flood from a few networks is then refused by the limits of those networks, and clients elsewhere
/// keep theirs. While a shared count has live units, all new keys that belong to it stay there, even
/// when there is room again: a client that comes back has no second limit. Neither one such key nor all
/// keys of a shared count together are admitted more than the limit. `reset` and `credit` for such a key
/// apply to the shared count.
///
/// With more than 4 096 shared counts, of more than 32 limiters, a check fails with an
/// [`Error`](crate::Error) of kind [`ErrorKind::Full`](crate::ErrorKind::Full).
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
    id: StoreId,
    counts: MemoryCounts,
    circuit_breaker: CircuitBreaker,
    block_list: BlockList,
}

impl MemoryStore {
    /// Creates a store for 100 000 keys.
    #[must_use]
    pub fn new() -> Self {
        Self::with_max_keys(DEFAULT_MAX_KEYS)
    }

    /// Creates a store for at most `max_keys` keys; at least one.
    #[must_use]
    pub fn with_max_keys(max_keys: usize) -> Self {
        Self::build(max_keys, Clock::monotonic())
    }

    /// Creates a store whose time a test moves by hand.
    #[cfg(feature = "test-util")]
    #[cfg_attr(docsrs, doc(cfg(feature = "test-util")))]
    #[must_use]
    pub fn with_clock(clock: TestClock) -> Self {
        Self::build(DEFAULT_MAX_KEYS, Clock::Test(clock))
    }

    /// Sets the name of the store in metrics. The default is `memory`.
    ///
    /// Call it before the store is used: it returns another store.
    #[must_use]
    pub fn named(self, store: &str) -> Self {
        let counts = &self.inner.counts;
        let clock = counts.clock().clone();
        Self::build_metered(counts.max_keys(), clock, StoreMeter::new(store))
    }

    pub(super) fn build(max_keys: usize, clock: Clock) -> Self {
        Self::build_metered(max_keys, clock, StoreMeter::new("memory"))
    }

    fn build_metered(max_keys: usize, clock: Clock, meter: StoreMeter) -> Self {
        Self {
            inner: Arc::new(Inner {
                id: StoreId::unique(),
                block_list: BlockList::on_clock(clock.clone()),
                circuit_breaker: CircuitBreaker::new().in_process().meter(meter.clone()),
                counts: MemoryCounts::new(max_keys, clock, meter),
            }),
        }
    }

    /// Returns the number of keys held now, idle ones included that no check has come across yet.
    #[must_use]
    pub fn len(&self) -> usize {
        self.inner.counts.len()
    }

    /// Returns whether no key is held.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Drops all keys whose counts have died: two windows and a second after they last began or
    /// were trimmed.
    ///
    /// Checks do so little by little. Call this to free the memory of a store that is no longer asked.
    pub fn remove_dead(&self) {
        self.inner.counts.remove_dead();
    }

    /// Returns the maximum number of keys.
    #[must_use]
    pub fn max_keys(&self) -> usize {
        self.inner.counts.max_keys()
    }

    #[cfg(test)]
    pub(super) fn counts(&self) -> &MemoryCounts {
        &self.inner.counts
    }
}

impl Store for MemoryStore {
    fn id(&self) -> StoreId {
        self.inner.id
    }

    fn check(&self, check: Check<'_>) -> StoreFuture {
        let mut answer = Answer::default();
        let decided = self.inner.counts.check(check, &mut answer);
        StoreFuture::ready(decided.map(|()| answer))
    }

    fn check_in_place(&self, check: Check<'_>, answer: &mut Answer) -> Option<StoreFuture> {
        let decided = self.inner.counts.check(check, answer);
        decided.err().map(|error| StoreFuture::ready(Err(error)))
    }

    fn check_all(&self, checks: &[Check<'_>]) -> StoreFuture<Vec<Answer>> {
        StoreFuture::ready(self.inner.counts.check_all(checks))
    }

    fn reset(&self, reset: Reset<'_>) -> StoreFuture<()> {
        self.inner.counts.reset(reset);
        StoreFuture::ready(Ok(()))
    }

    fn refund(&self, refund: Refund<'_>) -> StoreFuture<()> {
        self.inner.counts.refund(refund);
        StoreFuture::ready(Ok(()))
    }

    fn credit(&self, credit: Credit<'_>) -> StoreFuture<()> {
        self.inner.counts.credit(credit);
        StoreFuture::ready(Ok(()))
    }

    fn block(&self, block: Block<'_>) -> StoreFuture<()> {
        StoreFuture::ready(self.inner.block_list.put(block))
    }

    fn block_list(&self) -> BlockList {
        self.inner.block_list.clone()
    }

    fn circuit_breaker(&self) -> CircuitBreaker {
        self.inner.circuit_breaker.clone()
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
            .field("max_keys", &self.max_keys())
            .finish_non_exhaustive()
    }
}
