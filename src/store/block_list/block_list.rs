//! The blocked keys that this process knows, and their refresh from a shared list.

use std::collections::HashMap;
use std::fmt;
use std::iter;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::sync::{RwLock as AsyncRwLock, RwLockReadGuard};
use tokio::task::unconstrained;

use super::filter::Filter;
use super::refreshes::Refreshes;
use crate::clock::{Clock, micros_rounded_up};
use crate::error::{Error, ErrorKind};
use crate::key::{Fingerprint, Key};
use crate::lock::RwLock;
use crate::runtime::{is_in_runtime, spawn_or_drop};
use crate::store::fingerprint_cache::{FingerprintCache, fingerprint_cache};
use crate::store::future::StoreFuture;
use crate::store::requests::{Block, Subject};

/// The most blocked keys. Operators add them by hand, and each process may fetch all of them every second.
const MAX_BLOCKED: usize = 10_000;

/// The most blocked keys for an automatic block to be added, so that operators have room for more.
const MAX_AUTOMATIC: usize = 9_000;

/// The most blocked keys of a limiter for an automatic block of it to be added, so that a flood at one limiter leaves
/// room for nine.
const MAX_AUTOMATIC_PER_LIMITER: usize = 1_000;

/// How much later than in the shared list a pause may end before the others learn of it: each answer of a burst has
/// another end.
const SLACK: u64 = 10_000;

/// The most keys whose waits are known. When there are more, the least used are forgotten.
const MAX_WAITS: usize = 10_000;

/// The list of keys that operators have [blocked](crate::Admin::block), as this process knows it. It also has the
/// [automatic](crate::BlockRule) blocks, and the keys that an [upstream](crate::RateLimiter::observe) has paused.
///
/// Limiters read the list before they ask their store. So a blocked key causes no load on the store, and stays
/// blocked while the store fails. For most other keys, a lookup costs one atomic load.
///
/// Use this type in a [`Store`](crate::Store) outside this crate: keep one list, and return a clone from
/// [`Store::parts`](crate::Store::parts). Clones share their keys, at most 10 000. Times are those
/// of a monotonic clock of this process.
#[derive(Clone)]
pub struct BlockList {
    inner: Arc<Inner>,
}

struct Inner {
    clock: Clock,
    /// The names of all blocked keys. Names of expired blocks stay until the list changes.
    filter: Filter,
    /// Whether the list has no keys, so that most checks compute no name.
    is_empty: AtomicBool,
    blocked: RwLock<Blocked>,
    /// How long the quotas refuse keys that may be blocked meanwhile, by the refusals of this process.
    waits: FingerprintCache<Wait>,
    /// Read by each automatic block under way.
    automatic: AsyncRwLock<()>,
    /// `None` for a list of this process alone.
    refreshes: Option<Arc<Refreshes>>,
}

/// The blocked keys, by the fingerprint of limiter and key.
type BlockedKeys = HashMap<Fingerprint, BlockedKey>;

/// What this process knows of a shared list.
#[derive(Default)]
struct Blocked {
    keys: BlockedKeys,
    /// How far the clock of the shared list was ahead of this one at the last reading, in microseconds. `None` before it.
    lead: Option<u64>,
    /// How much later than in the shared list a block may end here, in microseconds: its reply took that long.
    lag: u64,
}

/// A reading of a shared list.
pub(in crate::store) struct SharedReading {
    /// Limiters, keys, and how long they stay blocked.
    pub(in crate::store) blocks: Vec<(Key, Key, Duration)>,
    /// The time of the reading by the clock of the shared list, in microseconds.
    pub(in crate::store) read_at: u64,
    /// The time at which this process asked, by the [clock](BlockList::clock) of its list.
    pub(in crate::store) asked_at: u64,
    /// Whether the shared list may have been lost with its server's data.
    pub(in crate::store) may_be_lost: bool,
}

/// One blocked key of one limiter.
struct BlockedKey {
    limiter: Key,
    key: Key,
    /// In microseconds of the list's clock. 0 if the key is not in the shared list.
    expires_at: u64,
    /// The knowledge of this process alone about a key that an upstream has paused.
    pause: Pause,
}

/// The pause of a key that an upstream asked of this process. Times are in microseconds of the list's clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Pause {
    /// The end that an upstream gave this process. 0 if it gave one to others only.
    until: u64,
    /// The time from which the others may be informed again.
    next_try_at: u64,
}

