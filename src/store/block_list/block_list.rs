//! The blocked keys that this process knows of, and how it learns what others have blocked.

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

/// People keep this list, and every process may fetch it each second.
const MAX_BLOCKED: usize = 10_000;

/// The [blocked](crate::Admin::block) keys of all limiters that this process knows of.
///
/// Limiters look here before they ask their store. So a blocked key costs the store nothing, and stays
/// blocked while the store fails. A lookup costs one atomic load while no key is blocked. Otherwise it
/// costs a second one for nearly all keys that are not blocked.
///
/// A [`Store`](crate::Store) has one list and returns it to all its limiters. Clones are one list, of at
/// most 10 000 keys. Times are those of this process: a monotonic clock.
#[derive(Clone)]
pub struct BlockList {
    inner: Arc<Inner>,
}

struct Inner {
    clock: Clock,
    /// When the last block expires; 0 if there is none.
    last_expiry: AtomicU64,
    filter: Filter,
    blocked: RwLock<Blocked>,
    refresher: Option<Refresher>,
}

/// The blocked keys by the fingerprint of limiter and key.
type Blocked = HashMap<Fingerprint, BlockedKey>;

/// One blocked key of one limiter.
#[derive(Clone, Debug)]
struct BlockedKey {
    limiter: Key,
    key: Key,
    /// By the clock of the list, in microseconds.
    expires_at: u64,
}

impl BlockList {
    /// Creates a list that only this process adds to.
    #[must_use]
    pub fn new() -> Self {
        Self::on_clock(Clock::monotonic())
    }

    pub(crate) fn on_clock(clock: Clock) -> Self {
        Self::build(clock, None)
    }

    /// Creates a list that other processes add to as well.
    ///
    /// `refresh` fetches the list and [replaces](Self::replace) this one. Checks start it at most once per
    /// `interval`, inside a tokio runtime, and do not wait for it: its errors are for itself to log. An
    /// interval of zero turns that off. An operator who lists the blocked keys waits for a refresh.
    #[must_use]
    pub fn shared(
        interval: Duration,
        refresh: impl Fn(&Self, RefreshTrigger) -> StoreFuture<()> + Send + Sync + 'static,
    ) -> Self {
        Self::shared_on_clock(Clock::monotonic(), interval, refresh)
    }

