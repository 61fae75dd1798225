//! Workers that wait for units while the store fails.

use std::future::pending;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Waker};
use std::time::Duration;

use crate::support::{fakes::fake_store::FakeStore, log, node::Node};
use futures_util::future::join_all;
use tokio::time::{Instant, sleep};
use tollgate::store::protocol::{CircuitBreaker, StoreFuture};
use tollgate::store::{TestClock, TestStore};
use tollgate::{
    Decision, Error, ErrorKind, FailurePolicy, Key, MemoryStore, Quota, RateLimiter, RedisStore,
    Source,
};

const MILLI: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);
const HOUR: Duration = Duration::from_secs(3_600);

fn limiter(store: &TestStore) -> RateLimiter {
    RateLimiter::new(store.clone(), Quota::per_day(100)).name("worker")
}

fn waiting(store: &TestStore) -> RateLimiter {
    limiter(store).wait_through_outages()
}

/// Waits for a unit at one level, and at two levels together.
async fn wait_both_ways(
    limiter: &RateLimiter,
    other: &RateLimiter,
    max_wait: Duration,
) -> [Result<Decision, Error>; 2] {
    let one = limiter.until_ready("ada", 1, max_wait).await;
    let levels = [limiter.level("ada"), other.level(Key::global())];
    [one, RateLimiter::until_all_ready(levels, max_wait).await]
}

/// Moves the clock of the counts and of the circuit breaker with the time of tokio.
fn follow_tokio(clock: TestClock) {
    tokio::spawn(async move {
        loop {
            sleep(MILLI).await;
            clock.advance(MILLI);
        }
    });
}

/// The costs that a store was asked to charge.
fn costs(store: &TestStore) -> Vec<u32> {
    let checks = store.take_checks();
    checks.iter().map(|checked| checked.cost()).collect()
}