/// The last known wait of a key. Times are in microseconds of the list's clock.
#[derive(Clone, Copy)]
struct Wait {
    /// The time at which the check began that reported this wait, or the time at which the wait was forgotten.
    as_of: u64,
    /// The time until which the quotas refuse the key.
    until: u64,
}

/// The message of a process to the others about a key that it has paused.
pub(crate) struct UnsharedPause {
    pub(crate) left: Duration,
    /// Whether the shared list has the key, with an earlier end.
    pub(crate) is_listed: bool,
}

impl BlockList {
    /// Creates a list of this process alone.
    #[must_use]
    pub fn new() -> Self {
        Self::on_clock(Clock::monotonic(), None)
    }

    /// Creates a list that is shared with other processes, for a store that
    /// [refreshes](crate::Store::refresh_blocks) it.
    ///
    /// A check that finds the last refresh older than `interval` starts one in the background. The check does not wait for
    /// it, unless its limiter [observes an upstream](crate::RateLimiter::pause). That needs a tokio runtime, and an
    /// interval of zero turns it off.
    #[must_use]
    pub fn shared(interval: Duration) -> Self {
        Self::on_clock(Clock::monotonic(), Some(interval))
    }

    pub(in crate::store) fn on_clock(clock: Clock, refresh_interval: Option<Duration>) -> Self {
        let inner = Arc::new(Inner {
            clock,
            filter: Filter::default(),
            is_empty: AtomicBool::new(true),
            blocked: RwLock::new(Blocked::default()),
            waits: fingerprint_cache(0, MAX_WAITS),
            automatic: AsyncRwLock::default(),
            refreshes: refresh_interval.map(|interval| Arc::new(Refreshes::every(interval))),
        });
        Self { inner }
    }

    pub(crate) fn clock(&self) -> &Clock {
        &self.inner.clock
    }

    #[inline]
    pub(crate) fn is_refresh_due(&self) -> bool {
        let refreshes = self.inner.refreshes.as_ref();
        refreshes.is_some_and(|refreshes| refreshes.are_due(self.inner.clock.now()))
    }

    /// Starts a refresh in the background, unless another thread has.
    #[cold]
    pub(crate) fn start_refresh(&self, refresh: impl FnOnce() -> StoreFuture<()>) {
        let Some(refreshes) = &self.inner.refreshes else {
            return;
        };
        if !is_in_runtime() {
            return;
        }
        let now = self.inner.clock.now();
        // If a refresh is slow, the next one waits for its end.
        let Some(running) = refreshes.begin() else {
            return;
        };
        // Another thread may have run one meanwhile.
        if !refreshes.are_due(now) {
            return;
        }
        let next_at = now.saturating_add(refreshes.interval);
        refreshes.next_at.store(next_at, Ordering::Relaxed);
        let refresh = refresh();
        spawn_or_drop(async move {
            running.0.record(&refresh.await, next_at);
        });
    }

    /// Returns whether a key may be in the list, under the name of its limiter or under a name of its pauses.
    #[inline]
    pub(crate) fn may_contain(&self, subject: Subject<'_>, pauses: [&Key; 2]) -> bool {
        if self.inner.is_empty.load(Ordering::Relaxed) {
            return false;
        }
        let filter = &self.inner.filter;
        let mut limiters = iter::once(subject.limiter).chain(pauses);
        limiters.any(|limiter| filter.may_contain(list_name(limiter, subject.key)))
    }

    /// Returns how long a key of a limiter stays blocked. `None` if it is not blocked.
    ///
    /// Starts no refresh.
    #[must_use]
    pub fn blocked_for(&self, limiter: &Key, key: &Key) -> Option<Duration> {
        let name = list_name(limiter, key);
        let may_be_blocked = self.inner.filter.may_contain(name);
        may_be_blocked.then(|| self.find(name)).flatten()
    }

    #[cold]
    fn find(&self, name: Fingerprint) -> Option<Duration> {
        let now = self.inner.clock.now();
        let blocked = self.inner.blocked.read();
        blocked.keys.get(&name)?.remaining(now)
    }

