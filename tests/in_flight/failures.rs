//! Slots while the store fails: each failure policy.

use std::convert::Infallible;
use std::time::Duration;

use axum::body::Bytes;
use axum::http::{Request, Response, StatusCode};
use http_body_util::Full;
use tollgate::store::TestStore;
use tollgate::{
    Acquired, ErrorKind, FailurePolicy, Permit, PermitHandle, Plan, Quota, RateLimitLayer,
    RateLimiter, RedisStore, Source, key,
};
use tower::{Layer, ServiceExt, service_fn};

use crate::support::fakes::moody::{Mood, Moody};
use crate::support::node::Node;

/// A limiter on a store that fails, and the store.
fn failing(policy: FailurePolicy, quotas: impl tollgate::IntoQuotas) -> (RateLimiter, TestStore) {
    let store = TestStore::new();
    store.fail_all(ErrorKind::Unavailable);
    let limiter = RateLimiter::new(store.clone(), quotas).on_failure(policy);
    (limiter, store)
}

async fn acquired(limiter: &RateLimiter) -> Acquired {
    limiter.try_acquire("ada").await.unwrap()
}

async fn taken(limiter: &RateLimiter) -> Option<Permit> {
    match acquired(limiter).await {
        Acquired::Permit(permit) => Some(permit),
        Acquired::Refused(_) => None,
    }
}

