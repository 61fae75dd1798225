//! Tests with a paused clock of tokio, which jumps ahead while a store waits for Redis.

use std::convert::Infallible;
use std::time::Duration;

use futures_util::future::join_all;
use http::{Request, Response};
use tokio::time::{Instant, sleep};
use tollgate::{
    Acquired, DecisionView, ErrorKind, FailurePolicy, Quota, RateLimitLayer, RateLimiter,
    RedisStore, Source, key,
};
use tower::{Layer, ServiceExt, service_fn};

use crate::support::node::Node;
use crate::support::redis_server::RedisServer;
use crate::support::store_on;

const HOUR: Duration = Duration::from_secs(3_600);

#[tokio::test(start_paused = true)]
async fn a_store_connects_and_many_checks_at_once_are_decided_exactly() {
    let server = RedisServer::start();
    let store = store_on(&server);
    store.ping().await.unwrap();
    let limiter = RateLimiter::new(store, Quota::per_hour(150));
    let checks = (0..300).map(|number| limiter.check_n("ada", 1 + number % 2));
    let decisions = join_all(checks).await.into_iter().map(Result::unwrap);
    let admitted = decisions.filter(|decision| decision.is_allowed());
    let units: u32 = admitted.map(|decision| decision.view().cost()).sum();
    assert_eq!(units, 150);
    limiter.admin().reset("ada").await.unwrap();
    let decision = limiter.check("ada").await.unwrap();
    assert!(decision.is_allowed());
    decision.settle(0).await.unwrap();
    assert_eq!(limiter.peek("ada").await.unwrap().used(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_layer_does_not_fall_back() {
    let server = RedisServer::start();
    // A busy machine needs more than the default deadline.
    let store = RedisStore::open(&server.url()).unwrap();
    let store = store.deadline(Duration::from_secs(10));
    let layer = RateLimitLayer::new(store, Quota::per_hour(1)).key(key::global());
    let source = async |request: Request<()>| {
        let decision = request.extensions().get::<DecisionView>().unwrap();
        Ok::<_, Infallible>(Response::new(format!("{:?}", decision.source())))
    };
    let mut service = layer.layer(service_fn(source));
    let response = (&mut service).oneshot(Request::new(())).await.unwrap();
    let body = http_body_util::BodyExt::collect(response.into_body()).await;
    assert_eq!(body.unwrap().to_bytes(), "Redis");
    let response = service.oneshot(Request::new(())).await.unwrap();
    assert_eq!(response.status(), 429);
}

#[tokio::test(start_paused = true)]
async fn slots_are_held_over_hours_of_tokio_and_released() {
    let server = RedisServer::start();
    let [one, other] = [(); 2].map(|()| RateLimiter::new(store_on(&server), Quota::in_flight(1)));
    let permit = one.acquire("ada").await.unwrap();
    sleep(HOUR).await;
    assert!(matches!(
        other.try_acquire("ada").await.unwrap(),
        Acquired::Refused(_)
    ));
    permit.release().await.unwrap();
    // This process repeats its refusal for a short time.
    std::thread::sleep(Duration::from_millis(25));
    let permit = other.acquire("ada").await.unwrap();
    // A call that waits gets the slot, and has not waited for longer than it really took.
    let releases = std::thread::spawn(|| {
        std::thread::sleep(Duration::from_millis(50));
        drop(permit);
    });
    let patient = one.clone().max_wait(HOUR);
    let permit = patient.acquire("ada").await.unwrap();
    releases.join().unwrap();
    drop(permit);
    one.release().await.unwrap();
    assert_eq!(one.peek("ada").await.unwrap().used(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_lease_admits_from_memory_and_returns_what_is_left() {
    let server = RedisServer::start();
    let leased = |store| RateLimiter::new(store, Quota::per_hour(1_000)).lease(HOUR / 20);
    let [one, other] = [(); 2].map(|()| leased(store_on(&server)));
    let mut from_memory = 0;
    for _ in 0..200 {
        let decision = one.check("ada").await.unwrap();
        assert!(decision.is_allowed());
        from_memory += u32::from(decision.source() == Source::Lease);
    }
    assert!(from_memory > 100, "{from_memory} of 200 from memory");
    one.release().await.unwrap();
    assert_eq!(other.peek("ada").await.unwrap().used(), 200);
}

#[tokio::test(start_paused = true)]
async fn a_server_that_hangs_is_a_timeout_after_the_real_deadline() {
    let server = Node::start(&[]);
    let deadline = Duration::from_millis(300);
    let store = RedisStore::open(&format!("redis://{}", server.address()));
    let store = store.unwrap().deadline(deadline);
    let limiter = RateLimiter::new(store.clone(), Quota::per_hour(9));
    while store.ping().await.is_err() {}
    server.stop();
    let begin = std::time::Instant::now();
    let checks = join_all((0..3).map(|_| limiter.check("ada"))).await;
    for check in checks {
        assert_eq!(check.unwrap_err().kind(), ErrorKind::Timeout);
    }
    let waited = begin.elapsed();
    assert!(waited >= deadline && waited < 10 * deadline, "{waited:?}");
}

#[tokio::test(start_paused = true)]
async fn a_call_moves_the_clock_of_tokio_by_its_deadline_at_most() {
    let server = RedisServer::start();
    let deadline = Duration::from_secs(10);
    let store = store_on(&server);
    // Connecting moves it by the time of an attempt.
    store.ping().await.unwrap();
    let limiter = RateLimiter::new(store, Quota::per_hour(90)).on_failure(FailurePolicy::closed());
    for _ in 0..50 {
        let begin = Instant::now();
        // So a longer timeout of the test is never over too early.
        let decision = tokio::time::timeout(2 * deadline, limiter.check("ada")).await;
        assert!(decision.unwrap().unwrap().is_allowed());
        assert!(begin.elapsed() <= deadline, "{:?}", begin.elapsed());
    }
}

#[tokio::test(start_paused = true)]
async fn a_wait_sleeps_by_the_clock_of_tokio_and_units_return_by_that_of_redis() {
    let server = RedisServer::start();
    let limiter = RateLimiter::new(store_on(&server), Quota::per_hour(1));
    let (began, begin) = (std::time::Instant::now(), Instant::now());
    for is_allowed in [true, false] {
        let decision = limiter.until_ready("ada", 1, 2 * HOUR).await.unwrap();
        assert_eq!(decision.is_allowed(), is_allowed);
    }
    assert!(begin.elapsed() >= HOUR && began.elapsed() < HOUR / 60);
}
