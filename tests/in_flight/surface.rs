//! What methods other than `acquire` do with slots.

use std::error::Error as _;
use std::str::FromStr;
use std::time::Duration;

use tollgate::{
    Acquired, Algorithm, ConfigError, ConfigErrorKind, ErrorKind, MemoryStore, Plan, Quota, Quotas,
    RateLimitLayer, RateLimiter, Store, key,
};

use crate::support::calls::{ask, stores};
use crate::support::fakes::fake_store::FakeStore;
use crate::support::redis_server::RedisServer;

fn both() -> [Quota; 2] {
    [Quota::per_hour(9), Quota::in_flight(2)]
}

async fn used(limiter: &RateLimiter) -> Vec<u32> {
    let decision = limiter.peek("ada").await.unwrap();
    decision.quotas().map(|quota| quota.used()).collect()
}

#[tokio::test]
async fn a_check_that_would_hold_nothing_fails_and_charges_nothing() {
    let limiter = RateLimiter::new(MemoryStore::new(), both());
    let levels = [limiter.level("ada").slots(2)];
    for error in [
        limiter.check("ada").await.unwrap_err(),
        limiter.check_n("ada", 3).await.unwrap_err(),
        limiter
            .until_ready("ada", 1, Duration::from_secs(1))
            .await
            .unwrap_err(),
        RateLimiter::check_all(levels).await.unwrap_err(),
    ] {
        assert_eq!(error.kind(), ErrorKind::Misconfigured, "{error}");
        assert!(error.to_string().contains("try_acquire"), "{error}");
    }
    // With quotas of a plan, too.
    let rates = RateLimiter::new(MemoryStore::new(), Quota::per_hour(9));
    let levels = [rates.level("ada").quotas(Quota::in_flight(1))];
    let error = RateLimiter::check_all(levels).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Misconfigured, "{error}");
    assert_eq!(used(&limiter).await, [0, 0]);
}

#[tokio::test]
async fn a_lease_of_slots_is_an_error() {
    let lease = Duration::from_millis(100);
    let limiter = || RateLimiter::new(MemoryStore::new(), both());
    let leased = limiter().lease(lease);
    let error = leased.try_acquire("ada").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Misconfigured);
    let source = error.source().unwrap().downcast_ref::<ConfigError>();
    let source = source.unwrap();
    assert_eq!(source.kind(), ConfigErrorKind::Lease);
    assert!(source.to_string().contains("in flight"), "{source}");
    // A layer answers 500, whatever its failure policy.
    let layer = RateLimitLayer::new(MemoryStore::new(), both())
        .key(key::global())
        .lease(lease);
    assert_eq!(ask(&layer, "/ada").await.status(), 500);
    assert!(
        limiter()
            .lease(lease)
            .lease(Duration::ZERO)
            .acquire("ada")
            .await
            .is_ok()
    );
}

async fn other_methods_leave_slots_alone(store: impl Store) {
    let limiter = RateLimiter::new(store, both());
    let permit = limiter.acquire("ada").await.unwrap();
    let Acquired::Permit(other) = limiter.try_acquire("ada").await.unwrap() else {
        panic!("the second of two");
    };
    assert_eq!(used(&limiter).await, [2, 2]);
    limiter.admin().credit("ada", 1).await.unwrap();
    assert_eq!(used(&limiter).await, [1, 2]);
    limiter.admin().reset("ada").await.unwrap();
    assert_eq!(used(&limiter).await, [0, 2]);
    let refused = limiter.try_acquire("ada").await.unwrap();
    let Acquired::Refused(refused) = refused else {
        panic!("a third of two");
    };
    assert!(refused.is_wait_estimated());
    // No slot is left for the next call.
    let looked = limiter.peek("ada").await.unwrap();
    assert!(looked.is_wait_estimated() && !looked.is_allowed());
    let status = limiter.admin().status("ada").await.unwrap();
    println!("{status:?}");
    drop(permit);
    other.release().await.unwrap();
    assert_eq!(used(&limiter).await, [0, 0]);
}

#[tokio::test]
async fn resets_credits_and_looks_leave_slots_alone() {
    let server = RedisServer::start();
    for store in stores(&server) {
        other_methods_leave_slots_alone(store).await;
    }
}

