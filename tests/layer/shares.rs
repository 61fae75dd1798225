//! Shares of a layer, of a level and of a plan, as requests see them.

use http::Request;
use http_body_util::BodyExt;
use tollgate::{Level, MemoryStore, Quota, RateLimitLayer, RateLimiter, Share, key, problem_json};

use crate::support::calls::ok;
use crate::support::log;
use crate::told;
use tower::{Layer, ServiceExt, service_fn};

fn share_of(parts: &http::request::Parts) -> Option<String> {
    parts
        .headers
        .get("x-share")?
        .to_str()
        .ok()
        .map(str::to_owned)
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

fn thousand() -> Quota {
    Quota::per_hour(1_000).shares([
        Share::of("critical").reserve(200),
        Share::of("batch").at_most(500),
    ])
}

/// Returns the body for a request of a share, and what is logged.
async fn refused(layer: &RateLimitLayer, share: &str) -> (String, Vec<String>) {
    log::keep();
    let request = Request::get("/").header("x-share", share).body(()).unwrap();
    let response = layer.layer(service_fn(ok::<()>)).oneshot(request).await;
    let response = response.unwrap();
    assert_eq!(response.status(), 429);
    assert_eq!(told(&response, "retry-after"), "-");
    let body = response.into_body().collect().await.unwrap().to_bytes();
    (String::from_utf8(body.to_vec()).unwrap(), log::kept())
}

#[tokio::test]
async fn a_cost_above_the_bound_of_its_share_is_told_the_share_and_the_bound() {
    for (share, cost, bound) in [
        ("batch", 600, "bound of 500 for share \"batch\""),
        ("unknown", 900, "bound of 800 for requests without a share"),
    ] {
        let layer = RateLimitLayer::new(MemoryStore::new(), thousand()).key(key::global());
        let layer = layer.cost(move |_| cost).share(share_of);
        let (body, lines) = refused(&layer, share).await;
        let expected = format!("the request costs {cost}, more than its {bound}");
        assert_eq!(body, format!("{expected}\n"));
        let line = format!("a request costs {cost}, more than its {bound}, and is never admitted");
        assert!(lines.len() == 1 && lines[0].contains(&line), "{lines:?}");
        let (body, _) = refused(&layer.responder(problem_json()), share).await;
        let json: serde_json::Value = serde_json::from_str(&body).unwrap();
        assert_eq!(json["detail"], expected);

        let limiter = RateLimiter::new(MemoryStore::new(), [Quota::per_day(5_000), thousand()]);
        let level = limiter.level("ada").cost(cost).share(share);
        let error = RateLimiter::check_all([level]).await.unwrap_err();
        let expected = format!(
            "a cost of {cost} never passes a {bound}: lower the cost or change the quota [tollgate::E001]"
        );
        assert_eq!(error.to_string(), expected);
    }
    // No share bounds this one.
    let layer = RateLimitLayer::new(MemoryStore::new(), thousand()).key(key::global());
    let layer = layer.cost(|_| 1_001).share(share_of);
    let (body, lines) = refused(&layer, "critical").await;
    assert_eq!(body, "rate limit exceeded\n");
    assert!(
        lines[0].contains("costs 1001, more than its limit of 1000"),
        "{lines:?}"
    );
}

#[tokio::test]
async fn slots_above_the_bound_of_their_share_are_told_the_share_and_the_bound() {
    let quota = Quota::in_flight(5).shares([Share::of("batch").at_most(2)]);
    let limiter = RateLimiter::new(MemoryStore::new(), quota);
    let level = limiter.level("ada").slots(3).share("batch");
    let error = RateLimiter::try_acquire_all([level]).await.unwrap_err();
    assert_eq!(
        error.to_string(),
        "3 slots in flight never pass a bound of 2 for share \"batch\": take fewer slots or change the quota \
         [tollgate::E001]"
    );
}
