//! Stores that record their calls in circuit breakers of their own.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use tollgate::store::{
    Check, CircuitBreaker, StoreFuture, StoreId, StoreParts, Subject, TestClock,
};
use tollgate::{Error, ErrorKind, MemoryStore, Quota, RateLimiter, Store};

/// The checks that go in one call.
const PER_CALL: u32 = 10;

/// Two servers. The keys that begin with `a` are on the first one.
#[derive(Clone)]
struct TwoServers {
    counts: MemoryStore,
    servers: Arc<[Server; 2]>,
    clock: TestClock,
}

struct Server {
    circuit_breaker: CircuitBreaker,
    fails: Arc<AtomicBool>,
    checks: AtomicU32,
}

impl TwoServers {
    fn new() -> Self {
        let clock = TestClock::new();
        let server = || {
            let fails = Arc::new(AtomicBool::new(false));
            let pinged = Arc::clone(&fails);
            let circuit_breaker = CircuitBreaker::new()
                .with_clock(clock.clone())
                .recorded_by_store()
                .probed_by(move || StoreFuture::ready(outcome(&pinged)));
            Server {
                circuit_breaker,
                fails,
                checks: AtomicU32::new(0),
            }
        };
        Self {
            counts: MemoryStore::with_clock(clock.clone()),
            servers: Arc::new([server(), server()]),
            clock,
        }
    }

    fn server(&self, subject: Subject<'_>) -> &Server {
        &self.servers[usize::from(!subject.key.as_str().starts_with('a'))]
    }
}

fn outcome(fails: &AtomicBool) -> Result<(), Error> {
    match fails.load(Ordering::SeqCst) {
        true => Err(Error::new(ErrorKind::Unavailable, "gone")),
        false => Ok(()),
    }
}

impl Store for TwoServers {
    fn id(&self) -> StoreId {
        self.counts.id()
    }

    fn check(&self, checks: &[Check<'_>]) -> StoreFuture {
        let server = self.server(checks[0].subject);
        let outcome = outcome(&server.fails);
        if server.checks.fetch_add(1, Ordering::SeqCst) % PER_CALL == PER_CALL - 1 {
            server.circuit_breaker.record(outcome.as_ref().map(drop));
        }
        let answers = self.counts.check(checks).try_ready();
        let answers = answers.expect("memory answers at once");
        StoreFuture::boxed(async move { outcome.and(answers) })
    }

    fn circuit_breaker(&self, subject: Subject<'_>) -> Option<CircuitBreaker> {
        Some(self.server(subject).circuit_breaker.clone())
    }

    fn parts(&self) -> StoreParts {
        let mut parts = StoreParts::default();
        parts.circuit_breaker = CircuitBreaker::new().with_clock(self.clock.clone());
        parts
    }
}

fn limiter(store: &TwoServers) -> RateLimiter {
    RateLimiter::new(store.clone(), Quota::per_hour(1_000))
}

/// Checks keys of the first server until they are refused by its circuit breaker. Returns how many reached the store.
async fn open_breaker(limiter: &RateLimiter) -> u32 {
    let mut asked = 0;
    loop {
        let error = limiter.check("ada").await.unwrap_err().to_string();
        if error.contains("the circuit breaker is open") {
            return asked;
        }
        asked += 1;
        assert!(asked < 1_000, "{error}");
    }
}

#[tokio::test]
async fn a_call_of_many_checks_counts_once_and_for_its_own_server_only() {
    let store = TwoServers::new();
    let limiter = limiter(&store);
    store.servers[0].fails.store(true, Ordering::SeqCst);
    assert_eq!(open_breaker(&limiter).await, 5 * PER_CALL);
    assert!(limiter.check("bob").await.unwrap().is_allowed());
    // A check of cost 0 in the background closes it, as for every store.
    store.servers[0].fails.store(false, Ordering::SeqCst);
    store.clock.advance(Duration::from_millis(500));
    assert!(limiter.check("ada").await.is_err());
    tokio::task::yield_now().await;
    assert!(limiter.check("ada").await.unwrap().is_allowed());
}

#[tokio::test(start_paused = true)]
async fn a_store_that_says_how_is_asked_again_without_a_check() {
    let store = TwoServers::new();
    let limiter = limiter(&store);
    store.servers[0].fails.store(true, Ordering::SeqCst);
    open_breaker(&limiter).await;
    let second = Duration::from_secs(1);
    for _ in 0..3 {
        store.clock.advance(2 * second);
        tokio::time::sleep(second).await;
    }
    store.servers[0].fails.store(false, Ordering::SeqCst);
    store.clock.advance(2 * second);
    tokio::time::sleep(2 * second).await;
    assert!(limiter.check("ada").await.unwrap().is_allowed());
}
