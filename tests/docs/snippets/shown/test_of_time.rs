//! A test with a clock that it moves.

// page: shown
use std::time::Duration;

use axum::{Router, body::Body, http::Request, routing::get};
use tollgate::store::{Store, TestClock};
use tollgate::{MemoryStore, Quota, RateLimitLayer, key};
use tower::ServiceExt;

// In the service:
fn app(store: impl Store) -> Router {
    let limit = RateLimitLayer::new(store, Quota::per_minute(2)).key(key::header("x-api-key"));
    Router::new()
        .route("/", get(|| async { "ok" }))
        .layer(limit)
}

// In its tests:
async fn status(app: &Router, api_key: &str) -> u16 {
    let request = Request::get("/").header("x-api-key", api_key);
    let request = request.body(Body::empty()).unwrap();
    let response = app.clone().oneshot(request).await.unwrap();
    response.status().as_u16()
}

#[tokio::test]
async fn two_requests_a_minute_are_admitted() {
    let clock = TestClock::new();
    let app = app(MemoryStore::with_clock(clock.clone()));
    assert_eq!(status(&app, "ada").await, 200);
    clock.advance(Duration::from_secs(20));
    assert_eq!(status(&app, "ada").await, 200);
    assert_eq!(status(&app, "ada").await, 429);
    assert_eq!(status(&app, "bob").await, 200); // another key

    // After 60 seconds the first unit is back, and the second is not.
    clock.advance(Duration::from_secs(40));
    assert_eq!(status(&app, "ada").await, 200);
    assert_eq!(status(&app, "ada").await, 429);
}
// page: end
