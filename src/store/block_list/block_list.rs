//! The keys that an operator has blocked, as far as this process knows.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::Duration;

use super::filter::Filter;
use super::refresher::RefreshTrigger;
use super::refresher::Refresher;
use crate::clock::Clock;
use crate::error::{Error, ErrorKind};
use crate::key::Fingerprint;
use crate::key::Key;
use crate::store::future::StoreFuture;
use crate::store::requests::{Block, Subject};

/// As many as every process can be told of each second: a list that people keep.
pub(crate) const MOST: usize = 10_000;

/// Which keys of which limiters are [blocked](crate::Admin::block), as far as this process knows.
///
/// Limiters look here before they ask their store, so that a blocked key costs the store nothing and
/// stays blocked while it fails. While nothing is blocked, looking is to read one atomic; while some are,
/// a second one for nearly all others.
///
/// A [`Store`](crate::Store) keeps one and gives it to all its limiters. Clones are one list, of at most
/// 10 000 keys.
#[derive(Clone)]
pub struct BlockList {
    inner: Arc<Inner>,
}

struct Inner {
    clock: Clock,
    /// When the last of those below ends; 0 for none.
    last: AtomicU64,
    filter: Filter,
    list: RwLock<List>,
    lookout: Option<Refresher>,
}

type List = HashMap<Fingerprint, Blocked>;

/// One key of one limiter, until then.
#[derive(Clone, Debug)]
struct Blocked {
    limiter: Key,
    key: Key,
    /// By the clock of the list, in microseconds.
    until: u64,
}

impl BlockList {
    /// A list that nobody else adds to.
    #[must_use]
    pub fn new() -> Self {
        Self::with_clock(Clock::monotonic())
    }

    pub(crate) fn with_clock(clock: Clock) -> Self {
        Self::build(clock, None)
    }

    /// A list that others add to: `look` finds out what they did, and [puts](Self::replace) it in place.
    /// Checks have it do so once in such a time at most, and do not wait for it; with zero, never.
    pub(crate) fn shared(
        clock: Clock,
        every: Duration,
        look: impl Fn(&Self, RefreshTrigger) -> StoreFuture<()> + Send + Sync + 'static,
    ) -> Self {
        Self::build(clock, Some(Refresher::new(micros(every), look)))
    }

    fn build(clock: Clock, lookout: Option<Refresher>) -> Self {
        Self {
            inner: Arc::new(Inner {
                clock,
                last: AtomicU64::new(0),
                filter: Filter::default(),
                list: RwLock::default(),
                lookout,
            }),
        }
    }

    /// How long a subject stays blocked. Has what others have blocked looked for, if that is due.
    #[inline]
    pub(crate) fn left_of(&self, subject: Subject<'_>) -> Option<Duration> {
        if let Some(lookout) = &self.inner.lookout {
            lookout.look_if_due(self, &self.inner.clock);
        }
        self.known_left_of(subject)
    }

    /// How long a subject stays blocked, as far as is known.
    #[inline]
    pub(crate) fn known_left_of(&self, subject: Subject<'_>) -> Option<Duration> {
        match self.inner.last.load(Ordering::Relaxed) {
            0 => None,
            last => self.find(subject.fingerprint(), last),
        }
    }

    #[cold]
    fn find(&self, whose: Fingerprint, last: u64) -> Option<Duration> {
        if !self.inner.filter.may_hold(whose) {
            return None;
        }
        let now = self.inner.clock.now();
        if last <= now {
            // Unless another one is the last meanwhile.
            let (of, relaxed) = (&self.inner.last, Ordering::Relaxed);
            let _ = of.compare_exchange(last, 0, relaxed, relaxed);
            return None;
        }
        self.read().get(&whose)?.left(now)
    }

    /// Finds out now what others have blocked.
    pub(crate) fn look(&self) -> StoreFuture<()> {
        match &self.inner.lookout {
            None => StoreFuture::ready(Ok(())),
            Some(lookout) => lookout.look(self, RefreshTrigger::Asked),
        }
    }

    /// Does as a store was told.
    ///
    /// # Errors
    ///
    /// Of kind [`Full`](ErrorKind::Full) where 10 000 others are blocked.
    pub fn put(&self, block: Block<'_>) -> Result<(), Error> {
        let now = self.inner.clock.now();
        let (limiter, key) = (block.limiter().clone(), block.key().clone());
        let whose = key.fingerprint().within(limiter.fingerprint());
        let mut list = self.write();
        if block.duration().is_zero() {
            list.remove(&whose);
            self.note(&list);
            return Ok(());
        }
        if list.len() >= MOST && !list.contains_key(&whose) {
            list.retain(|_, blocked| blocked.until > now);
            self.note(&list);
            if list.len() >= MOST {
                return Err(full());
            }
        }
        let until = now.saturating_add(micros(block.duration()));
        let blocked = Blocked {
            limiter,
            key,
            until,
        };
        list.insert(whose, blocked);
        self.inner.filter.add(whose);
        self.inner.last.fetch_max(until, Ordering::Relaxed);
        Ok(())
    }

    /// Forgets what was known for what is so now: limiters, keys, and how long they stay blocked.
    pub(crate) fn replace(&self, blocks: impl IntoIterator<Item = (Key, Key, Duration)>) {
        let now = self.inner.clock.now();
        let blocks = blocks.into_iter().map(|(limiter, key, left)| {
            let whose = key.fingerprint().within(limiter.fingerprint());
            let until = now.saturating_add(micros(left));
            let blocked = Blocked {
                limiter,
                key,
                until,
            };
            (whose, blocked)
        });
        let blocks: List = blocks.collect();
        let mut list = self.write();
        let before = std::mem::replace(&mut *list, blocks);
        self.note(&list);
        drop(list);
        // Nobody need wait for that.
        drop(before);
    }

    /// What is blocked of a limiter, and for how long.
    pub(crate) fn of_limiter(&self, limiter: &Key) -> Vec<(Key, Duration)> {
        let now = self.inner.clock.now();
        let list = self.read();
        let of_limiter = list.values().filter(|block| block.limiter == *limiter);
        let left = of_limiter.filter_map(|block| Some((block.key.clone(), block.left(now)?)));
        left.collect()
    }

    /// Has those who look know a list that is another one than before.
    fn note(&self, list: &List) {
        self.inner.filter.hold(list.keys().copied());
        let last = list.values().map(|blocked| blocked.until).max();
        self.inner
            .last
            .store(last.unwrap_or_default(), Ordering::Relaxed);
    }

    fn read(&self) -> RwLockReadGuard<'_, List> {
        // It is whole between any two of its steps.
        self.inner
            .list
            .read()
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, List> {
        self.inner
            .list
            .write()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

impl Blocked {
    fn left(&self, now: u64) -> Option<Duration> {
        let left = self.until.checked_sub(now)?;
        (left > 0).then(|| Duration::from_micros(left))
    }
}

/// What is answered where no more can be blocked.
pub(crate) fn full() -> Error {
    Error::new(
        ErrorKind::Full,
        format!("{MOST} keys are blocked, and no more can be: unblock others"),
    )
}

/// In whole microseconds, of which the shortest time is one.
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
