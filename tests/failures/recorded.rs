//! Stores that record their calls in circuit breakers of their own.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use tollgate::store::TestClock;
use tollgate::store::protocol::{Check, CircuitBreaker, StoreFuture, StoreId, StoreParts, Subject};
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
    pings: Arc<AtomicU32>,
}

impl TwoServers {
    fn new() -> Self {
        let clock = TestClock::new();
        let server = || {
            let fails = Arc::new(AtomicBool::new(false));
            let pings = Arc::new(AtomicU32::new(0));
            let (pinged, counter) = (Arc::clone(&fails), Arc::clone(&pings));
            let circuit_breaker = CircuitBreaker::new()
                .with_clock(clock.clone())
                .recorded_by_store()
                .probed_by(move || {
                    counter.fetch_add(1, Ordering::SeqCst);
                    StoreFuture::ready(outcome(&pinged))
                });
            Server {
                circuit_breaker,
                fails,
                checks: AtomicU32::new(0),
                pings,
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

/// The clock of the store and the one of tokio advance by this step.
const STEP: Duration = Duration::from_millis(10);

impl TwoServers {
    /// No check comes for this time. Returns when the first server was pinged.
    async fn idle(&self, time: Duration) -> Vec<Duration> {
        let (pings, mut pinged_at) = (&self.servers[0].pings, Vec::new());
        for step in 1..=time.as_millis() / STEP.as_millis() {
            let before = pings.load(Ordering::SeqCst);
            self.clock.advance(STEP);
            tokio::time::sleep(STEP).await;
            if pings.load(Ordering::SeqCst) > before {
                pinged_at.push(STEP * u32::try_from(step).unwrap());
            }
        }
        pinged_at
    }
}

#[tokio::test(start_paused = true)]
async fn an_idle_process_asks_a_store_that_is_back_within_a_second() {
    // The waits are random.
    for round in 0..20 {
        let store = TwoServers::new();
        let limiter = limiter(&store);
        store.servers[0].fails.store(true, Ordering::SeqCst);
        open_breaker(&limiter).await;
        let _ = store.idle(Duration::from_secs(3) + STEP * round).await;
        store.servers[0].fails.store(false, Ordering::SeqCst);
        let pinged_at = store.idle(Duration::from_secs(1)).await;
        assert_eq!(pinged_at.len(), 1, "{pinged_at:?}");
        assert!(limiter.check("ada").await.unwrap().is_allowed());
    }
}

#[tokio::test(start_paused = true)]
async fn an_idle_process_asks_a_store_that_fails_at_most_once_in_each_interval() {
    let store = TwoServers::new();
    let limiter = limiter(&store);
    store.servers[0].fails.store(true, Ordering::SeqCst);
    open_breaker(&limiter).await;
    let pinged_at = store.idle(Duration::from_secs(60)).await;
    assert!(pinged_at.len() >= 60, "{pinged_at:?}");
    for pair in pinged_at.windows(2) {
        assert!(pair[1] - pair[0] >= Duration::from_millis(100), "{pair:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_store_that_was_dropped_is_not_kept_by_its_watch() {
    let store = TwoServers::new();
    let limiter = limiter(&store);
    store.servers[0].fails.store(true, Ordering::SeqCst);
    open_breaker(&limiter).await;
    let _ = store.idle(Duration::from_secs(3)).await;
    // The closure that pings has the other.
    let pings = Arc::clone(&store.servers[0].pings);
    drop((store, limiter));
    assert_eq!(Arc::strong_count(&pings), 1);
    let before = pings.load(Ordering::SeqCst);
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert_eq!(pings.load(Ordering::SeqCst), before);
}

#[test]
fn a_runtime_whose_check_probes_takes_over_the_watch_of_one_that_has_ended() {
    let paused = || {
        let mut builder = tokio::runtime::Builder::new_current_thread();
        builder.enable_all().start_paused(true).build().unwrap()
    };
    let store = TwoServers::new();
    let limiter = limiter(&store);
    store.servers[0].fails.store(true, Ordering::SeqCst);
    paused().block_on(open_breaker(&limiter));
    let other = paused();
    let pinged_at = other.block_on(async {
        store.clock.advance(Duration::from_secs(1));
        // It sends the probe, which fails.
        assert!(limiter.check("ada").await.is_err());
        tokio::task::yield_now().await;
        store.servers[0].fails.store(false, Ordering::SeqCst);
        store.idle(Duration::from_secs(1)).await
    });
    assert_eq!(pinged_at.len(), 1, "{pinged_at:?}");
    let decision = other.block_on(limiter.check("ada"));
    assert!(decision.unwrap().is_allowed());
}