#[tokio::test(start_paused = true)]
async fn without_the_setting_an_error_is_returned_at_once() {
    let store = TestStore::new();
    let begin = Instant::now();
    store.fail_next(2, ErrorKind::Unavailable);
    let other = limiter(&store).name("other");
    for waited in wait_both_ways(&limiter(&store), &other, HOUR).await {
        assert_eq!(waited.unwrap_err().kind(), ErrorKind::Unavailable);
    }
    assert_eq!(begin.elapsed(), Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn a_wait_goes_on_after_errors_that_pass() {
    for kind in [
        ErrorKind::Timeout,
        ErrorKind::QueueTimeout,
        ErrorKind::Unavailable,
        ErrorKind::Full,
    ] {
        let store = TestStore::new();
        let limiter = waiting(&store);
        store.fail_next(3, kind);
        let begin = Instant::now();
        let decision = limiter.until_ready("ada", 7, HOUR).await.unwrap();
        assert_eq!((decision.is_allowed(), decision.used()), (true, 7));
        // Waits of 50, 100 and 200 ms, each with jitter.
        let waited = begin.elapsed();
        assert!(
            (175 * MILLI..=360 * MILLI).contains(&waited),
            "{kind:?}: {waited:?}"
        );
        assert_eq!(costs(&store), [7; 4]);

        store.fail_next(3, kind);
        let other = waiting(&store).name("other");
        let levels = [limiter.level("ada"), other.level(Key::global())];
        let begin = Instant::now();
        let decision = RateLimiter::until_all_ready(levels, HOUR).await.unwrap();
        assert!(decision.is_allowed());
        let waited = begin.elapsed();
        assert!(
            (175 * MILLI..=360 * MILLI).contains(&waited),
            "{kind:?}: {waited:?}"
        );
        assert_eq!(costs(&store), [1; 8]);
    }
}

#[tokio::test(start_paused = true)]
async fn a_wait_ends_with_an_error_that_does_not_pass() {
    for kind in [
        ErrorKind::CostExceedsLimit,
        ErrorKind::CostTooLarge,
        ErrorKind::Misconfigured,
        ErrorKind::InvalidReply,
        ErrorKind::Unsupported,
        ErrorKind::QuotasUnknown,
    ] {
        let store = TestStore::new();
        store.fail_all(kind);
        let other = waiting(&store).name("other");
        let begin = Instant::now();
        for waited in wait_both_ways(&waiting(&store), &other, HOUR).await {
            assert_eq!(waited.unwrap_err().kind(), kind);
        }
        assert_eq!(begin.elapsed(), Duration::ZERO, "{kind:?}");
    }
    let begin = Instant::now();
    let limiter = waiting(&TestStore::new());
    let above_limit = limiter.until_ready("ada", 101, HOUR).await.unwrap_err();
    assert_eq!(above_limit.kind(), ErrorKind::CostExceedsLimit);
    assert_eq!(begin.elapsed(), Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn an_error_that_does_not_pass_ends_a_wait_also_behind_an_open_breaker() {
    let store = TestStore::new();
    store.fail_all(ErrorKind::InvalidReply);
    for _ in 0..5 {
        assert!(limiter(&store).check("ada").await.is_err());
    }
    let begin = Instant::now();
    let error = waiting(&store).until_ready("ada", 1, HOUR).await;
    assert_eq!(error.unwrap_err().kind(), ErrorKind::Unavailable);
    assert_eq!(begin.elapsed(), Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn while_the_breaker_is_open_only_probes_are_sent() {
    let store = TestStore::new();
    follow_tokio(store.clock().clone());
    store.fail_all(ErrorKind::Unavailable);
    let outage = 10 * SECOND;
    tokio::spawn({
        let store = store.clone();
        async move {
            sleep(outage).await;
            store.recover();
        }
    });
    let begin = Instant::now();
    let limiter = waiting(&store);
    let decision = limiter.until_ready("ada", 7, HOUR).await.unwrap();
    assert_eq!((decision.is_allowed(), decision.used()), (true, 7));
    let late = begin.elapsed().checked_sub(outage).expect("after it");
    assert!(late < 2 * SECOND + 10 * MILLI, "{late:?}");
    let mut costs = costs(&store);
    let probes = costs.iter().filter(|cost| **cost == 0).count();
    costs.retain(|cost| *cost > 0);
    assert_eq!(costs, [7; 6]);
    assert!((5..=20).contains(&probes), "{probes} probes");
}

#[tokio::test(start_paused = true)]
async fn after_max_wait_the_last_error_tells_the_time_that_was_waited() {
    let store = TestStore::new();
    follow_tokio(store.clock().clone());
    store.fail_all(ErrorKind::Full);
    let begin = Instant::now();
    let limiter = waiting(&store);
    let error = limiter.until_ready("ada", 1, 5 * SECOND).await.unwrap_err();
    assert_eq!(begin.elapsed().as_millis(), 5_000);
    assert_eq!(error.kind(), ErrorKind::Full);
    assert_eq!(
        error.to_string(),
        "the store still fails after a wait of 5.0s: the test store fails on demand: Full [tollgate::E007]"
    );
    let source = std::error::Error::source(&error).and_then(|source| source.downcast_ref());
    let source: &Error = source.expect("the error of the store");
    assert_eq!(
        source.to_string(),
        "the test store fails on demand: Full [tollgate::E007]"
    );

    let other = waiting(&store).name("other");
    let levels = [limiter.level("ada"), other.level(Key::global())];
    let begin = Instant::now();
    let error = RateLimiter::until_all_ready(levels, 2 * SECOND).await;
    assert_eq!(begin.elapsed().as_millis(), 2_000);
    let text = error.unwrap_err().to_string();
    assert!(text.contains("after a wait of 2.0s: "), "{text}");
}

#[tokio::test(start_paused = true)]
async fn without_time_to_wait_the_error_is_that_of_the_store() {
    let store = TestStore::new();
    store.fail_next(1, ErrorKind::Timeout);
    let error = waiting(&store).until_ready("ada", 1, Duration::ZERO).await;
    assert_eq!(
        error.unwrap_err().to_string(),
        "the test store fails on demand: Timeout [tollgate::E003]"
    );
    assert_eq!(costs(&store), [1]);
}

#[tokio::test(start_paused = true)]
async fn refusals_and_outages_share_max_wait() {
    let store = TestStore::new();
    store.refuse_next(1, SECOND);
    store.fail_next(1, ErrorKind::Unavailable);
    store.refuse_next(1, SECOND);
    store.fail_next(1, ErrorKind::Unavailable);
    store.refuse_next(1, SECOND);
    let begin = Instant::now();
    let refused = waiting(&store).until_ready("ada", 1, 5 * SECOND / 2).await;
    let refused = refused.unwrap();
    assert_eq!(
        (refused.is_allowed(), refused.retry_after()),
        (false, Some(SECOND))
    );
    // An answer of the store ends an outage: the next one begins with the shortest wait.
    let waited = begin.elapsed();
    assert!(
        (2_050 * MILLI..=2_110 * MILLI).contains(&waited),
        "{waited:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_policy_that_decides_leaves_no_error_to_wait_for() {
    let store = TestStore::new();
    store.fail_all(ErrorKind::Full);
    let with = |policy| waiting(&store).on_failure(policy);
    let begin = Instant::now();
    for (policy, source) in [
        (FailurePolicy::open(), Source::None),
        (FailurePolicy::fall_back(), Source::Fallback),
    ] {
        let decision = with(policy).until_ready("ada", 1, HOUR).await.unwrap();
        assert_eq!((decision.is_allowed(), decision.source()), (true, source));
    }
    assert_eq!(begin.elapsed(), Duration::ZERO);
    let closed = with(FailurePolicy::closed());
    let error = closed.until_ready("ada", 1, SECOND).await.unwrap_err();
    assert_eq!(
        (error.kind(), begin.elapsed().as_secs()),
        (ErrorKind::Full, 1)
    );
}

#[tokio::test(start_paused = true)]
async fn levels_wait_if_each_one_that_failed_waits() {
    let store = TestStore::new();
    let user = waiting(&store).name("user");
    let tenant = limiter(&store).name("tenant");
    let wait = async |tenant: &RateLimiter| {
        store.fail_next(1, ErrorKind::Full);
        let levels = [user.level("ada"), tenant.level("acme")];
        RateLimiter::until_all_ready(levels, HOUR).await
    };
    assert_eq!(wait(&tenant).await.unwrap_err().kind(), ErrorKind::Full);
    // A level whose policy decides has not failed.
    let open = tenant.clone().on_failure(FailurePolicy::open());
    assert!(wait(&open).await.unwrap().is_allowed());
    let closed = tenant.clone().on_failure(FailurePolicy::closed());
    assert_eq!(wait(&closed).await.unwrap_err().kind(), ErrorKind::Full);
    let closed = closed.wait_through_outages();
    assert!(wait(&closed).await.unwrap().is_allowed());
}

#[tokio::test(start_paused = true)]
async fn a_wait_that_is_dropped_charges_nothing() {
    let store = TestStore::new();
    store.fail_next(1, ErrorKind::Full);
    let limiter = waiting(&store);
    {
        let mut wait = pin!(limiter.until_ready("ada", 1, HOUR));
        let mut cx = Context::from_waker(Waker::noop());
        assert!(wait.as_mut().poll(&mut cx).is_pending());
    }
    sleep(10 * SECOND).await;
    assert_eq!(costs(&store), [1]);
    assert_eq!(limiter.peek("ada").await.unwrap().used(), 0);
}

#[tokio::test(start_paused = true)]
async fn many_workers_do_not_return_at_once() {
    const WORKERS: usize = 400;
    let store = TestStore::new();
    // Each fails twice, as in an outage of 50 ms.
    store.fail_next(2 * WORKERS, ErrorKind::Full);
    let limiter = RateLimiter::new(store.clone(), Quota::per_hour(1_000)).wait_through_outages();
    let begin = Instant::now();
    let workers = (0..WORKERS).map(async |_| {
        let decision = limiter.until_ready("ada", 1, HOUR).await.unwrap();
        assert!(decision.is_allowed());
        begin.elapsed().as_millis()
    });
    let mut returned = join_all(workers).await;
    returned.sort_unstable();
    let busiest = returned.chunk_by(PartialEq::eq).map(<[_]>::len).max();
    assert!(busiest.unwrap() < WORKERS / 10, "{returned:?}");
}

/// Returns a store in memory that charges, and whose replies are lost as long as `loses` says so.
fn lossy(clock: &TestClock, loses: &Arc<AtomicBool>) -> FakeStore {
    let loses = Arc::clone(loses);
    FakeStore::on(MemoryStore::with_clock(clock.clone()))
        .circuit_breaker(CircuitBreaker::new().with_clock(clock.clone()))
        .checks_by(move |counts, checks| {
            let counted = counts.check(checks);
            if loses.load(Ordering::SeqCst) {
                return StoreFuture::boxed(pending());
            }
            counted
        })
}

#[tokio::test(start_paused = true)]
async fn lost_replies_charge_at_most_once_for_each_failure_that_opens_the_breaker() {
    let clock = TestClock::new();
    follow_tokio(clock.clone());
    let loses = Arc::new(AtomicBool::new(true));
    let store = lossy(&clock, &loses);
    let limiter = RateLimiter::new(store, Quota::per_day(100)).wait_through_outages();
    let (decision, ()) = tokio::join!(limiter.until_ready("ada", 7, HOUR), async {
        sleep(60 * SECOND).await;
        loses.store(false, Ordering::SeqCst);
    });
    // Five lost replies, and the one that arrived.
    assert_eq!(decision.unwrap().used(), 6 * 7);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn workers_survive_a_redis_that_hangs_and_one_that_is_restarted() {
    const WORKERS: u32 = 200;
    let mut server = Node::start(&[]);
    let store = RedisStore::open(&server.url()).unwrap().prefix("jobs");
    let limit = 10 * WORKERS;
    let limiter = RateLimiter::new(store.clone(), Quota::per_hour(limit)).name("worker");
    let patient = store.fork().deadline(10 * SECOND);
    let patient = RateLimiter::new(patient, Quota::per_hour(limit)).name("worker");
    let waiting = limiter.clone().wait_through_outages();
    let work = || {
        let workers = (0..WORKERS).map(|worker| {
            let waiting = waiting.clone();
            tokio::spawn(async move {
                // They come one after the other: some before the circuit breaker opens, some after.
                sleep(worker * 2 * MILLI).await;
                if worker % 2 == 0 {
                    return waiting.until_ready("ada", 1, 60 * SECOND).await;
                }
                RateLimiter::until_all_ready([waiting.level("ada")], 60 * SECOND).await
            })
        });
        join_all(workers.collect::<Vec<_>>())
    };
    let all_admitted = |waited: Vec<Result<Result<Decision, Error>, _>>| {
        for decision in waited {
            assert!(decision.unwrap().expect("it waits").is_allowed());
        }
    };
    assert!(patient.check("ada").await.unwrap().is_allowed());

    server.stop();
    let working = tokio::spawn(work());
    sleep(SECOND).await;
    assert!(
        limiter.check("ada").await.is_err(),
        "others still get the error"
    );
    assert!(!working.is_finished());
    server.resume();
    all_admitted(working.await.unwrap());
    let used = patient.peek("ada").await.unwrap().used();
    // A check whose reply was lost may have been charged, too.
    assert!((WORKERS + 1..=limit).contains(&used), "{used}");

    server.kill();
    let working = tokio::spawn(work());
    sleep(2 * SECOND).await;
    assert!(!working.is_finished());
    tokio::task::block_in_place(|| server.restart());
    let restarted = std::time::Instant::now();
    all_admitted(working.await.unwrap());
    let late = restarted.elapsed();
    assert!(late < 5 * SECOND, "{late:?}");
    // The server lost its counts.
    let used = patient.peek("ada").await.unwrap().used();
    assert!((WORKERS..=limit).contains(&used), "{used}");
}

#[tokio::test(start_paused = true)]
async fn workers_that_wait_through_an_outage_say_so_at_most_once_a_minute() {
    let store = TestStore::new();
    store.fail_all(ErrorKind::Unavailable);
    let lines = |limiter: RateLimiter| async move {
        log::keep();
        let waits = (0..8).map(|_| limiter.until_ready("ada", 1, 5 * SECOND));
        for wait in join_all(waits).await {
            assert_eq!(wait.unwrap_err().kind(), ErrorKind::Unavailable);
        }
        let mut log = log::kept();
        log.retain(|line| line.contains("waiting until the store works again"));
        log
    };
    let log = lines(waiting(&store)).await;
    assert_eq!(log.len(), 1, "{log:?}");
    assert!(
        log[0].contains("WARN") && log[0].contains("worker"),
        "{log:?}"
    );
    // Who does not wait does not say so.
    assert_eq!(lines(limiter(&store)).await, [""; 0]);
}