#[tokio::test]
async fn an_operator_sees_how_many_slots_of_a_key_this_process_holds() {
    let server = RedisServer::start();
    for store in stores(&server) {
        let limiter = RateLimiter::new(store, Quota::in_flight(5));
        let peek = async |key: &str| limiter.admin().status(key).await.unwrap();
        assert!(peek("ada").await.holders.is_empty());
        let permit = RateLimiter::acquire_all([limiter.level("ada").slots(2)]).await;
        let permit = permit.unwrap();
        let status = peek("ada").await;
        let [holder] = status.holders.as_slice() else {
            panic!("{status:?}");
        };
        assert_eq!((holder.held, holder.wanted), (2, 0));
        assert_eq!(status.own_holder, Some(holder.holder));
        assert!(holder.lease > Duration::from_secs(5), "{holder:?}");
        assert!(peek("bob").await.holders.is_empty());
        permit.release().await.unwrap();
        assert!(peek("ada").await.holders.is_empty());
    }
}

#[tokio::test]
async fn a_key_has_no_holders_without_slots_or_in_a_store_that_does_not_list_them() {
    let rates = RateLimiter::new(MemoryStore::new(), Quota::per_hour(5));
    let status = rates.admin().status("ada").await.unwrap();
    assert!(status.holders.is_empty() && status.own_holder.is_none());
    let counts = MemoryStore::new();
    let silent = FakeStore::on(counts.clone()).parts(counts.parts());
    let limiter = RateLimiter::new(silent, Quota::in_flight(5));
    let _permit = limiter.acquire("ada").await.unwrap();
    let status = limiter.admin().status("ada").await.unwrap();
    assert_eq!((status.view.used(), status.holders.len()), (1, 0));
}

#[tokio::test]
async fn a_wait_is_estimated_only_if_slots_refuse_and_may_return() {
    let limiter = RateLimiter::new(
        MemoryStore::new(),
        [Quota::per_hour(1), Quota::in_flight(1)],
    );
    let permit = limiter.acquire("ada").await.unwrap();
    assert!(!permit.decision().is_wait_estimated());
    drop(permit);
    let Acquired::Refused(refused) = limiter.try_acquire("ada").await.unwrap() else {
        panic!("a second unit of one");
    };
    // The rate refuses.
    assert!(!refused.is_wait_estimated() && refused.retry_after().is_some());
    let none = RateLimiter::new(MemoryStore::new(), Quota::in_flight(0));
    let refused = none.try_acquire("ada").await;
    assert_eq!(refused.unwrap_err().kind(), ErrorKind::CostExceedsLimit);
}

#[tokio::test]
async fn text_makes_a_limiter_of_slots() {
    let store = MemoryStore::new();
    let limiter = RateLimiter::try_new(store, "5/second, 1 in-flight:60s").unwrap();
    let _permit = limiter.acquire("ada").await.unwrap();
    let refused = limiter.try_acquire("ada").await.unwrap();
    assert!(matches!(refused, Acquired::Refused(_)));
    let plan = Plan::from_str("5 in-flight; 100/minute").unwrap();
    let quotas = Quotas::from([Quota::in_flight(5), Quota::per_minute(100)]);
    assert_eq!(plan, Plan::Quotas(quotas.clone()));
    assert_eq!(quotas.to_string(), "5 in-flight, 100/minute");
    let algorithms = quotas.iter().map(Quota::algorithm);
    assert!(algorithms.eq([Algorithm::InFlight, Algorithm::default()]));
}

#[tokio::test]
async fn requests_beyond_the_line_of_a_layer_are_refused_at_once() {
    let limiter = RateLimiter::new(MemoryStore::new(), Quota::in_flight(1)).queue(1);
    let permit = limiter.acquire(tollgate::Key::global()).await.unwrap();
    let layer = RateLimitLayer::from(limiter)
        .key(key::global())
        .wait_up_to(Duration::from_secs(60));
    let waiting = tokio::spawn({
        let layer = layer.clone();
        async move { ask(&layer, "/").await.status() }
    });
    tokio::time::sleep(Duration::from_millis(20)).await;
    let began = std::time::Instant::now();
    assert_eq!(ask(&layer, "/").await.status(), 429);
    assert!(began.elapsed() < Duration::from_millis(900));
    drop(permit);
    assert_eq!(waiting.await.unwrap(), 200);
}
