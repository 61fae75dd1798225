//! A store in memory that fails on request, in several ways.

use std::future::pending;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tollgate::store::protocol::{
    Adjust, Check, CircuitBreaker, RefusalCache, StoreFuture, StoreId, StoreParts,
};
use tollgate::store::{Store, TestClock};
use tollgate::{Error, ErrorKind, MemoryStore};

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Mood {
    Fine,
    /// Answers an error of this kind.
    Fails(ErrorKind),
    Hangs,
}

/// Counts in memory, in one of many moods.
#[derive(Clone)]
pub(crate) struct Moody {
    counts: MemoryStore,
    mood: Arc<Mutex<Mood>>,
    asked: Arc<AtomicU32>,
    pub(crate) circuit_breaker: CircuitBreaker,
    refusal_cache: Option<RefusalCache>,
    pub(crate) clock: TestClock,
}

pub(crate) const DEADLINE: Duration = Duration::from_millis(40);

impl Moody {
    pub(crate) fn new(mood: Mood) -> Self {
        let clock = TestClock::new();
        Self {
            counts: MemoryStore::with_clock(clock.clone()),
            mood: Arc::new(Mutex::new(mood)),
            asked: Arc::default(),
            circuit_breaker: CircuitBreaker::new()
                .deadline(DEADLINE)
                .with_clock(clock.clone()),
            refusal_cache: None,
            clock,
        }
    }

    /// A store that is fine, with a refusal cache.
    pub(crate) fn remembering() -> Self {
        let store = Self::new(Mood::Fine);
        let refusal_cache = RefusalCache::new().with_clock(store.clock.clone());
        Self {
            refusal_cache: Some(refusal_cache),
            ..store
        }
    }

    pub(crate) fn unavailable() -> Self {
        Self::new(Mood::Fails(ErrorKind::Unavailable))
    }

    pub(crate) fn becomes(&self, mood: Mood) {
        *self.mood.lock().unwrap() = mood;
    }

    /// How often it was asked since it was asked how often.
    pub(crate) fn times_asked(&self) -> u32 {
        self.asked.swap(0, Ordering::SeqCst)
    }

    /// As long as a breaker is ever open.
    pub(crate) fn let_breaker_probe(&self) {
        self.clock.advance(Duration::from_millis(500));
    }
}

impl Store for Moody {
    fn id(&self) -> StoreId {
        self.counts.id()
    }

    fn check(&self, checks: &[Check<'_>]) -> StoreFuture {
        self.asked.fetch_add(1, Ordering::SeqCst);
        let mood = *self.mood.lock().unwrap();
        match mood {
            Mood::Fine => self.counts.check(checks),
            Mood::Fails(kind) => {
                StoreFuture::boxed(async move { Err(Error::new(kind, "in no mood")) })
            }
            Mood::Hangs => StoreFuture::boxed(pending()),
        }
    }

    fn adjust(&self, adjust: Adjust<'_>) -> StoreFuture<()> {
        self.asked.fetch_add(1, Ordering::SeqCst);
        let mood = *self.mood.lock().unwrap();
        match mood {
            Mood::Fine => self.counts.adjust(adjust),
            Mood::Fails(kind) => {
                StoreFuture::boxed(async move { Err(Error::new(kind, "in no mood")) })
            }
            Mood::Hangs => StoreFuture::boxed(pending()),
        }
    }

    fn parts(&self) -> StoreParts {
        let mut parts = StoreParts::default();
        parts.circuit_breaker = self.circuit_breaker.clone();
        parts.refusal_cache = self.refusal_cache.clone();
        parts
    }
}
