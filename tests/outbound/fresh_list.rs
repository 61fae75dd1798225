//! Checks that wait for the block list, so that a pause reaches a process that calls rarely.

use std::io::stdin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use futures_util::FutureExt;
use http::{HeaderMap, Request, StatusCode};
use tokio::sync::Semaphore;
use tollgate::store::Store;
use tollgate::store::protocol::{
    BlockList, Check, CircuitBreaker, StoreFuture, StoreId, StoreParts,
};
use tollgate::{
    Error, ErrorKind, Key, MemoryStore, OutboundLayer, Quota, RateLimiter, RedisStore, Source, key,
};
use tower::{Layer, ServiceExt, service_fn};

use crate::support::process::{Process, argument, print};
use crate::support::redis_server::RedisServer;

const SECOND: Duration = Duration::from_secs(1);

const DEADLINE: Duration = Duration::from_secs(2);

/// Counts in memory. Another process blocks `ada`, which a refresh finds out while `gate` has a permit for it.
#[derive(Clone)]
struct SharedStore {
    counts: MemoryStore,
    list: BlockList,
    refreshes: Arc<AtomicUsize>,
    gate: Arc<Semaphore>,
    deadline: Duration,
    /// Whether each check fails.
    fails: bool,
}

impl SharedStore {
    fn new(interval: Duration) -> Self {
        let (refreshes, gate) = (Arc::new(AtomicUsize::new(0)), Arc::new(Semaphore::new(0)));
        Self {
            counts: MemoryStore::new(),
            list: BlockList::shared(interval),
            refreshes,
            gate,
            deadline: DEADLINE,
            fails: false,
        }
    }

    fn limiter(&self) -> RateLimiter {
        RateLimiter::new(self.clone(), Quota::per_minute(1_000))
    }

    /// A limiter that has observed an upstream, which said nothing.
    fn observing(&self) -> RateLimiter {
        let limiter = self.limiter();
        assert_eq!(
            limiter.observe("ada", StatusCode::OK, &HeaderMap::new()),
            None
        );
        limiter
    }
}

impl Store for SharedStore {
    fn id(&self) -> StoreId {
        self.counts.id()
    }

