//! A total has no times: none of its headers tells a client to come back later.

use std::time::Duration;

use axum::body::Body;
use axum::http::{HeaderMap, Request, StatusCode};
use axum::{Router, routing::get};
use tollgate::{
    Algorithm, Headers, IetfDraft, MemoryStore, Quota, RateLimitLayer, RejectionReason, key,
};
use tower::ServiceExt;

const DAY: Duration = Duration::from_secs(86_400);

/// Asks twice, and returns both answers.
async fn answers(layer: RateLimitLayer) -> [(StatusCode, HeaderMap); 2] {
    let app = Router::new()
        .route("/", get(|| async { "ok" }))
        .layer(layer.key(key::global()));
    let ask = async || {
        let request = Request::get("/").body(Body::empty()).unwrap();
        let response = app.clone().oneshot(request).await.unwrap();
        (response.status(), response.headers().clone())
    };
    [ask().await, ask().await]
}

fn text<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name).map(|value| value.to_str().unwrap())
}

#[tokio::test]
async fn the_headers_of_a_total_have_its_numbers_and_no_times() {
    let quota = Quota::total(1, 7 * DAY);
    let headers = Headers::x_ratelimit().and(Headers::ietf(IetfDraft::Draft11));
    let layer = RateLimitLayer::new(MemoryStore::new(), quota).name("trial");
    let [admitted, refused] = answers(layer.headers(headers)).await;
    assert_eq!(admitted.0, StatusCode::OK);
    assert_eq!(refused.0, StatusCode::TOO_MANY_REQUESTS);
    for (_, headers) in [admitted, refused] {
        assert_eq!(text(&headers, "x-ratelimit-limit"), Some("1"));
        assert_eq!(text(&headers, "x-ratelimit-remaining"), Some("0"));
        assert_eq!(text(&headers, "ratelimit-policy"), Some(r#""trial";q=1"#));
        assert_eq!(text(&headers, "ratelimit"), Some(r#""trial";r=0"#));
        assert_eq!(text(&headers, "x-ratelimit-reset"), None);
        assert_eq!(text(&headers, "retry-after"), None);
    }
}

/// These drafts require a window and a reset, so a total is left out of them.
#[tokio::test]
async fn drafts_that_require_a_window_tell_only_the_rates_beside_a_total() {
    for draft in [IetfDraft::Draft03, IetfDraft::Draft06, IetfDraft::Draft07] {
        let headers = Headers::ietf(draft);
        let alone = RateLimitLayer::new(MemoryStore::new(), Quota::total(1, 7 * DAY));
        for (_, headers) in answers(alone.headers(headers.clone())).await {
            let told = headers
                .keys()
                .find(|name| name.as_str().starts_with("ratelimit"));
            assert_eq!(
                (told, text(&headers, "retry-after")),
                (None, None),
                "{draft:?}"
            );
        }
        let both = [Quota::per_minute(9), Quota::total(1, 7 * DAY)];
        let both = RateLimitLayer::new(MemoryStore::new(), both).headers(headers);
        let [(_, admitted), (status, refused)] = answers(both).await;
        assert_eq!(status, StatusCode::TOO_MANY_REQUESTS);
        assert_eq!(text(&refused, "retry-after"), None);
        for headers in [admitted, refused] {
            let policy = match draft {
                IetfDraft::Draft03 => "ratelimit-limit",
                _ => "ratelimit-policy",
            };
            let policy = text(&headers, policy).unwrap();
            assert!(policy.ends_with("9;w=60"), "{draft:?}: {policy}");
        }
    }
}

#[tokio::test]
async fn a_responder_answers_402_if_a_total_refuses() {
    let quotas = [Quota::per_minute(9), Quota::total(1, 7 * DAY)];
    let layer = RateLimitLayer::new(MemoryStore::new(), quotas).responder(|rejection| {
        let RejectionReason::Refused(decision) = rejection.reason() else {
            return None;
        };
        let mut refusing = decision.quotas().filter(|quota| !quota.is_allowed());
        let is_spent = refusing.any(|quota| quota.quota().algorithm() == Algorithm::Total);
        is_spent.then_some((StatusCode::PAYMENT_REQUIRED, "the trial is used up"))
    });
    let [_, (status, headers)] = answers(layer).await;
    assert_eq!(status, StatusCode::PAYMENT_REQUIRED);
    assert_eq!(text(&headers, "retry-after"), None);
}

#[tokio::test]
async fn problem_details_say_that_the_quota_is_used_up() {
    let layer = RateLimitLayer::new(MemoryStore::new(), Quota::total(1, 7 * DAY))
        .key(key::global())
        .responder(tollgate::problem_json());
    let app = Router::new()
        .route("/", get(|| async { "ok" }))
        .layer(layer);
    let ask = || {
        app.clone()
            .oneshot(Request::get("/").body(Body::empty()).unwrap())
    };
    assert_eq!(ask().await.unwrap().status(), StatusCode::OK);
    let refused = ask().await.unwrap();
    let body = axum::body::to_bytes(refused.into_body(), 10_000)
        .await
        .unwrap();
    let document: serde_json::Value = serde_json::from_slice(&body).unwrap();
    assert_eq!(
        document["detail"],
        "The quota is used up: waiting does not help."
    );
}
