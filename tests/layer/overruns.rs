//! A client pays all that it used: over HTTP, also beyond the limit, and after the window of its reservation.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::body::{Body, Bytes};
use axum::http::Request;
use axum::{Router, routing::get};
use futures_util::stream;
use http_body_util::BodyExt;
use tollgate::store::TestClock;
use tollgate::{
    Algorithm, BlockRule, Key, Level, MemoryStore, Quota, RateLimitLayer, RateLimiter, Reservation,
    Source, Store, key,
};
use tower::ServiceExt;

use crate::support::calls::stores;
use crate::support::fakes::fake_store::FakeStore;
use crate::support::log;
use crate::support::redis_server::RedisServer;
use crate::support::served::{fetch, number, serve};
use crate::support::test_time::TestTime;
use crate::{algorithms, counts, used};

const LIMIT: u32 = 1_000;
const MINUTE: Duration = Duration::from_secs(60);

/// Reserves 1 token, and uses this many.
fn completions(layer: RateLimitLayer, tokens: u32) -> Router {
    let complete = async move |reservation: Reservation| {
        reservation.settle(tokens);
        "an answer"
    };
    Router::new()
        .route("/", get(complete))
        .layer(layer.reserve())
}

#[tokio::test]
async fn a_client_that_reserves_one_token_and_uses_a_hundred_thousand_pays_them() {
    let server = RedisServer::start();
    for store in stores(&server) {
        let limiter = RateLimiter::new(store, Quota::per_hour(LIMIT));
        let layer = RateLimitLayer::from(limiter.clone()).key(key::header("x-api-key"));
        let url = serve(completions(layer, 100_000)).await;
        let ada = key::header("x-api-key").of("ada");
        // One unit is left.
        let _ = limiter.check_n(&ada, LIMIT - 1).await.unwrap();
        let headers = [("x-api-key", "ada")];
        assert_eq!(fetch(&url, &headers).await.status(), 200);
        counts(&limiter, &ada, LIMIT - 1 + 100_000).await;
        let refused = fetch(&url, &headers).await;
        assert_eq!(refused.status(), 429);
        assert_eq!(number(refused.headers(), "x-ratelimit-remaining"), 0);
        let wait = number(refused.headers(), "retry-after");
        assert!((3_500..=3_600).contains(&wait), "{wait}");
        // Nobody else pays.
        assert_eq!(fetch(&url, &[("x-api-key", "bob")]).await.status(), 200);
    }
}

/// A stream that settles its charge when it ends, one token for each part.
async fn stream_longer_than_the_window(
    store: impl Store,
    algorithm: Algorithm,
    mut advance: impl FnMut(Duration),
) {
    let limiter = RateLimiter::new(store, Quota::new(10, MINUTE).with_algorithm(algorithm));
    let layer = RateLimitLayer::from(limiter.clone())
        .key(key::global())
        .reserve();
    let complete = async |reservation: Reservation| {
        let parts = stream::unfold((reservation, 0), |(reservation, sent)| async move {
            if sent == 25 {
                reservation.settle(sent);
                return None;
            }
            let part = Ok::<_, Infallible>(Bytes::from("token "));
            Some((part, (reservation, sent + 1)))
        });
        Body::from_stream(parts)
    };
    let app = Router::new().route("/", get(complete)).layer(layer);
    let request = Request::get("/").body(Body::empty()).unwrap();
    let mut body = app.oneshot(request).await.unwrap().into_body();
    assert_eq!(used(&limiter, &Key::global()).await, 1);
    for part in 0..25 {
        assert!(body.frame().await.is_some(), "{part}");
        advance(MINUTE / 10);
    }
    // Two and a half windows later, the reservation has returned.
    assert_eq!(used(&limiter, &Key::global()).await, 0);
    assert!(body.frame().await.is_none());
    let expected = if algorithm == Algorithm::SortedSetLog {
        10
    } else {
        24
    };
    counts(&limiter, &Key::global(), expected).await;
    let refused = limiter.check(Key::global()).await.unwrap();
    assert!(!refused.is_allowed() && refused.retry_after().is_some());
}

