//! `clamp_cost`: a cost that can never be admitted is lowered to the highest one that can.

use std::io;

use http::request::Parts;
use tollgate::{
    Algorithm, FailurePolicy, Level, MemoryStore, Plan, Quota, Quotas, RateLimitLayer, RateLimiter,
    Share, Source, Store, key,
};

use crate::support::calls::{ask, by_path, status};
use crate::support::fakes::moody::{Mood, Moody};
use crate::used;

/// A layer that clamps a cost of 1 000 000 units.
fn layer(store: impl Store, quotas: impl Into<Quotas>) -> RateLimitLayer {
    let layer = RateLimitLayer::new(store, quotas.into()).key(by_path());
    layer.cost(|_| 1_000_000).clamp_cost()
}

/// Returns the units that one request is charged, and its status.
async fn charged(layer: &RateLimitLayer) -> (u16, u32) {
    let status = status(layer, "/ada").await;
    (status, used(layer.limiter(), "/ada").await)
}

#[tokio::test]
async fn a_cost_is_at_most_the_lowest_limit_that_can_refuse() {
    let store = MemoryStore::new();
    let quotas = [
        Quota::per_hour(500),
        Quota::per_day(400),
        Quota::per_hour(7).soft(),
        Quota::in_flight(3),
    ];
    let layer = layer(store.clone(), quotas.clone());
    let other = layer.clone().cost(|_| 399);
    assert_eq!(status(&layer, "/ada").await, 200);
    assert_eq!(status(&layer, "/ada").await, 429);
    assert_eq!(status(&other, "/bob").await, 200);
    let limiter = RateLimiter::new(store, quotas);
    let day_of = async |key: &str| {
        let decision = limiter.peek(key).await.unwrap();
        decision.quotas().nth(1).map(|quota| quota.used())
    };
    assert_eq!(day_of("/ada").await, Some(400));
    // A cost within the limits stays.
    assert_eq!(day_of("/bob").await, Some(399));
}

#[tokio::test]
async fn a_cost_is_at_most_what_the_share_of_the_request_can_use() {
    let quota = Quota::per_hour(100).shares([
        Share::of("live").reserve(30),
        Share::of("batch").at_most(20),
    ]);
    for (share, most) in [("batch", 20), ("live", 100), ("unknown", 70)] {
        let layer = layer(MemoryStore::new(), quota.clone()).share(move |_: &Parts| Some(share));
        let layer = layer.settle(move |decision, _, _| {
            assert_eq!(decision.cost(), most, "{share}");
            most
        });
        assert_eq!(status(&layer, "/ada").await, 200, "{share}");
    }
}

#[tokio::test]
async fn a_cost_is_at_most_what_the_algorithm_charges_at_once() {
    for (algorithm, most) in [
        (Algorithm::SlidingLog, 100_000),
        (Algorithm::SlidingBuckets(60), 1_000_000),
    ] {
        let quota = Quota::per_hour(2_000_000).with_algorithm(algorithm);
        let layer = layer(MemoryStore::new(), quota);
        assert_eq!(charged(&layer).await, (200, most), "{algorithm}");
    }
}

#[tokio::test]
async fn a_limit_of_0_refuses_a_clamped_cost_and_a_cost_of_0_stays() {
    let none = layer(MemoryStore::new(), Quota::per_hour(0));
    for layer in [none.clone(), none.cost(|_| 0)] {
        let refused = ask(&layer, "/ada").await;
        assert_eq!(refused.status(), 429);
        assert!(!refused.headers().contains_key("retry-after"));
    }
    let layer = layer(MemoryStore::new(), Quota::per_hour(60));
    assert_eq!(charged(&layer.cost(|_| 0)).await, (200, 0));
}

#[tokio::test]
async fn a_cost_is_clamped_by_the_plan_of_the_key_after_its_lookup() {
    let charged_by = async |plan: fn() -> Result<Plan, io::Error>| {
        let layer = layer(MemoryStore::new(), Quota::per_hour(60));
        charged(&layer.quotas_for(move |_, _| async move { plan() })).await
    };
    assert_eq!(
        charged_by(|| Ok(Plan::Quotas(Quota::per_hour(500).into()))).await,
        (200, 500)
    );
    assert_eq!(
        charged_by(|| Ok(Plan::Quotas(Quota::per_hour(0).into()))).await,
        (429, 0)
    );
    assert_eq!(charged_by(|| Ok(Plan::Default)).await, (200, 60));
    // The quotas of the layer decide if the lookup fails.
    assert_eq!(
        charged_by(|| Err(io::Error::other("no database"))).await,
        (200, 60)
    );
}

#[tokio::test]
async fn a_cost_is_clamped_by_the_part_of_this_process_while_the_store_fails() {
    let store = Moody::unavailable();
    let layer = layer(store.clone(), Quota::per_hour(100))
        .on_failure(FailurePolicy::fall_back().replicas(4));
    assert_eq!(charged(&layer).await, (200, 25));
    let decision = layer.limiter().peek("/ada").await.unwrap();
    assert_eq!(
        (decision.source(), decision.limit()),
        (Source::Fallback, 25)
    );
    assert_eq!(status(&layer, "/ada").await, 429);

    // The whole limit, when the store decides again.
    store.becomes(Mood::Fine);
    store.let_breaker_probe();
    assert_eq!(status(&layer, "/bob").await, 200);
    let decision = layer.limiter().peek("/bob").await.unwrap();
    assert_eq!((decision.source(), decision.used()), (Source::Memory, 100));
}

#[tokio::test]
async fn each_level_is_clamped_by_its_own_quotas_if_it_asks_for_it() {
    let store = MemoryStore::new();
    let [tenant, team] = [("tenant", 50), ("team", 90)]
        .map(|(name, limit)| RateLimiter::new(store.clone(), Quota::per_hour(limit)).name(name));
    let clamped = |limiter: &RateLimiter| Level::new(limiter.clone(), key::global()).clamp_cost();
    let layer = RateLimitLayer::new(store, Quota::per_hour(200))
        .key(by_path())
        .cost(|_| 150)
        .and_level(clamped(&tenant))
        .and_level(clamped(&team).cost(|_| 70));
    assert_eq!(charged(&layer).await, (200, 150));
    let global = tollgate::Key::global();
    assert_eq!(tenant.peek(&global).await.unwrap().used(), 50);
    assert_eq!(team.peek(&global).await.unwrap().used(), 70);
    // The layer's own limit does not clamp what it was not told to.
    let own = layer.cost(|_| 201);
    let refused = ask(&own, "/bob").await;
    assert!(!refused.headers().contains_key("retry-after"));
}

#[tokio::test]
async fn a_settlement_starts_at_the_clamped_cost() {
    let layer = layer(MemoryStore::new(), Quota::per_hour(500)).settle(|decision, _, _| {
        assert_eq!(decision.cost(), 500);
        140
    });
    assert_eq!(charged(&layer).await, (200, 140));
}
