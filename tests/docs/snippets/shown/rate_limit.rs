//! A route by which customers see their own limits.

use axum::body::Body;
use axum::http::Request;
use axum::{Router, routing::get};
use tollgate::{MemoryStore, Quota};
use tower::ServiceExt;

// page: shown
use axum::{Extension, Json, extract::State};
use tollgate::{Key, KeyStatus, RateLimiter, Rejection};

// The key of the customer comes from your authentication.
async fn rate_limit(
    State([tokens, budget]): State<[RateLimiter; 2]>,
    Extension(key): Extension<Key>,
) -> Result<Json<KeyStatus>, Rejection> {
    let levels = [tokens.level(&key), budget.level(&key)];
    Ok(Json(RateLimiter::peek_all(levels).await?))
}
// page: end

#[tokio::test]
async fn a_customer_sees_both_limits() {
    let store = MemoryStore::new();
    let limits = ["tokens", "budget"]
        .map(|name| RateLimiter::new(store.clone(), Quota::per_day(1)).name(name));
    let app = Router::new().route("/rate_limit", get(rate_limit));
    let app = app.with_state(limits).layer(Extension(Key::from("ada")));
    let request = Request::get("/rate_limit").body(Body::empty());
    let response = app.oneshot(request.expect("a request")).await;
    let body = response.expect("a response").into_body();
    let body = axum::body::to_bytes(body, 10_000).await.expect("a body");
    let text = std::str::from_utf8(&body).expect("text");
    assert!(text.contains("tokens") && text.contains("budget"), "{text}");
}