    pub(crate) fn shared_on_clock(
        clock: Clock,
        interval: Duration,
        refresh: impl Fn(&Self, RefreshTrigger) -> StoreFuture<()> + Send + Sync + 'static,
    ) -> Self {
        Self::build(clock, Some(Refresher::new(micros(interval), refresh)))
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

    /// Returns how long a key stays blocked, and starts a refresh in the background if one is due.
    #[inline]
    pub(crate) fn lookup(&self, subject: Subject<'_>) -> Option<Duration> {
        if let Some(refresher) = &self.inner.refresher {
            refresher.refresh_if_due(self, &self.inner.clock);
        }
        self.remaining(subject)
    }

    /// Returns how long a key stays blocked, as far as this process knows.
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
            // Fails if another thread has blocked a key meanwhile.
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

    /// Returns how long a key of a limiter stays blocked, as far as this process knows.
    #[must_use]
    pub fn blocked_for(&self, limiter: &Key, key: &Key) -> Option<Duration> {
        let name = key.fingerprint().within(limiter.fingerprint());
        self.find(name, self.inner.last_expiry.load(Ordering::Relaxed))
    }

    /// Fetches what other processes have blocked.
    pub(crate) fn refresh(&self) -> StoreFuture<()> {
        match &self.inner.refresher {
            None => StoreFuture::ready(Ok(())),
            Some(refresher) => (refresher.refresh)(self, RefreshTrigger::Operator),
        }
    }

    /// Adds a block to the list, or removes it if its duration is zero.
    ///
    /// # Errors
    ///
    /// An error of kind [`Full`](ErrorKind::Full) if 10 000 other keys are blocked.
    pub fn put(&self, block: Block<'_>) -> Result<(), Error> {
        let now = self.inner.clock.now();
        let (limiter, key) = (block.limiter().clone(), block.key().clone());
        let name = key.fingerprint().within(limiter.fingerprint());
        let mut blocked = self.write();
        if block.duration().is_zero() {
            blocked.remove(&name);
            self.rebuild_index(&blocked);
            return Ok(());
        }
        if blocked.len() >= MAX_BLOCKED && !blocked.contains_key(&name) {
            blocked.retain(|_, blocked| blocked.expires_at > now);
            self.rebuild_index(&blocked);
            if blocked.len() >= MAX_BLOCKED {
                return Err(full());
            }
        }
        let expires_at = now.saturating_add(micros(block.duration()));
        let blocked_key = BlockedKey {
            limiter,
            key,
            expires_at,
        };
        blocked.insert(name, blocked_key);
        self.inner.filter.add(name);
        self.inner
            .last_expiry
            .fetch_max(expires_at, Ordering::Relaxed);
        Ok(())
    }

    /// Replaces the list by these limiters, keys, and times for which they stay blocked.
    pub fn replace(&self, blocks: impl IntoIterator<Item = (Key, Key, Duration)>) {
        let now = self.inner.clock.now();
        let blocks = blocks.into_iter().map(|(limiter, key, remaining)| {
            let name = key.fingerprint().within(limiter.fingerprint());
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
        // Free the old list after the lock: up to 10 000 keys take a while.
        drop(blocked);
        drop(old);
    }

    /// Returns the blocked keys of a limiter, and for how long they stay so.
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
        // The list is consistent after each step, so a panic elsewhere does not matter.
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

impl BlockedKey {
    fn remaining(&self, now: u64) -> Option<Duration> {
        let micros = self.expires_at.checked_sub(now)?;
        (micros > 0).then(|| Duration::from_micros(micros))
    }
}

/// The reason for a refresh of a [`BlockList`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RefreshTrigger {
    /// An operator waits for the list, and learns what failed.
    Operator,
    /// Checks need a recent list, and do not wait for it.
    Background,
}

/// Fetches the list, and replaces it.
type RefreshFn = dyn Fn(&BlockList, RefreshTrigger) -> StoreFuture<()> + Send + Sync;

/// Refreshes a list on request, and in the background while checks come.
struct Refresher {
    refresh: Box<RefreshFn>,
    /// In microseconds; 0 for no refreshes in the background.
    interval: u64,
    /// When the next refresh in the background is due.
    next_at: AtomicU64,
    /// Whether a refresh in the background is running.
    is_running: Arc<AtomicBool>,
}

impl Refresher {
    fn new(
        interval: u64,
        refresh: impl Fn(&BlockList, RefreshTrigger) -> StoreFuture<()> + Send + Sync + 'static,
    ) -> Self {
        Self {
            refresh: Box::new(refresh),
            interval,
            next_at: AtomicU64::new(0),
            is_running: Arc::default(),
        }
    }

    /// Starts a refresh in the background if one is due.
    fn refresh_if_due(&self, list: &BlockList, clock: &Clock) {
        if self.interval == 0 {
            return;
        }
        let now = clock.now();
        let due_at = self.next_at.load(Ordering::Relaxed);
        let next_at = now.saturating_add(self.interval);
        // A time further ahead than that means that the clock has stepped back.
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
        // A slow refresh finishes before the next one starts.
        if moved.is_ok() && !self.is_running.swap(true, Ordering::Acquire) {
            let running = Running(Arc::clone(&self.is_running));
            let refresh = (self.refresh)(list, RefreshTrigger::Background);
            drop(runtime.spawn(async move {
                let _running = running;
                // The refresh logs its own errors.
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

/// The error of a list that has no room.
pub(in crate::store) fn full() -> Error {
    Error::new(
        ErrorKind::Full,
        format!(
            "cannot block another key: the block list is full with {MAX_BLOCKED} keys; unblock one first"
        ),
    )
}

/// Converts to microseconds, rounded up: the shortest block lasts one.
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
