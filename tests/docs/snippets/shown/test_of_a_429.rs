//! A test of a refusal.

// page: shown
use std::time::Duration;

use axum::{Router, body::Body, http::Request, routing::get};
use tollgate::store::{Store, TestStore};
use tollgate::{Quota, RateLimitLayer, key};
use tower::ServiceExt;

fn app(store: impl Store) -> Router {
    let limit = RateLimitLayer::new(store, Quota::per_minute(100)).key(key::global());
    Router::new()
        .route("/", get(|| async { "ok" }))
        .layer(limit)
}

#[tokio::test]
async fn a_refused_request_gets_a_429() {
    let store = TestStore::new();
    store.refuse_next(1, Duration::from_secs(7));
    let request = Request::get("/").body(Body::empty()).unwrap();
    let response = app(store).oneshot(request).await.unwrap();
    assert_eq!(response.status(), 429);
    assert_eq!(response.headers()["retry-after"], "7");
}
// page: end
