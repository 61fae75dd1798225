//! The blocked keys that this process knows, and their refresh from a shared list.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::Duration;

use tokio::runtime::Handle;

use super::filter::Filter;
use crate::clock::Clock;
use crate::error::{Error, ErrorKind};
use crate::key::{Fingerprint, Key};
use crate::store::future::StoreFuture;
use crate::store::requests::{Block, Subject};

/// The most blocked keys. Operators add them by hand, and each process may fetch all of them every second.
const MAX_BLOCKED: usize = 10_000;

/// The most blocked keys for an automatic block to be added, so that operators have room for more.
pub(in crate::store) const MAX_AUTOMATIC: usize = 9_000;

/// The most blocked keys of a limiter for an automatic block of it to be added, so that a flood at one limiter leaves
/// room for nine.
const MAX_AUTOMATIC_PER_LIMITER: usize = 1_000;

/// The list of keys that operators have [blocked](crate::Admin::block), as this process knows it. It also has the
/// [automatic](crate::BlockRule) blocks.
///
/// Limiters read the list before they ask their store. So a blocked key causes no load on the store, and stays
/// blocked while the store fails. While no key is blocked, a lookup costs one atomic load. Otherwise, it costs
/// most other keys a second one.
///
/// Use this type in a [`Store`](crate::Store) outside this crate: keep one list, and return a clone from
/// [`Store::block_list`](crate::Store::block_list). Clones share their keys, at most 10 000. Times are those
/// of a monotonic clock of this process.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use tollgate::Key;
/// use tollgate::store::{Block, BlockList};
///
/// let list = BlockList::new();
/// let (limiter, key) = (Key::from("search"), Key::from("ada"));
///
/// list.put(Block::new(&limiter, &key, Duration::from_secs(600)))?;
/// assert!(list.blocked_for(&limiter, &key).is_some());
///
/// // A duration of zero unblocks the key.
/// list.put(Block::new(&limiter, &key, Duration::ZERO))?;
/// assert_eq!(list.blocked_for(&limiter, &key), None);
/// # Ok::<(), tollgate::Error>(())
/// ```
#[derive(Clone)]
pub struct BlockList {
    inner: Arc<Inner>,
}

struct Inner {
    clock: Clock,
    /// The time at which the last block expires; 0 if there is none.
    last_expiry: AtomicU64,
    filter: Filter,
    blocked: RwLock<Blocked>,
    refresher: Option<Refresher>,
}

/// The blocked keys, by the fingerprint of limiter and key.
type Blocked = HashMap<Fingerprint, BlockedKey>;

/// One blocked key of one limiter.
#[derive(Clone, Debug)]
struct BlockedKey {
    limiter: Key,
    key: Key,
    /// In microseconds of the list's clock.
    expires_at: u64,
}

impl BlockList {
    /// Creates a list of this process alone.
    #[must_use]
    pub fn new() -> Self {
        Self::on_clock(Clock::monotonic())
    }

    pub(crate) fn on_clock(clock: Clock) -> Self {
        Self::build(clock, None)
    }

    /// Creates a list that is shared with other processes.
    ///
    /// `refresh` fetches the shared list and [replaces](Self::replace) the content of this one. It runs
    ///
    /// - in the background, when a check finds that the last refresh is older than `interval`. The check does
    ///   not wait for it. It needs a tokio runtime, its errors are ignored, and an interval of zero turns it
    ///   off;
    /// - when an operator peeks at a key or lists the blocked keys, who waits for it and gets its error.
    #[must_use]
    pub fn shared(
        interval: Duration,
        refresh: impl Fn(&Self) -> StoreFuture<()> + Send + Sync + 'static,
    ) -> Self {
        let refresh: Arc<RefreshFn> = Arc::new(refresh);
        let in_background = Arc::clone(&refresh);
        Self::shared_on_clock(Clock::monotonic(), interval, refresh, in_background)
    }

    pub(in crate::store) fn shared_on_clock(
        clock: Clock,
        interval: Duration,
        for_operators: Arc<RefreshFn>,
        in_background: Arc<RefreshFn>,
    ) -> Self {
        let refresher = Refresher {
            for_operators,
            in_background,
            interval: micros(interval),
            next_at: AtomicU64::new(0),
            is_running: Arc::default(),
        };
        Self::build(clock, Some(refresher))
    }

    fn build(clock: Clock, refresher: Option<Refresher>) -> Self {
        Self {
            inner: Arc::new(Inner {
                clock,
                last_expiry: AtomicU64::new(0),
                filter: Filter::default(),
                blocked: RwLock::default(),
                refresher,
            }),
        }
    }