    /// Begins an automatic block, which ends when the guard is dropped.
    pub(crate) async fn begin_automatic(&self) -> RwLockReadGuard<'_, ()> {
        // A caller that counts many refusals without a break has used up the turn of its task.
        unconstrained(self.inner.automatic.read()).await
    }

    /// Returns the end of the automatic blocks that have begun. `None` if there are none, or outside of a runtime, where
    /// their end cannot be waited for.
    pub(crate) fn automatic_under_way(&self) -> Option<impl Future<Output = Result<(), Error>>> {
        let are_done = self.inner.automatic.try_write().is_ok();
        (!are_done && is_in_runtime()).then_some(async {
            drop(self.inner.automatic.write().await);
            Ok(())
        })
    }

    /// Sets how long the quotas of a key refuse it, by a check that began at the time `as_of`, unless a check that began
    /// later has set it, or it was forgotten since.
    pub(crate) fn set_wait(&self, limiter: &Key, key: &Key, as_of: u64, until: u64) {
        let name = list_name(limiter, key);
        let known = self.inner.waits.get(&name);
        if known.is_none_or(|known| known.as_of <= as_of) {
            self.inner.waits.insert(name, Wait { as_of, until });
        }
    }

    /// Forgets how long the quotas of a key refuse it, because its counts or its block have changed. Checks that have begun
    /// and are not answered yet do not set it either.
    pub(crate) fn forget_wait(&self, limiter: &Key, key: &Key) {
        self.set_wait(limiter, key, self.inner.clock.now(), 0);
    }

    /// Returns how long the quotas would go on to refuse a key, by its refusals in this process.
    pub(crate) fn known_wait(&self, limiter: &Key, key: &Key) -> Duration {
        let known = self.inner.waits.get(&list_name(limiter, key));
        let end = known.map_or(0, |wait| wait.until);
        Duration::from_micros(end.saturating_sub(self.inner.clock.now()))
    }

    /// Pauses a key in this process, because an upstream asks it to wait. Never shortens a pause.
    ///
    /// Returns whether the key was not paused before.
    ///
    /// # Errors
    ///
    /// Returns an error of kind [`Full`](ErrorKind::Full) if 10 000 other keys are in the list.
    pub(crate) fn pause(&self, pauses: &Key, key: &Key, duration: Duration) -> Result<bool, Error> {
        let now = self.inner.clock.now();
        let until = now.saturating_add(micros_rounded_up(duration));
        self.change(|Blocked { keys: blocked, .. }| {
            let name = list_name(pauses, key);
            let known = blocked.get(&name);
            let is_new = known.is_none_or(|known| known.remaining(now).is_none());
            if is_new {
                blocked.retain(|_, key| key.ends_at() > now);
                if blocked.len() >= MAX_BLOCKED {
                    return Err(Self::full());
                }
            }
            let entry = blocked.entry(name).or_insert_with(|| BlockedKey {
                limiter: pauses.clone(),
                key: key.clone(),
                expires_at: 0,
                pause: Pause::default(),
            });
            entry.pause.until = entry.pause.until.max(until);
            Ok(is_new)
        })
    }

    /// Returns what other processes have to learn of a key that this process has paused. Then it is due again
    /// after the interval of the refreshes.
    pub(crate) fn take_unshared(&self, pauses: &Key, key: &Key) -> Option<UnsharedPause> {
        let refreshes = self.inner.refreshes.as_ref()?;
        let now = self.inner.clock.now();
        self.with(pauses, key, |entry| {
            let unshared = entry.unshared(now)?;
            let is_due = now >= entry.pause.next_try_at;
            is_due.then(|| {
                entry.pause.next_try_at = now.saturating_add(refreshes.interval);
                unshared
            })
        })
    }

    /// Returns what other processes have to learn of a key, although they may know it.
    pub(crate) fn unshared(&self, pauses: &Key, key: &Key) -> Option<UnsharedPause> {
        let now = self.inner.clock.now();
        self.with(pauses, key, |entry| entry.unshared(now))
    }

    /// Changes what this process knows of a paused key.
    fn with<T>(
        &self,
        pauses: &Key,
        key: &Key,
        change: impl FnOnce(&mut BlockedKey) -> Option<T>,
    ) -> Option<T> {
        let mut blocked = self.inner.blocked.write();
        change(blocked.keys.get_mut(&list_name(pauses, key))?)
    }

    /// Returns the end of the refresh in the background that is under way, if the last one that has succeeded is older
    /// than the interval. `None` if this one has taken longer than `max_wait` already.
    pub(crate) fn overdue_refresh(
        &self,
        max_wait: Duration,
    ) -> Option<impl Future<Output = Result<(), Error>> + use<>> {
        let refreshes = self.inner.refreshes.as_ref()?;
        let now = self.inner.clock.now();
        let next_at = refreshes.next_at.load(Ordering::Relaxed);
        let begun_at = next_at.saturating_sub(refreshes.interval);
        let is_fresh = now < refreshes.fresh_until.load(Ordering::Relaxed);
        if is_fresh || now >= begun_at.saturating_add(micros_rounded_up(max_wait)) {
            return None;
        }
        // Before the look, so that no end after it is missed.
        let mut is_running = refreshes.is_running.subscribe();
        let must_wait = *is_running.borrow();
        must_wait.then_some(async move {
            let _ = is_running.changed().await;
            Ok(())
        })
    }

    /// Adds a block to the list, or removes the key from the list if the duration is zero. Returns whether it took effect:
    /// an [automatic](Block::is_automatic) block does only if the key is not blocked.
    ///
    /// # Errors
    ///
    /// Returns an error of kind [`Full`](ErrorKind::Full) if 10 000 other keys are blocked. For an automatic block, if
    /// 1 000 keys of the limiter are blocked, or 9 000 of all limiters. The rest of the list is for operators.
    pub fn put(&self, block: Block<'_>) -> Result<bool, Error> {
        self.put_shared(block, self.inner.clock.now())
    }

    /// Adds a block that the shared list has taken, or removes a key that it has unblocked. This process asked it to at the
    /// time `asked_at` by the [clock](Self::clock) of this list.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`put`](Self::put).
    pub(in crate::store) fn put_shared(
        &self,
        block: Block<'_>,
        asked_at: u64,
    ) -> Result<bool, Error> {
        let now = self.inner.clock.now();
        let name = list_name(block.limiter, block.key);
        self.change(
            |Blocked {
                 keys: blocked, lag, ..
             }| {
                *lag = now.saturating_sub(asked_at).max(*lag);
                if block.duration.is_zero() {
                    blocked.remove(&name);
                    return Ok(true);
                }
                blocked.retain(|_, key| key.ends_at() > now);
                let known = blocked.get(&name);
                if block.is_automatic && known.is_some_and(|known| known.expires_at > now) {
                    return Ok(false);
                }
                let of_limiter = blocked.values().filter(|key| key.limiter == *block.limiter);
                let has_room =
                    || has_room(block.is_automatic, blocked.len(), || of_limiter.count());
                if known.is_none() && !has_room() {
                    return Err(Self::full());
                }
                let blocked_key = BlockedKey {
                    limiter: block.limiter.clone(),
                    key: block.key.clone(),
                    expires_at: now.saturating_add(micros_rounded_up(block.duration)),
                    pause: known.map(|known| known.pause).unwrap_or_default(),
                };
                blocked.insert(name, blocked_key);
                Ok(true)
            },
        )
    }

    /// Replaces the list. Each item is a limiter, a key, and the time for which it stays blocked from now on.
    ///
    /// A key that an upstream asked this process to pause stays paused for as long. If the shared list had the key
    /// before and has it no longer, an operator has unblocked it.
    pub fn replace(&self, blocks: impl IntoIterator<Item = (Key, Key, Duration)>) {
        let now = self.inner.clock.now();
        let new = new_keys(blocks, now);
        // The old list is freed without the lock, because up to 10 000 keys take a while.
        drop(self.change(|blocked| blocked.replace(new, now, now)));
    }

    /// Replaces the list by a reading of the shared list.
    ///
    /// The server of the shared list may have ended a block before this process: its data was lost, its clock has stepped, or
    /// its replies were late. Such a key was not unblocked, so this process goes on to refuse it.
    pub(in crate::store) fn replace_shared(&self, reading: SharedReading) {
        let now = self.inner.clock.now();
        let new = new_keys(reading.blocks, now);
        let lead = reading.read_at.saturating_sub(now);
        drop(self.change(|blocked| {
            let step = lead.saturating_sub(blocked.lead.unwrap_or(lead));
            let ahead = step.saturating_add(blocked.lag);
            let ended_by = if reading.may_be_lost {
                u64::MAX
            } else {
                now.saturating_add(ahead)
            };
            blocked.lead = Some(lead);
            blocked.lag = now.saturating_sub(reading.asked_at);
            blocked.replace(new, now, ended_by)
        }));
    }

    /// Returns the error of a block for which the shared list has no room.
    #[must_use]
    pub fn full() -> Error {
        let text = format!(
            "cannot block another key: the block list is full with {MAX_BLOCKED} keys; unblock one first"
        );
        Error::new(ErrorKind::Full, text)
    }

    pub(crate) fn blocked_keys(&self, limiter: &Key) -> Vec<(Key, Duration)> {
        let now = self.inner.clock.now();
        let blocked = self.inner.blocked.read();
        let of_limiter = blocked.keys.values().filter(|key| key.limiter == *limiter);
        let remaining = of_limiter.filter_map(|key| Some((key.key.clone(), key.remaining(now)?)));
        remaining.collect()
    }

    /// Changes the list and its filter.
    fn change<T>(&self, change: impl FnOnce(&mut Blocked) -> T) -> T {
        let mut blocked = self.inner.blocked.write();
        let changed = change(&mut blocked);
        self.inner.filter.replace(blocked.keys.keys().copied());
        let is_empty = &self.inner.is_empty;
        is_empty.store(blocked.keys.is_empty(), Ordering::Relaxed);
        changed
    }
}

