//! Limits that a handler checks, because the key or the cost is in the body.

use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderMap, Request, Response, StatusCode};
use axum::response::IntoResponse;
use axum::{Json, Router, routing::post};
use http_body_util::BodyExt;
use serde::Deserialize;
use tollgate::store::TestStore;
use tollgate::{
    DecisionView, ErrorKind, Headers, IetfDraft, MemoryStore, Permit, PermitHandle, Quota,
    RateLimitLayer, RateLimiter, Rejection, RejectionReason, key, plain_text, problem_json,
};
use tower::ServiceExt;

use crate::told;

#[derive(Deserialize)]
struct Prompt {
    tenant: String,
    tokens: u32,
}

async fn complete(
    State(limiter): State<RateLimiter>,
    Json(prompt): Json<Prompt>,
) -> Result<(HeaderMap, String), Rejection> {
    let checked = limiter.check_n(prompt.tenant, prompt.tokens).await?;
    let decision = checked.or_reject()?;
    let mut headers = HeaderMap::new();
    Headers::default().write(decision.view(), &mut headers);
    Ok((headers, prompt.tokens.to_string()))
}

async fn send(limiter: &RateLimiter, tokens: u32) -> Response<Body> {
    let app = Router::new()
        .route("/", post(complete))
        .with_state(limiter.clone());
    let body = format!(r#"{{"tenant": "acme", "tokens": {tokens}}}"#);
    let request = Request::post("/").header("content-type", "application/json");
    let request = request.body(Body::from(body)).expect("a request");
    app.oneshot(request).await.expect("nothing fails")
}

async fn text(response: Response<Body>) -> String {
    let body = response.into_body().collect().await.expect("a body");
    String::from_utf8(body.to_bytes().to_vec()).expect("text")
}

#[tokio::test]
async fn a_handler_that_checks_by_its_body_answers_like_a_layer() {
    let store = TestStore::new();
    let limiter = RateLimiter::new(store.clone(), Quota::per_minute(100)).name("tokens");
    let admitted = send(&limiter, 70).await;
    assert_eq!(admitted.status(), StatusCode::OK);
    assert_eq!(told(&admitted, "x-ratelimit-limit"), "100");
    assert_eq!(told(&admitted, "x-ratelimit-remaining"), "30");
    assert_eq!(text(admitted).await, "70");

    let refused = send(&limiter, 31).await;
    assert_eq!(refused.status(), StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(told(&refused, "retry-after"), "60");
    assert_eq!(told(&refused, "cache-control"), "no-store");
    assert_eq!(told(&refused, "x-ratelimit-remaining"), "0");
    let rejection = refused
        .extensions()
        .get::<Rejection>()
        .expect("a rejection");
    assert_eq!(rejection.limiter(), "tokens");
    assert!(matches!(rejection.reason(), RejectionReason::Refused(_)));
    assert_eq!(text(refused).await, "rate limit exceeded\n");

    // No wait helps.
    let above = send(&limiter, 101).await;
    assert_eq!(above.status(), StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(told(&above, "retry-after"), "-");
    assert_eq!(
        text(above).await,
        "the request costs more than its quota ever admits\n"
    );

    store.fail_all(ErrorKind::Unavailable);
    let failed = send(&limiter, 1).await;
    assert_eq!(failed.status(), StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(told(&failed, "retry-after"), "1");
    assert_eq!(told(&failed, "x-ratelimit-limit"), "-");
}

#[tokio::test]
async fn the_headers_and_the_body_of_a_rejection_can_be_chosen() {
    let limiter = RateLimiter::new(
        MemoryStore::new(),
        [Quota::per_minute(1).with_name("burst"), Quota::per_day(9)],
    )
    .name("search");
    let admitted = limiter.check("acme").await.expect("a decision");
    let draft = Headers::ietf(IetfDraft::Draft11);
    let mut headers = HeaderMap::new();
    draft.write(admitted.view(), &mut headers);
    assert_eq!(
        headers["ratelimit-policy"],
        "\"burst\";q=1;w=60, \"search-1d\";q=9;w=86400"
    );
    assert!(admitted.or_reject().is_ok());

    let refused = limiter.check("acme").await.expect("a decision");
    let rejection = refused.or_reject().expect_err("a refusal");
    let response = rejection.response(&draft, problem_json());
    assert_eq!(told(&response, "content-type"), "application/problem+json");
    assert_eq!(told(&response, "ratelimit"), "\"burst\";r=0;t=60");
    let hidden = rejection.response(&Headers::none(), plain_text());
    assert_eq!(told(&hidden, "ratelimit"), "-");
    assert_eq!(told(&hidden, "x-ratelimit-limit"), "-");
    assert_eq!(told(&hidden, "retry-after"), "60");
}

#[tokio::test]
async fn a_handler_that_holds_a_slot_rejects_when_none_is_free() {
    async fn export(exports: &RateLimiter) -> Result<Permit, Rejection> {
        exports.try_acquire("acme").await?.or_reject()
    }
    let store = TestStore::new();
    let exports = RateLimiter::new(store.clone(), Quota::in_flight(1)).name("exports");
    let permit = export(&exports).await.expect("a slot");
    let rejection = export(&exports).await.expect_err("a refusal");
    assert_eq!(rejection.limiter(), "exports");
    assert_eq!(rejection.status(), StatusCode::TOO_MANY_REQUESTS);
    assert!(rejection.retry_after().is_some());
    assert!(matches!(rejection.reason(), RejectionReason::Refused(_)));
    drop(permit);
    drop(export(&exports).await.expect("a slot"));

    store.fail_all(ErrorKind::Unavailable);
    let failed = export(&exports).await.expect_err("no store");
    assert_eq!(failed.status(), StatusCode::SERVICE_UNAVAILABLE);
}

#[tokio::test]
async fn a_handler_extracts_the_decision_of_its_layer() {
    async fn left(decision: DecisionView) -> String {
        decision.remaining().to_string()
    }
    async fn perhaps(decision: Option<DecisionView>) -> String {
        format!("{:?}", decision.map(|decision| decision.remaining()))
    }
    let layer = RateLimitLayer::new(MemoryStore::new(), Quota::per_minute(10)).key(key::global());
    let limited = Router::new()
        .route("/left", post(left))
        .route("/perhaps", post(perhaps))
        .layer(layer);
    let app = Router::new()
        .nest("/limited", limited)
        .route("/left", post(left))
        .route("/perhaps", post(perhaps));
    for (path, status, body) in [
        ("/limited/left", 200, "9"),
        ("/limited/perhaps", 200, "Some(8)"),
        (
            "/left",
            500,
            "no decision: no rate limit has counted this request\n",
        ),
        ("/perhaps", 200, "None"),
    ] {
        let request = Request::post(path).body(Body::empty()).expect("a request");
        let response = app.clone().oneshot(request).await.expect("nothing fails");
        assert_eq!(response.status(), status, "{path}");
        assert_eq!(text(response.into_response()).await, body, "{path}");
    }
}

#[tokio::test]
async fn a_handler_extracts_the_handle_of_its_permit() {
    async fn taken(handle: PermitHandle) -> String {
        handle.take().is_some().to_string()
    }
    async fn perhaps(handle: Option<PermitHandle>) -> String {
        handle.is_some().to_string()
    }
    let layer = |quota| RateLimitLayer::new(MemoryStore::new(), quota).key(key::global());
    let router = || {
        Router::new()
            .route("/taken", post(taken))
            .route("/perhaps", post(perhaps))
    };
    let app = Router::new()
        .nest("/slots", router().layer(layer(Quota::in_flight(1))))
        .nest("/rate", router().layer(layer(Quota::per_minute(10))));
    for (path, status, body) in [
        ("/slots/taken", 200, "true"),
        ("/slots/perhaps", 200, "true"),
        (
            "/rate/taken",
            500,
            "no permit: no rate limit of this route holds slots for this request\n",
        ),
        ("/rate/perhaps", 200, "false"),
    ] {
        let request = Request::post(path).body(Body::empty()).expect("a request");
        let response = app.clone().oneshot(request).await.expect("nothing fails");
        assert_eq!(response.status(), status, "{path}");
        assert_eq!(text(response.into_response()).await, body, "{path}");
    }
}
