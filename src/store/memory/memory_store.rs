//! The public type of the memory store.

use std::fmt;
use std::sync::Arc;

use super::memory_counts::{DEFAULT_MAX_KEYS, MemoryCounts};
use crate::clock::Clock;
#[cfg(feature = "test-util")]
use crate::clock::TestClock;
use crate::decision::{Holding, StoreId};
use crate::store::block_list::BlockList;
use crate::store::circuit_breaker::CircuitBreaker;
use crate::store::future::StoreFuture;
use crate::store::requests::{Adjust, Block, Check, Subject};
use crate::store::store::{Store, StoreParts};
use crate::telemetry::StoreMeter;

/// The name in metrics.
const DEFAULT_NAME: &str = "memory";

/// A store in the memory of this process.
///
/// For tests, and for services with one process. Several processes would each admit the whole limit: use
/// [`RedisStore`](crate::RedisStore) to share it. Both stores make the same decisions, to the microsecond.
/// This one reads a monotonic clock.
///
/// Clones share their counts. A check is answered at once. There is no background task or thread.
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
///
/// # Memory
///
/// The store holds at most [`max_keys`](Self::with_max_keys) keys, 100 000 by default. Checks also drop keys
/// that have expired, a few at a time. If the store is full, a new key gets room as follows:
///
/// 1. A key whose units have all returned is evicted.
/// 2. If there is none, the key that has used the smallest part of its limits is evicted, if that part is
///    **at most half**. When this key comes back, it has its whole limit again. A key that has used more than
///    half of a limit is never evicted, so a client cannot get a new limit by inventing keys.
/// 3. If there is none, the new key shares a count with others: see the next section. The store logs a
///    warning, at most once a minute.
///
/// To keep checks fast, each looks at 64 keys at most, and the next check at the next 64. The memory of a key
/// depends on its quotas. A log takes 12 bytes for each microsecond in which units were charged, and up to twice
/// that with those that wait to be removed.
///
/// # A flood of new keys
///
/// While the store is full of keys near their limits, a new key shares one count, and so one limit, with
/// other new keys of its limiter:
///
/// - A key with an address ([`peer_ip`](crate::key::peer_ip), [`client_ip`](crate::key::client_ip), also as a
///   part of a tuple) shares a count with its network: an IPv4 /24 or an IPv6 /48. There is room for one
///   network for each 8 keys of the store, and for at least 64.
/// - Any other key shares one of 64 counts, which its hash chooses. If there is no room for a network, its keys
///   share one of another 64 counts.
///
/// So a flood from a few networks is refused by the limits of these networks, and clients in other networks
/// keep theirs. Together, the keys of a shared count are admitted no more than the limit. While units count
/// in it, new keys that belong to it stay in it, even when there is room again, so that no client gets a
/// second limit. A reset or a credit of such a key applies to the shared count.
///
/// There is room for 4 096 counts of the second kind, which is enough for 32 limiters. A check that finds no
/// room fails with an [`Error`](crate::Error) of kind [`ErrorKind::Full`](crate::ErrorKind::Full).
#[derive(Clone)]
pub struct MemoryStore {
    pub(super) inner: Arc<MemoryStoreInner>,
}

pub(super) struct MemoryStoreInner {
    id: StoreId,
    pub(super) counts: MemoryCounts,
    circuit_breaker: CircuitBreaker,
    block_list: BlockList,
}

impl MemoryStore {
    /// Creates a store for at most 100 000 keys.
    ///
    /// With a quota of 100 units, these take up to 260 MB if every key is at its limit, and 15 to 30 MB if
    /// keys have few units.
    #[must_use]
    pub fn new() -> Self {
        Self::with_max_keys(DEFAULT_MAX_KEYS)
    }

    /// Creates a store for at most `max_keys` keys. 0 is taken as 1.
    #[must_use]
    pub fn with_max_keys(max_keys: usize) -> Self {
        Self::build(max_keys, Clock::since_1970(), DEFAULT_NAME)
    }

    /// Creates a store for at most 100 000 keys, with a clock that a test moves.
    #[cfg(feature = "test-util")]
    #[cfg_attr(docsrs, doc(cfg(feature = "test-util")))]
    #[must_use]
    pub fn with_clock(clock: TestClock) -> Self {
        Self::build(DEFAULT_MAX_KEYS, Clock::Test(clock), DEFAULT_NAME)
    }

    /// Sets the name of the store in metrics. The default is `memory`.
    ///
    /// Returns a new, empty store, so call it before the store is used.
    #[must_use]
    pub fn name(self, store: impl AsRef<str>) -> Self {
        let counts = &self.inner.counts;
        Self::build(counts.max_keys, counts.clock.clone(), store.as_ref())
    }

    pub(super) fn build(max_keys: usize, clock: Clock, name: &str) -> Self {
        let meter = StoreMeter::new(name);
        Self {
            inner: Arc::new(MemoryStoreInner {
                id: StoreId::unique(),
                block_list: BlockList::on_clock(clock.clone(), None),
                circuit_breaker: CircuitBreaker::new().in_process().meter(meter.clone()),
                counts: MemoryCounts::new(max_keys, clock, meter),
            }),
        }
    }

    /// Returns the number of keys in the store, with keys that have expired but were not dropped yet.
    #[must_use]
    pub fn len(&self) -> usize {
        self.inner.counts.keys.len()
    }

    /// Returns whether there are no keys in the store.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Drops all keys that have expired: at most two windows and a second after their last change.
    ///
    /// Checks do this a few keys at a time. Call it to free the memory of a store that gets no more checks.
    pub fn remove_dead(&self) {
        self.inner.counts.remove_dead();
    }
}

impl Store for MemoryStore {
    fn id(&self) -> StoreId {
        self.inner.id
    }

    #[inline]
    fn check(&self, checks: &[Check<'_>]) -> StoreFuture {
        StoreFuture::ready(self.inner.counts.check(checks))
    }

    fn adjust(&self, adjust: Adjust<'_>) -> StoreFuture<()> {
        self.inner.counts.adjust(adjust);
        StoreFuture::ready(Ok(()))
    }

    fn block(&self, block: Block<'_>) -> StoreFuture<bool> {
        StoreFuture::ready(self.inner.block_list.put(block))
    }

    fn holders(&self, subject: Subject<'_>) -> StoreFuture<Vec<Holding>> {
        StoreFuture::ready(Ok(self.inner.counts.holders(subject)))
    }

    fn parts(&self) -> StoreParts {
        StoreParts {
            block_list: self.inner.block_list.clone(),
            circuit_breaker: self.inner.circuit_breaker.clone(),
            ends_with_process: true,
            ..StoreParts::default()
        }
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
            .field("max_keys", &self.inner.counts.max_keys)
            .finish_non_exhaustive()
    }
}