    /// Returns the clock of the blocks.
    pub(crate) fn clock(&self) -> &Clock {
        &self.inner.clock
    }

    /// Returns how long a key stays blocked. Starts a refresh in the background if one is due.
    #[inline]
    pub(crate) fn lookup(&self, subject: Subject<'_>) -> Option<Duration> {
        if let Some(refresher) = &self.inner.refresher {
            refresher.refresh_if_due(self, &self.inner.clock);
        }
        self.remaining(subject)
    }

    /// Returns how long a key stays blocked, by what this process knows.
    #[inline]
    pub(crate) fn remaining(&self, subject: Subject<'_>) -> Option<Duration> {
        match self.inner.last_expiry.load(Ordering::Relaxed) {
            0 => None,
            last_expiry => self.find(subject.fingerprint(), last_expiry),
        }
    }

    #[cold]
    fn find(&self, name: Fingerprint, last_expiry: u64) -> Option<Duration> {
        if !self.inner.filter.may_contain(name) {
            return None;
        }
        let now = self.inner.clock.now();
        if last_expiry <= now {
            // This fails if another thread has blocked a key meanwhile.
            let _ = self.inner.last_expiry.compare_exchange(
                last_expiry,
                0,
                Ordering::Relaxed,
                Ordering::Relaxed,
            );
            return None;
        }
        self.read().get(&name)?.remaining(now)
    }

    /// Returns how long a key of a limiter stays blocked. `None` if it is not blocked.
    ///
    /// Starts no refresh.
    #[must_use]
    pub fn blocked_for(&self, limiter: &Key, key: &Key) -> Option<Duration> {
        let name = name_of(limiter, key);
        self.find(name, self.inner.last_expiry.load(Ordering::Relaxed))
    }

    /// Fetches the shared list for an operator.
    pub(crate) fn refresh(&self) -> StoreFuture<()> {
        match &self.inner.refresher {
            None => StoreFuture::ready(Ok(())),
            Some(refresher) => (refresher.for_operators)(self),
        }
    }

    /// Adds a block to the list, or removes the key from the list if the duration is zero. Returns whether it took effect:
    /// an [automatic](Block::is_automatic) block does only if the key is not blocked.
    ///
    /// # Errors
    ///
    /// Returns an error of kind [`Full`](ErrorKind::Full) if 10 000 other keys are blocked. For an automatic block, if
    /// 1 000 keys of the limiter are blocked, or 9 000 of all limiters. The rest of the list is for operators.
    pub fn put(&self, block: Block<'_>) -> Result<bool, Error> {
        let now = self.inner.clock.now();
        let name = name_of(block.limiter, block.key);
        let mut blocked = self.write();
        if block.duration.is_zero() {
            blocked.remove(&name);
            self.rebuild_index(&blocked);
            return Ok(true);
        }
        let max = if block.is_automatic {
            MAX_AUTOMATIC
        } else {
            MAX_BLOCKED
        };
        if blocked.len() >= max {
            blocked.retain(|_, key| key.expires_at > now);
            self.rebuild_index(&blocked);
        }
        let known = blocked.get(&name);
        if block.is_automatic && known.is_some_and(|known| known.remaining(now).is_some()) {
            return Ok(false);
        }
        if known.is_none() && blocked.len() >= max
            || block.is_automatic && !has_room(&blocked, block.limiter, now)
        {
            return Err(full());
        }
        let expires_at = now.saturating_add(micros(block.duration));
        let blocked_key = BlockedKey {
            limiter: block.limiter.clone(),
            key: block.key.clone(),
            expires_at,
        };
        blocked.insert(name, blocked_key);
        self.inner.filter.add(name);
        self.inner
            .last_expiry
            .fetch_max(expires_at, Ordering::Relaxed);
        Ok(true)
    }

    /// Replaces the list. Each item is a limiter, a key, and the time for which it stays blocked from now on.
    pub fn replace(&self, blocks: impl IntoIterator<Item = (Key, Key, Duration)>) {
        let now = self.inner.clock.now();
        let blocks = blocks.into_iter().map(|(limiter, key, remaining)| {
            let name = name_of(&limiter, &key);
            let expires_at = now.saturating_add(micros(remaining));
            let blocked_key = BlockedKey {
                limiter,
                key,
                expires_at,
            };
            (name, blocked_key)
        });
        let new: Blocked = blocks.collect();
        let mut blocked = self.write();
        let old = std::mem::replace(&mut *blocked, new);
        self.rebuild_index(&blocked);
        // Free the old list without the lock, because up to 10 000 keys take a while.
        drop(blocked);
        drop(old);
    }