#[tokio::test]
async fn a_stream_that_is_longer_than_the_window_is_charged_when_it_ends() {
    for algorithm in algorithms() {
        let clock = TestClock::new();
        let store = MemoryStore::with_clock(clock.clone());
        stream_longer_than_the_window(store, algorithm, |step| clock.advance(step)).await;
    }
}

#[tokio::test]
async fn a_stream_that_is_longer_than_the_window_is_charged_when_it_ends_in_redis() {
    let server = RedisServer::start();
    for algorithm in algorithms() {
        let mut time = TestTime::new(&server);
        let store = time.redis.clone();
        stream_longer_than_the_window(store, algorithm, |step| time.advance(step)).await;
    }
}

#[tokio::test]
async fn an_overrun_goes_to_each_level_that_shares_the_cost_and_to_no_other() {
    let server = RedisServer::start();
    for store in stores(&server) {
        let limiter = |name: &str, limit| {
            RateLimiter::new(Arc::clone(&store), Quota::per_hour(limit)).name(name)
        };
        let (user, service, requests) = (
            limiter("user", 10),
            limiter("service", 50),
            limiter("requests", 5),
        );
        let layer = RateLimitLayer::from(user.clone())
            .key(key::header("x-api-key"))
            .and(service.clone(), key::global())
            .and_level(Level::new(requests.clone(), key::global()).cost(|_| 1));
        let url = serve(completions(layer, 100)).await;
        assert_eq!(fetch(&url, &[("x-api-key", "ada")]).await.status(), 200);
        let ada = key::header("x-api-key").of("ada");
        counts(&user, &ada, 100).await;
        counts(&service, &Key::global(), 100).await;
        assert_eq!(used(&requests, &Key::global()).await, 1);
        // The limit of the service is used up by one answer.
        assert_eq!(fetch(&url, &[("x-api-key", "bob")]).await.status(), 429);
    }
}

#[tokio::test]
async fn a_refused_request_and_one_that_costs_nothing_pay_nothing() {
    let server = RedisServer::start();
    for store in stores(&server) {
        let limiter = RateLimiter::new(store, Quota::per_hour(5));
        let layer = RateLimitLayer::from(limiter.clone()).key(key::global());
        let _ = limiter.check_n(Key::global(), 5).await.unwrap();
        let refused = limiter.check(Key::global()).await.unwrap();
        refused.settle(100).await.unwrap();
        for layer in [layer.clone().dry_run(), layer.cost(|_| 0)] {
            let request = Request::get("/").body(Body::empty()).unwrap();
            let response = completions(layer, 100).oneshot(request).await.unwrap();
            assert_eq!(response.status(), 200);
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
        assert_eq!(used(&limiter, &Key::global()).await, 5);
    }
}

#[tokio::test]
async fn refusals_by_an_overrun_count_towards_an_automatic_block() {
    let server = RedisServer::start();
    for store in stores(&server) {
        let rule = BlockRule::refusals(3).block_for(MINUTE);
        let limiter = RateLimiter::new(store, Quota::per_hour(5)).block_after(rule);
        let reserved = limiter.check("ada").await.unwrap();
        reserved.settle(100).await.unwrap();
        let patience = Instant::now() + Duration::from_secs(10);
        loop {
            let refused = limiter.check("ada").await.unwrap();
            assert!(!refused.is_allowed());
            if refused.source() == Source::Block {
                break;
            }
            assert!(Instant::now() < patience, "no block");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}

#[tokio::test]
async fn a_store_that_cannot_charge_beyond_a_limit_is_charged_up_to_it_with_one_line() {
    let limiter = RateLimiter::new(FakeStore::in_memory(), Quota::per_hour(10));
    log::keep();
    for (units, expected) in [(3, 3), (9, 10), (7, 10)] {
        limiter.charge("ada", units).await.unwrap();
        assert_eq!(used(&limiter, &Key::from("ada")).await, expected);
    }
    let reserved = limiter.check("bob").await.unwrap();
    reserved.settle(8).await.unwrap();
    assert_eq!(used(&limiter, &Key::from("bob")).await, 8);
    let log = log::kept();
    assert_eq!(log.len(), 1, "{log:?}");
    for part in ["usage beyond a limit", "code=\"tollgate::W014\""] {
        assert!(log[0].contains(part), "{log:?}");
    }
}
