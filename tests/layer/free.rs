//! Requests of cost 0: they pass above the limit, take one call of the store, and their headers tell what is left.

use std::time::Duration;

use tollgate::store::{TestClock, TestStore};
use tollgate::{
    Algorithm, Headers, IetfDraft, Key, Level, MemoryStore, Quota, RateLimitLayer, RateLimiter, key,
};

use crate::{algorithms, ask, by_path, told, used};

#[tokio::test]
async fn a_free_request_above_the_limit_tells_that_no_unit_is_left_and_when_one_is() {
    for algorithm in algorithms() {
        let clock = TestClock::new();
        let quota = Quota::per_hour(10).with_algorithm(algorithm);
        let limiter = RateLimiter::new(MemoryStore::with_clock(clock.clone()), quota);
        assert!(limiter.check_n("/ada", 10).await.unwrap().is_allowed());
        limiter.charge("/ada", 1).await.unwrap();
        clock.advance(Duration::from_secs(60));
        let reset = limiter.peek("/ada").await.unwrap().reset_after();
        let seconds = reset.as_micros().div_ceil(1_000_000).to_string();
        let headers = Headers::x_ratelimit().delta_reset();
        let layer = RateLimitLayer::from(limiter.clone())
            .key(by_path())
            .headers(headers.and(Headers::ietf(IetfDraft::Draft11)))
            .cost(|_| 0);
        let response = ask(&layer, "/ada").await;
        assert_eq!(response.status(), 200, "{algorithm:?}");
        let names = [
            "x-ratelimit-limit",
            "x-ratelimit-remaining",
            "x-ratelimit-reset",
            "retry-after",
        ];
        let headers = names.map(|name| told(&response, name));
        assert_eq!(headers, ["10", "0", &seconds, "-"], "{algorithm:?}");
        let of_draft = told(&response, "ratelimit");
        assert!(of_draft.starts_with("\"default\";r=0;t="), "{of_draft}");
        // Only the next unit has to wait.
        let paying = layer.cost(|_| 1);
        let refused = ask(&paying, "/ada").await;
        assert_eq!(told(&refused, "retry-after"), seconds, "{algorithm:?}");
        // Gcra drains meanwhile.
        let used = used(&limiter, "/ada").await;
        assert!(
            used == 11 || algorithm == Algorithm::Gcra,
            "{used} {algorithm:?}"
        );
    }
}

#[tokio::test]
async fn a_free_level_above_its_limit_takes_no_second_call_of_the_store() {
    let store = TestStore::new();
    let tenant = RateLimiter::new(store.clone(), Quota::per_hour(5)).name("tenant");
    assert!(tenant.check_n(Key::global(), 5).await.unwrap().is_allowed());
    tenant.charge(Key::global(), 1).await.unwrap();
    let user = RateLimiter::new(store.clone(), Quota::per_hour(5)).name("user");
    let level = Level::new(tenant.clone(), key::global()).cost(|_| 0);
    let layer = RateLimitLayer::from(user.clone())
        .key(by_path())
        .and_level(level);
    let _ = store.take_checks();
    let response = ask(&layer, "/ada").await;
    assert_eq!(response.status(), 200);
    let asked: Vec<_> = store
        .take_checks()
        .iter()
        .map(|check| check.cost())
        .collect();
    assert_eq!(asked, [1, 0]);
    // The tighter of both is told.
    assert_eq!(told(&response, "x-ratelimit-remaining"), "0");
    assert_eq!(
        (
            used(&user, "/ada").await,
            used(&tenant, Key::global()).await
        ),
        (1, 6)
    );
}