#[tokio::test]
async fn keys_that_got_no_slot_in_an_outage_are_forgotten_after_a_lease() {
    let store = Moody::unavailable();
    let lease = Duration::from_secs(5);
    let quota = Quota::in_flight(2).slot_lease(lease);
    let limiter = RateLimiter::new(store.clone(), quota).on_failure(FailurePolicy::closed());
    for key in 0..100 {
        assert!(limiter.try_acquire(key.to_string()).await.is_err());
    }
    let during = FailurePolicy::fall_back();
    let held = limiter
        .clone()
        .on_failure(during)
        .acquire("held")
        .await
        .unwrap();
    tokio::time::sleep(lease * 3 / 2).await;
    store.becomes(Mood::Fine);
    store.times_asked();
    // The first reply states all keys of which the store may not know what is held.
    while limiter.try_acquire("other").await.is_err() {
        store.let_breaker_probe();
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    tokio::time::sleep(Duration::from_millis(100)).await;
    let asked = store.times_asked();
    assert!((1..20).contains(&asked), "asked {asked} times");
    assert_eq!(limiter.peek("held").await.unwrap().used(), 1);
    drop(held);
}

#[tokio::test]
async fn slots_of_a_longer_lease_are_given_back_after_an_outage_though_a_shorter_one_has_ended() {
    let store = Moody::new(Mood::Fine);
    let [long, short] = [60, 5].map(|seconds| {
        let quota = Quota::in_flight(2).slot_lease(Duration::from_secs(seconds));
        RateLimiter::new(store.clone(), quota)
    });
    let permit = long.acquire("ada").await.unwrap();
    store.becomes(Mood::Fails(ErrorKind::Unavailable));
    drop(permit);
    assert!(short.try_acquire("ada").await.is_err());
    tokio::time::sleep(Duration::from_millis(7_500)).await;
    store.becomes(Mood::Fine);
    while short.try_acquire("other").await.is_err() {
        store.let_breaker_probe();
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(long.peek("ada").await.unwrap().used(), 0);
}

/// Waits until the store, which has recovered, knows that so many slots are used.
pub(crate) async fn until_used(limiter: &RateLimiter, store: &TestStore, expected: u32) {
    for _ in 0..2_000 {
        // The circuit breaker sends a probe by this clock.
        store.clock().advance(Duration::from_millis(10));
        let looked = limiter.peek("ada").await;
        if looked.is_ok_and(|decision| {
            decision.source() == Source::Memory && decision.used() == expected
        }) {
            return;
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    panic!("{:?}, expected {expected}", limiter.peek("ada").await);
}

#[tokio::test]
async fn open_admits_any_number_and_the_store_learns_them() {
    let (limiter, store) = failing(FailurePolicy::open(), Quota::in_flight(2));
    let mut permits = Vec::new();
    for _ in 0..5 {
        let permit = taken(&limiter).await.unwrap();
        assert_eq!(permit.decision().source(), Source::None);
        permits.push(permit);
    }
    store.recover();
    drop(permits.split_off(4));
    until_used(&limiter, &store, 4).await;
    assert!(taken(&limiter).await.is_none());
    drop(permits);
    until_used(&limiter, &store, 0).await;
}

#[tokio::test]
async fn closed_refuses_with_an_error_and_takes_nothing() {
    for policy in [None, Some(FailurePolicy::closed())] {
        let store = TestStore::new();
        let mut limiter = RateLimiter::new(store.clone(), Quota::in_flight(2));
        if let Some(policy) = policy {
            limiter = limiter.on_failure(policy);
        }
        store.fail_all(ErrorKind::Unavailable);
        let error = limiter.try_acquire("ada").await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        let error = limiter.acquire("ada").await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        store.recover();
        until_used(&limiter, &store, 0).await;
    }
}

#[tokio::test]
async fn fall_back_counts_what_this_process_holds() {
    let (limiter, store) = failing(FailurePolicy::fall_back(), Quota::in_flight(2));
    store.recover();
    let before = taken(&limiter).await.unwrap();
    assert_eq!(before.decision().source(), Source::Memory);
    store.fail_all(ErrorKind::Unavailable);
    // The permit from before the outage counts, too.
    let second = taken(&limiter).await.unwrap();
    assert_eq!(second.decision().source(), Source::Fallback);
    assert_eq!(second.decision().used(), 2);
    let Acquired::Refused(refused) = acquired(&limiter).await else {
        panic!("a third permit of two");
    };
    let wait = refused.retry_after().unwrap();
    println!("{wait:?}");
    assert!((1..=60).contains(&wait.as_secs()), "{wait:?}");
    assert!(refused.is_wait_estimated());
    // Only the key has none left.
    let other = limiter.try_acquire("bob").await.unwrap();
    assert!(matches!(other, Acquired::Permit(_)));
    drop(before);
    let third = taken(&limiter).await.unwrap();
    store.recover();
    until_used(&limiter, &store, 2).await;
    drop((second, third));
    until_used(&limiter, &store, 0).await;
}

#[tokio::test]
async fn fall_back_has_its_share_of_the_slots_and_of_the_rates() {
    let policy = FailurePolicy::fall_back().replicas(3);
    let quotas = [Quota::in_flight(7), Quota::per_hour(9)];
    let (limiter, _store) = failing(policy, quotas);
    let one = taken(&limiter).await.unwrap();
    let two = taken(&limiter).await.unwrap();
    assert_eq!(two.decision().limit(), 2);
    assert!(taken(&limiter).await.is_none());
    drop(one);
    let three = taken(&limiter).await.unwrap();
    // Two of the three units of the rate were used before, and all now.
    drop((two, three));
    let Acquired::Refused(refused) = acquired(&limiter).await else {
        panic!("a fourth unit of three");
    };
    assert!(!refused.is_wait_estimated());
}

#[tokio::test]
async fn more_slots_than_the_share_wait_for_the_store() {
    let policy = FailurePolicy::fall_back().replicas(3);
    let (limiter, _store) = failing(policy, Quota::in_flight(7));
    let levels = [limiter.level("ada").slots(3)];
    let error = RateLimiter::try_acquire_all(levels).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    let levels = [limiter.level("ada").slots(8)];
    let error = RateLimiter::try_acquire_all(levels).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::CostExceedsLimit);
}

#[tokio::test]
async fn a_layer_follows_its_policy() {
    for (policy, statuses) in [
        (FailurePolicy::open(), [200, 200, 200]),
        (FailurePolicy::closed(), [503, 503, 503]),
        (FailurePolicy::fall_back(), [200, 200, 429]),
        (FailurePolicy::fall_back().replicas(2), [200, 429, 429]),
    ] {
        let store = TestStore::new();
        store.fail_all(ErrorKind::Unavailable);
        let layer = RateLimitLayer::new(store, Quota::in_flight(2))
            .key(key::global())
            .on_failure(policy);
        let handler = service_fn(async |request: Request<()>| {
            assert!(request.extensions().get::<PermitHandle>().is_some());
            Ok::<_, Infallible>(Response::new(Full::new(Bytes::from("text"))))
        });
        let mut open = Vec::new();
        for status in statuses {
            let service = layer.layer(handler);
            let response = service.oneshot(Request::new(())).await.unwrap();
            assert_eq!(response.status().as_u16(), status, "{policy:?}");
            open.push(response);
        }
        drop(open);
        let response = layer.layer(handler).oneshot(Request::new(())).await;
        let is_closed = statuses[0] == 503;
        let status = response.unwrap().status();
        assert_eq!(status == StatusCode::OK, !is_closed, "{policy:?}");
    }
}

#[tokio::test]
async fn slots_that_this_process_decides_stand_beside_a_rate_that_the_store_decides() {
    for (policy, statuses) in [
        (FailurePolicy::open(), [200, 200, 429]),
        (FailurePolicy::fall_back(), [200, 200, 429]),
        (FailurePolicy::fall_back().replicas(2), [200, 429, 429]),
    ] {
        let store = TestStore::new();
        let rate = RateLimiter::new(store.clone(), Quota::per_hour(2)).name("rate");
        let layer = RateLimitLayer::new(store, Quota::in_flight(2))
            .key(key::global())
            .on_failure(policy)
            .quotas_for(|_, _| async { Err::<Plan, _>("the plans are not known") })
            .and(rate, key::global());
        let handler = service_fn(async |_: Request<()>| {
            Ok::<_, Infallible>(Response::new(Full::new(Bytes::from("text"))))
        });
        let mut open = Vec::new();
        for status in statuses {
            let response = layer.layer(handler).oneshot(Request::new(()));
            let response = tokio::time::timeout(Duration::from_secs(5), response).await;
            let response = response.unwrap().unwrap();
            assert_eq!(response.status().as_u16(), status, "{policy:?}");
            open.push(response);
        }
    }
}

#[tokio::test]
async fn a_store_that_refuses_or_hangs_on_demand_does_so_with_slots() {
    let store = TestStore::new();
    let limiter = RateLimiter::new(store.clone(), Quota::in_flight(2));
    store.refuse_next(1, Duration::from_secs(7));
    assert!(taken(&limiter).await.is_none());
    let permit = taken(&limiter).await.unwrap();
    // What tells the store that it was dropped is no check of the test.
    store.fail_next(1, ErrorKind::Unavailable);
    permit.release().await.unwrap();
    let failed = limiter.try_acquire("ada").await;
    assert_eq!(failed.unwrap_err().kind(), ErrorKind::Unavailable);
    store.hang_next(1);
    let failed = limiter.try_acquire("ada").await;
    assert_eq!(failed.unwrap_err().kind(), ErrorKind::Timeout);
    let permit = taken(&limiter).await.unwrap();
    assert_eq!(permit.decision().used(), 1);
}

#[tokio::test]
async fn a_process_counts_alone_while_redis_is_dead_and_redis_learns_it() {
    let mut node = Node::start(&[]);
    let limiter = RateLimiter::new(RedisStore::open(&node.url()).unwrap(), Quota::in_flight(2));
    let limiter = limiter.on_failure(FailurePolicy::fall_back());
    let first = limiter.acquire("ada").await.unwrap();
    assert_eq!(first.decision().source(), Source::Redis);
    node.kill();
    let second = loop {
        if let Ok(Acquired::Permit(permit)) = limiter.try_acquire("ada").await {
            break permit;
        }
    };
    assert_eq!(second.decision().source(), Source::Fallback);
    assert!(taken(&limiter).await.is_none());
    node.restart();
    for _ in 0..1_000 {
        let looked = limiter.peek("ada").await.unwrap();
        if looked.source() == Source::Redis && looked.used() == 2 {
            return drop((first, second));
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("{:?}", limiter.peek("ada").await);
}