    /// Returns the blocked keys of a limiter, and how long each stays blocked.
    pub(crate) fn of_limiter(&self, limiter: &Key) -> Vec<(Key, Duration)> {
        let now = self.inner.clock.now();
        let blocked = self.read();
        let of_limiter = blocked.values().filter(|key| key.limiter == *limiter);
        let remaining = of_limiter.filter_map(|key| Some((key.key.clone(), key.remaining(now)?)));
        remaining.collect()
    }

    /// Rebuilds the filter and the last expiry after the list changed.
    fn rebuild_index(&self, blocked: &Blocked) {
        self.inner.filter.replace(blocked.keys().copied());
        let last_expiry = blocked.values().map(|key| key.expires_at).max();
        self.inner
            .last_expiry
            .store(last_expiry.unwrap_or_default(), Ordering::Relaxed);
    }

    fn read(&self) -> RwLockReadGuard<'_, Blocked> {
        // Poisoning is ignored: the list is consistent between any two steps.
        self.inner
            .blocked
            .read()
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Blocked> {
        self.inner
            .blocked
            .write()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the fingerprint of limiter and key together.
fn name_of(limiter: &Key, key: &Key) -> Fingerprint {
    key.fingerprint().within(limiter.fingerprint())
}

/// Returns whether a limiter has room for an automatic block.
fn has_room(blocked: &Blocked, limiter: &Key, now: u64) -> bool {
    let of_limiter = |key: &&BlockedKey| key.limiter == *limiter && key.expires_at > now;
    blocked.len() < MAX_AUTOMATIC_PER_LIMITER
        || blocked.values().filter(of_limiter).count() < MAX_AUTOMATIC_PER_LIMITER
}

impl BlockedKey {
    fn remaining(&self, now: u64) -> Option<Duration> {
        let micros = self.expires_at.checked_sub(now)?;
        (micros > 0).then(|| Duration::from_micros(micros))
    }
}

/// Fetches the shared list, and replaces the content of this one.
type RefreshFn = dyn Fn(&BlockList) -> StoreFuture<()> + Send + Sync;

/// Refreshes a list for operators, and in the background while there are checks.
struct Refresher {
    for_operators: Arc<RefreshFn>,
    in_background: Arc<RefreshFn>,
    /// The shortest time between two refreshes in the background, in microseconds; 0 for none.
    interval: u64,
    /// The time at which the next refresh in the background is due.
    next_at: AtomicU64,
    /// Whether a refresh in the background is running.
    is_running: Arc<AtomicBool>,
}

impl Refresher {
    /// Starts a refresh in the background if one is due.
    fn refresh_if_due(&self, list: &BlockList, clock: &Clock) {
        if self.interval == 0 {
            return;
        }
        let now = clock.now();
        let due_at = self.next_at.load(Ordering::Relaxed);
        let next_at = now.saturating_add(self.interval);
        // If the refresh is due later than this, the clock has stepped back.
        if now >= due_at || due_at > next_at {
            self.start_refresh(list, due_at, next_at);
        }
    }

    #[cold]
    fn start_refresh(&self, list: &BlockList, due_at: u64, next_at: u64) {
        let Ok(runtime) = Handle::try_current() else {
            return;
        };
        let moved =
            self.next_at
                .compare_exchange(due_at, next_at, Ordering::Relaxed, Ordering::Relaxed);
        // If a refresh is slow, the next one waits for its end.
        if moved.is_ok() && !self.is_running.swap(true, Ordering::Acquire) {
            let running = Running(Arc::clone(&self.is_running));
            let refresh = (self.in_background)(list);
            drop(runtime.spawn(async move {
                let _running = running;
                // The refresh function logs its errors.
                let _ = refresh.await;
            }));
        }
    }
}

/// Marks a refresh as running until it ends, or its runtime shuts down.
struct Running(Arc<AtomicBool>);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

/// Returns the error of a full list.
pub(in crate::store) fn full() -> Error {
    Error::new(
        ErrorKind::Full,
        format!(
            "cannot block another key: the block list is full with {MAX_BLOCKED} keys; unblock one first"
        ),
    )
}

/// Converts to microseconds, rounded up so that no block becomes zero.
fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos().div_ceil(1_000)).unwrap_or(u64::MAX)
}

impl Default for BlockList {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for BlockList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BlockList")
            .field("len", &self.read().len())
            .finish_non_exhaustive()
    }
}
