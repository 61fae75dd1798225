//! A store in memory whose keys are in groups, as those of a cluster are in slots. It answers later.

use std::collections::BTreeSet;
use std::future::Future;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::sync::watch;
use tollgate::store::protocol::{
    Adjust, Change, Check, CircuitBreaker, RefusalCache, StoreFuture, StoreId, StoreParts, Subject,
};
use tollgate::store::{Store, TestClock};
use tollgate::{Error, ErrorKind, MemoryStore};

/// The last byte of a limiter's name is its group: `tenant2` is in group 2.
#[derive(Clone)]
pub(crate) struct Grouped {
    counts: MemoryStore,
    pub(crate) clock: TestClock,
    circuit_breaker: CircuitBreaker,
    refusal_cache: RefusalCache,
    /// The calls since the last look.
    log: Arc<Mutex<Vec<String>>>,
    lost: Arc<Mutex<BTreeSet<u64>>>,
    /// The groups whose checks panic.
    broken: Arc<Mutex<BTreeSet<u64>>>,
    /// The groups whose replies are held back.
    held: Arc<watch::Sender<BTreeSet<u64>>>,
    /// Whether the store does not know of its groups yet: it learns of them from a check that it cannot decide.
    is_unaware: Arc<AtomicBool>,
    /// Whether it fails such a check at once.
    fails_at_once: bool,
}

fn group(subject: Subject<'_>) -> u64 {
    let last = subject.limiter.as_str().bytes().last().unwrap();
    u64::from(last - b'0')
}

impl Grouped {
    pub(crate) fn new() -> Self {
        let clock = TestClock::new();
        Self {
            counts: MemoryStore::with_clock(clock.clone()),
            circuit_breaker: CircuitBreaker::new()
                .deadline(Duration::from_secs(60))
                .with_clock(clock.clone()),
            refusal_cache: RefusalCache::new().with_clock(clock.clone()),
            clock,
            log: Arc::default(),
            lost: Arc::default(),
            broken: Arc::default(),
            held: Arc::new(watch::Sender::default()),
            is_unaware: Arc::default(),
            fails_at_once: false,
        }
    }

    /// A store that does not know of its groups. It fails the check from which it learns of them at once, or later.
    pub(crate) fn unaware(fails_at_once: bool) -> Self {
        Self {
            is_unaware: Arc::new(AtomicBool::new(true)),
            fails_at_once,
            ..Self::new()
        }
    }

    /// Fails all checks of a group from now on.
    pub(crate) fn lose(&self, group: u64) {
        self.lost.lock().unwrap().insert(group);
    }

    /// Panics in the checks of a group from now on, when they are waited for.
    pub(crate) fn break_group(&self, group: u64) {
        self.broken.lock().unwrap().insert(group);
    }

    /// Fails no checks from now on.
    pub(crate) fn find(&self) {
        self.lost.lock().unwrap().clear();
        self.broken.lock().unwrap().clear();
    }

    /// Holds back the replies of a group.
    pub(crate) fn hold(&self, group: u64) {
        self.held.send_modify(|held| {
            held.insert(group);
        });
    }

    /// Sends the replies that were held back.
    pub(crate) fn release(&self) {
        self.held.send_modify(BTreeSet::clear);
    }

    pub(crate) fn take_log(&self) -> Vec<String> {
        std::mem::take(&mut self.log.lock().unwrap())
    }

    fn log(&self, call: String) {
        self.log.lock().unwrap().push(call);
    }

    /// Replies later, and not while the group is held back.
    fn reply<T: Send + 'static>(&self, group: u64, answer: Result<T, Error>) -> StoreFuture<T> {
        let mut held = self.held.subscribe();
        StoreFuture::boxed(async move {
            tokio::task::yield_now().await;
            let _ = held.wait_for(|held| !held.contains(&group)).await;
            answer
        })
    }

    fn is_lost(&self, group: u64) -> bool {
        self.lost.lock().unwrap().contains(&group)
    }
}

/// The answer of a store in memory.
fn now<T>(future: impl Future<Output = T>) -> T {
    let mut future = std::pin::pin!(future);
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    match future.as_mut().poll(&mut context) {
        std::task::Poll::Ready(answer) => answer,
        std::task::Poll::Pending => panic!("a store in memory answers at once"),
    }
}

impl Store for Grouped {
    fn id(&self) -> StoreId {
        self.counts.id()
    }

    fn check(&self, checks: &[Check<'_>]) -> StoreFuture {
        if checks.len() > 1 || checks[0].cost > 0 {
            let names = checks.iter().map(|check| check.limiter.as_str());
            self.log(format!("check {}", names.collect::<Vec<_>>().join("+")));
        }
        let group = group(checks[0].subject);
        if !checks
            .iter()
            .all(|check| self::group(check.subject) == group)
        {
            assert!(self.is_unaware.swap(false, Ordering::SeqCst));
            let error = Err(Error::new(ErrorKind::Unsupported, "several groups"));
            return match self.fails_at_once {
                true => StoreFuture::ready(error),
                false => self.reply(group, error),
            };
        }
        if self.broken.lock().unwrap().contains(&group) {
            return StoreFuture::boxed(async { panic!("a bug of this store") });
        }
        if self.is_lost(group) {
            return self.reply(group, Err(lost(group)));
        }
        self.reply(group, now(self.counts.check(checks)))
    }

    fn atomic_group(&self, subject: Subject<'_>) -> u64 {
        match self.is_unaware.load(Ordering::SeqCst) {
            true => 0,
            false => group(subject),
        }
    }

    fn adjust(&self, adjust: Adjust<'_>) -> StoreFuture<()> {
        if let Change::Refund { units, .. } = adjust.change {
            self.log(format!("refund {} {units}", adjust.limiter.as_str()));
        }
        StoreFuture::ready(now(self.counts.adjust(adjust)))
    }

    fn parts(&self) -> StoreParts {
        let mut parts = StoreParts::default();
        parts.circuit_breaker = self.circuit_breaker.clone();
        parts.refusal_cache = Some(self.refusal_cache.clone());
        parts
    }
}

fn lost(group: u64) -> Error {
    Error::new(ErrorKind::Unavailable, format!("group {group} is lost"))
}
