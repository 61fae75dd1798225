//! The keys that an operator has blocked, as far as this process knows.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use tokio::runtime::Handle;

use super::StoreFuture;
use super::check::{Block, Subject};
use super::clock::Clock;
use crate::Key;
use crate::identity::Fingerprint;

/// Which keys of which limiters are [blocked](crate::Admin::block), as far as this process knows.
///
/// Limiters look here before they ask their store, so that a blocked key costs the store nothing and
/// stays blocked while it fails. While nothing is blocked, looking is to read one atomic.
///
/// A [`Store`](crate::Store) keeps one and gives it to all its limiters. Clones are one list.
#[derive(Clone)]
pub struct Blocks {
    inner: Arc<Inner>,
}

struct Inner {
    clock: Clock,
    /// When the last of those below ends; 0 for none.
    last: AtomicU64,
    list: RwLock<HashMap<Fingerprint, Blocked>>,
    lookout: Option<Lookout>,
}

/// One key of one limiter, until then.
#[derive(Clone, Debug)]
struct Blocked {
    limiter: Key,
    key: Key,
    /// By the clock of the list, in microseconds.
    until: u64,
}

type LookFn = dyn Fn(&Blocks, Look) -> StoreFuture<()> + Send + Sync;

/// For whom somebody looks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Look {
    /// For an operator, who is told what failed.
    Asked,
    /// For checks, which do not wait for it.
    Beside,
}

/// Who finds out what other processes have blocked.
struct Lookout {
    look: Box<LookFn>,
    /// How often, in microseconds; 0 for not unless asked.
    every: u64,
    /// When to look again.
    next: AtomicU64,
}

impl Blocks {
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
        look: impl Fn(&Self, Look) -> StoreFuture<()> + Send + Sync + 'static,
    ) -> Self {
        let lookout = Lookout {
            look: Box::new(look),
            every: micros(every),
            next: AtomicU64::new(0),
        };
        Self::build(clock, Some(lookout))
    }

    fn build(clock: Clock, lookout: Option<Lookout>) -> Self {
        Self {
            inner: Arc::new(Inner {
                clock,
                last: AtomicU64::new(0),
                list: RwLock::default(),
                lookout,
            }),
        }
    }

    /// How long a subject stays blocked.
    #[inline]
    pub(crate) fn left_of(&self, subject: Subject<'_>) -> Option<Duration> {
        if let Some(lookout) = &self.inner.lookout {
            self.look_if_due(lookout);
        }
        match self.inner.last.load(Ordering::Relaxed) {
            0 => None,
            last => self.find(subject, last),
        }
    }

    #[cold]
    fn find(&self, subject: Subject<'_>, last: u64) -> Option<Duration> {
        if last <= self.inner.clock.now() {
            // Unless another one is the last meanwhile.
            let (of, relaxed) = (&self.inner.last, Ordering::Relaxed);
            let _ = of.compare_exchange(last, 0, relaxed, relaxed);
            return None;
        }
        let list = self
            .inner
            .list
            .read()
            .unwrap_or_else(PoisonError::into_inner);
        let block = list.get(&subject.fingerprint())?;
        self.left(block)
    }

    fn left(&self, block: &Blocked) -> Option<Duration> {
        let left = block.until.checked_sub(self.inner.clock.now())?;
        (left > 0).then(|| Duration::from_micros(left))
    }

    fn look_if_due(&self, lookout: &Lookout) {
        if lookout.every == 0 {
            return;
        }
        let now = self.inner.clock.now();
        let next = lookout.next.load(Ordering::Relaxed);
        let then = now.saturating_add(lookout.every);
        // Later than it can be is what a clock says that has stepped back.
        let is_due = now >= next || next > then;
        if is_due
            && lookout
                .next
                .compare_exchange(next, then, Ordering::Relaxed, Ordering::Relaxed)
                .is_ok()
            && let Ok(runtime) = Handle::try_current()
        {
            drop(runtime.spawn((lookout.look)(self, Look::Beside)));
        }
    }

    /// Finds out now what others have blocked.
    pub(crate) fn look(&self) -> StoreFuture<()> {
        match &self.inner.lookout {
            None => StoreFuture::ready(Ok(())),
            Some(lookout) => (lookout.look)(self, Look::Asked),
        }
    }

    /// Does as a store was told.
    pub fn put(&self, block: Block<'_>) {
        self.change(|list, now| {
            let until = now.saturating_add(micros(block.duration()));
            let (limiter, key) = (block.limiter().clone(), block.key().clone());
            let whose = key.fingerprint().within(limiter.fingerprint());
            list.insert(
                whose,
                Blocked {
                    limiter,
                    key,
                    until,
                },
            );
        });
    }

    /// Forgets what was known for what is so now: limiters, keys, and how long they stay blocked.
    pub(crate) fn replace(&self, blocks: impl IntoIterator<Item = (Key, Key, Duration)>) {
        self.change(|list, now| {
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
            *list = blocks.collect();
        });
    }

    /// What is blocked of a limiter, and for how long.
    pub(crate) fn of_limiter(&self, limiter: &Key) -> Vec<(Key, Duration)> {
        let list = self
            .inner
            .list
            .read()
            .unwrap_or_else(PoisonError::into_inner);
        let of_limiter = list.values().filter(|block| block.limiter == *limiter);
        let left = of_limiter.filter_map(|block| Some((block.key.clone(), self.left(block)?)));
        left.collect()
    }

    pub(crate) fn len(&self) -> usize {
        let list = self
            .inner
            .list
            .read()
            .unwrap_or_else(PoisonError::into_inner);
        list.len()
    }

    fn change(&self, change: impl FnOnce(&mut HashMap<Fingerprint, Blocked>, u64)) {
        let now = self.inner.clock.now();
        let mut list = self
            .inner
            .list
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        change(&mut list, now);
        list.retain(|_, blocked| blocked.until > now);
        let last = list.values().map(|blocked| blocked.until).max();
        let last = last.unwrap_or_default();
        self.inner.last.store(last, Ordering::Relaxed);
    }
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

impl Default for Blocks {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for Blocks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Blocks")
            .field("len", &self.len())
            .finish_non_exhaustive()
    }
}