impl Blocked {
    /// Replaces the keys, and returns the former ones. A key that is missing was unblocked, unless its block has ended by the
    /// time `ended_by`.
    fn replace(&mut self, mut new: BlockedKeys, now: u64, ended_by: u64) -> BlockedKeys {
        for (name, old) in self.keys.extract_if(|_, old| old.has_own_pause(now)) {
            if let Some(new) = new.get_mut(&name) {
                new.pause = old.pause;
            } else if old.pause.until > now && old.expires_at <= ended_by {
                new.insert(
                    name,
                    BlockedKey {
                        expires_at: 0,
                        ..old
                    },
                );
            }
        }
        std::mem::replace(&mut self.keys, new)
    }
}

fn new_keys(blocks: impl IntoIterator<Item = (Key, Key, Duration)>, now: u64) -> BlockedKeys {
    let named = |(limiter, key, remaining): (Key, Key, Duration)| {
        let name = list_name(&limiter, &key);
        let expires_at = now.saturating_add(micros_rounded_up(remaining));
        let blocked_key = BlockedKey {
            limiter,
            key,
            expires_at,
            pause: Pause::default(),
        };
        (name, blocked_key)
    };
    blocks.into_iter().map(named).collect()
}

impl BlockedKey {
    fn remaining(&self, now: u64) -> Option<Duration> {
        let micros = self.ends_at().checked_sub(now)?;
        (micros > 0).then(|| Duration::from_micros(micros))
    }

