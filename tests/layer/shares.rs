//! Shares of a layer, of a level and of a plan, as requests see them.

use http::Request;
use tollgate::{Level, MemoryStore, Quota, RateLimitLayer, RateLimiter, Share, key};

use crate::support::calls::ok;
use crate::told;
use tower::{Layer, ServiceExt, service_fn};

fn share_of(parts: &http::request::Parts) -> Option<&str> {
    parts.headers.get("x-share")?.to_str().ok()
}

fn quota() -> Quota {
    Quota::per_hour(5).shares([
        Share::of("critical").reserve(2),
        Share::of("batch").at_most(1),
    ])
}

/// Returns the status and what is remaining.
async fn ask(layer: &RateLimitLayer, share: &str) -> (u16, String) {
    let request = Request::get("/").header("x-share", share).body(()).unwrap();
    let response = layer
        .layer(service_fn(ok::<()>))
        .oneshot(request)
        .await
        .unwrap();
    let remaining = told(&response, "x-ratelimit-remaining");
    (response.status().as_u16(), remaining.to_owned())
}

async fn is_shared(layer: &RateLimitLayer) {
    let expected = [
        ("batch", 200, "0"),
        ("batch", 429, "0"),
        ("unknown", 200, "1"),
        ("unknown", 200, "0"),
        ("unknown", 429, "0"),
        ("critical", 200, "1"),
        ("critical", 200, "0"),
        ("critical", 429, "0"),
    ];
    for (share, status, remaining) in expected {
        assert_eq!(
            ask(layer, share).await,
            (status, remaining.to_owned()),
            "{share}"
        );
    }
}

#[tokio::test]
async fn a_layer_reads_the_share_of_a_request() {
    let layer = RateLimitLayer::new(MemoryStore::new(), quota()).key(key::global());
    is_shared(&layer.share(share_of)).await;
}

#[tokio::test]
async fn the_quotas_of_a_plan_have_shares_too() {
    let layer = RateLimitLayer::new(MemoryStore::new(), Quota::per_hour(0)).key(key::global());
    let layer = layer.quotas_for(|_, _| async { quota() });
    is_shared(&layer.share(share_of)).await;
}

#[tokio::test]
async fn a_level_has_a_share_of_its_own() {
    let store = MemoryStore::new();
    let limiter = RateLimiter::new(store.clone(), quota()).name("tenant");
    let layer = RateLimitLayer::new(store, Quota::per_hour(100))
        .name("user")
        .key(key::global())
        // The share of the layer is not that of the level.
        .share(|_| Some("critical"))
        .and_level(Level::new(limiter, key::global()).share(share_of));
    is_shared(&layer).await;
}

#[tokio::test]
async fn a_cost_that_the_others_leave_no_room_for_gets_no_retry_after() {
    let layer = RateLimitLayer::new(MemoryStore::new(), quota()).key(key::global());
    let layer = layer.cost(|_| 4).share(share_of);
    for (share, is_admitted) in [("batch", false), ("unknown", false), ("critical", true)] {
        let request = Request::get("/").header("x-share", share).body(()).unwrap();
        let response = layer
            .layer(service_fn(ok::<()>))
            .oneshot(request)
            .await
            .unwrap();
        assert_eq!(response.status() == 200, is_admitted, "{share}");
        assert!(response.headers().get("retry-after").is_none());
    }
}