    fn check(&self, checks: &[Check<'_>]) -> StoreFuture {
        if self.fails {
            let error = Error::new(ErrorKind::Unavailable, "out of reach");
            return StoreFuture::ready(Err(error));
        }
        self.counts.check(checks)
    }

    fn refresh_blocks(&self, _: Duration) -> StoreFuture<()> {
        let (list, opened) = (self.list.clone(), Arc::clone(&self.gate));
        self.refreshes.fetch_add(1, Ordering::SeqCst);
        StoreFuture::boxed(async move {
            opened.acquire().await.expect("a gate").forget();
            list.replace([(Key::from("default"), Key::from("ada"), 60 * SECOND)]);
            Ok(())
        })
    }

    fn parts(&self) -> StoreParts {
        let mut parts = self.counts.parts();
        parts.block_list = self.list.clone();
        parts.circuit_breaker = CircuitBreaker::new().deadline(self.deadline);
        parts
    }
}

async fn source(limiter: &RateLimiter, key: &str) -> Source {
    limiter.check(key).await.expect("a decision").source()
}

#[tokio::test]
async fn checks_of_a_list_that_is_too_old_wait_for_one_refresh_and_then_obey_it() {
    let store = SharedStore::new(60 * SECOND);
    let limiter = store.observing();
    let checks = (0..100).map(|_| {
        let limiter = limiter.clone();
        tokio::spawn(async move { source(&limiter, "ada").await })
    });
    let checks: Vec<_> = checks.collect();
    tokio::task::yield_now().await;
    store.gate.add_permits(1);
    for check in checks {
        assert_eq!(check.await.expect("an answer"), Source::Block);
    }
    // The list is fresh for a minute.
    assert_eq!(source(&limiter, "bob").await, Source::Memory);
    assert_eq!(store.refreshes.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn a_check_waits_for_the_deadline_at_most_and_without_an_upstream_not_at_all() {
    let store = SharedStore::new(SECOND / 100);
    let begin = Instant::now();
    assert_eq!(source(&store.limiter(), "ada").await, Source::Memory);
    assert!(begin.elapsed() < DEADLINE, "{:?}", begin.elapsed());
    let (limiter, begin) = (store.observing(), Instant::now());
    assert_eq!(source(&limiter, "ada").await, Source::Memory);
    assert!(begin.elapsed() >= DEADLINE, "{:?}", begin.elapsed());
}

#[tokio::test]
async fn a_limiter_that_observes_waits_for_the_list_under_another_name_too() {
    let store = SharedStore::new(60 * SECOND);
    store.gate.add_permits(1);
    let limiter = store.observing().name("other").name("default");
    assert_eq!(source(&limiter, "ada").await, Source::Block);
}

#[tokio::test]
async fn checks_wait_only_once_for_a_refresh_that_hangs() {
    let mut store = SharedStore::new(SECOND / 100);
    store.deadline = SECOND / 2;
    let limiter = store.observing();
    let begin = Instant::now();
    assert_eq!(source(&limiter, "ada").await, Source::Memory);
    assert!(begin.elapsed() >= store.deadline, "{:?}", begin.elapsed());
    // Its time is over, however long it takes.
    let begin = Instant::now();
    for _ in 0..100 {
        assert_eq!(source(&limiter, "ada").await, Source::Memory);
    }
    assert!(begin.elapsed() < store.deadline, "{:?}", begin.elapsed());
    assert_eq!(store.refreshes.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn no_check_waits_while_the_circuit_breaker_is_open() {
    let mut store = SharedStore::new(SECOND / 100);
    (store.deadline, store.fails) = (SECOND / 2, true);
    let limiter = store.observing();
    for _ in 0..50 {
        assert!(limiter.check("bob").await.is_err());
    }
    // The first refresh ends. While the circuit breaker is open, no other begins.
    store.gate.add_permits(1);
    tokio::time::sleep(SECOND / 20).await;
    let begin = Instant::now();
    assert!(limiter.check("bob").await.is_err());
    assert!(begin.elapsed() < store.deadline, "{:?}", begin.elapsed());
    assert_eq!(store.refreshes.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn a_check_that_is_not_polled_keeps_no_other_from_a_refresh() {
    let store = SharedStore::new(SECOND / 100);
    let limiter = store.observing();
    let mut left_alone = Box::pin(limiter.check("ada"));
    assert!(left_alone.as_mut().now_or_never().is_none());
    store.gate.add_permits(1);
    assert_eq!(source(&limiter, "ada").await, Source::Block);
    // The list is too old again. Each further check refreshes it.
    for refreshes in 2..5 {
        tokio::time::sleep(SECOND / 50).await;
        store.gate.add_permits(1);
        assert_eq!(source(&limiter, "ada").await, Source::Block);
        assert_eq!(store.refreshes.load(Ordering::SeqCst), refreshes);
    }
    assert_eq!(
        left_alone.await.expect("a decision").source(),
        Source::Block
    );
}

#[tokio::test]
async fn a_check_that_is_dropped_while_it_waits_for_the_list_has_charged_nothing() {
    let store = SharedStore::new(60 * SECOND);
    let limiter = store.observing();
    let mut dropped = Box::pin(limiter.check("bob"));
    assert!(dropped.as_mut().now_or_never().is_none());
    drop(dropped);
    store.gate.add_permits(1);
    let decision = limiter.check("bob").await.expect("a decision");
    assert_eq!((decision.source(), decision.used()), (Source::Memory, 1));
}

#[tokio::test]
async fn an_interval_of_zero_lets_no_check_wait() {
    let store = SharedStore::new(Duration::ZERO);
    let limiter = store.observing();
    assert_eq!(source(&limiter, "ada").await, Source::Memory);
    assert_eq!(store.refreshes.load(Ordering::SeqCst), 0);
}

const PROCESSES: usize = 20;

const READY: &str = "ready";

const SENT: &str = "sent at ";

#[expect(
    clippy::disallowed_methods,
    reason = "a time that several processes can compare"
)]
fn now() -> Duration {
    let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH);
    since_1970.expect("after 1970")
}

fn limiter(url: &str) -> RateLimiter {
    let store = RedisStore::open(url).expect("a URL");
    let store = store.deadline(10 * SECOND);
    RateLimiter::new(store, Quota::per_minute(1_000_000)).name("upstream")
}

/// Sends a request, waits for a line on the standard input and for at least a second, and sends another one.
async fn send_rarely(url: &str) {
    let layer = OutboundLayer::new(limiter(url)).key(key::global());
    let client = layer.layer(service_fn(async |_: Request<()>| {
        print(format_args!("{SENT}{}", now().as_millis()));
        Ok::<_, std::convert::Infallible>(http::Response::new(String::new()))
    }));
    let send = async || {
        let sent = client.clone().oneshot(Request::new(())).await;
        assert!(sent.expect("an answer").status().is_success());
    };
    send().await;
    print(READY);
    let mut line = String::new();
    stdin().read_line(&mut line).expect("a line");
    let millis = line.trim().parse().expect("a number");
    tokio::time::sleep(Duration::from_millis(millis)).await;
    send().await;
}

/// Each of twenty processes calls for the first time since more than a second, while an upstream pauses all of them.
#[test]
fn no_process_sends_into_a_pause_that_is_older_than_a_second() {
    const TEST: &str = "fresh_list::no_process_sends_into_a_pause_that_is_older_than_a_second";
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    if let Some(url) = argument() {
        return runtime.block_on(send_rarely(&url));
    }
    let server = RedisServer::start();
    let told = limiter(&server.url());
    let mut children = [(); PROCESSES].map(|()| Process::of(TEST, &server.url()));
    for child in &mut children {
        child.rest_of_line(READY);
    }
    let pause = 6 * SECOND;
    let end = runtime.block_on(async {
        assert!(
            told.check(Key::global())
                .await
                .expect("a decision")
                .is_allowed()
        );
        let end = now() + told.pause(Key::global(), pause);
        // The others are told in the background.
        tokio::time::sleep(SECOND / 5).await;
        end
    });
    for (number, child) in children.iter_mut().enumerate() {
        child.send_line(1_000 + 150 * number);
    }
    let mut early = Vec::new();
    for mut child in children {
        let sent = child.rest_of_line(SENT).parse().expect("a number");
        let sent = Duration::from_millis(sent);
        // A millisecond is rounded down.
        early.extend(
            end.checked_sub(sent + SECOND / 1_000)
                .filter(|early| !early.is_zero()),
        );
        child.wait();
    }
    assert!(
        early.is_empty(),
        "{} of {PROCESSES} too early by {early:?}",
        early.len()
    );
}