    fn ends_at(&self) -> u64 {
        self.expires_at.max(self.pause.until)
    }

    /// Returns whether this process knows something of the key that a new shared list does not say.
    fn has_own_pause(&self, now: u64) -> bool {
        self.ends_at() > now && self.pause != Pause::default()
    }

    fn unshared(&self, now: u64) -> Option<UnsharedPause> {
        let is_later = self.pause.until > self.expires_at.saturating_add(SLACK);
        let left = self.remaining(now).filter(|_| is_later)?;
        let is_listed = self.expires_at > now;
        Some(UnsharedPause { left, is_listed })
    }
}

/// Returns whether a list with so many blocked keys, and with so many of the limiter, has room for another one.
pub(in crate::store) fn has_room(
    is_automatic: bool,
    blocked: usize,
    of_limiter: impl FnOnce() -> usize,
) -> bool {
    if is_automatic {
        blocked < MAX_AUTOMATIC && of_limiter() < MAX_AUTOMATIC_PER_LIMITER
    } else {
        blocked < MAX_BLOCKED
    }
}

#[inline]
fn list_name(limiter: &Key, key: &Key) -> Fingerprint {
    key.fingerprint().within(limiter.fingerprint())
}

impl Default for BlockList {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for BlockList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BlockList").finish_non_exhaustive()
    }
}
