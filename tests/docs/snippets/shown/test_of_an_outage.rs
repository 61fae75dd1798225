//! A test with a store that fails and hangs.

// page: shown
use std::time::Duration;

use axum::{Extension, Router, body::Body, http::Request, routing::get};
use tollgate::store::{Store, TestStore};
use tollgate::{DecisionView, ErrorKind, FailurePolicy, Quota, RateLimitLayer, key};
use tower::ServiceExt;

// In the service: without Redis, reads are counted in this process, and orders are rejected.
fn app(store: impl Store + Clone) -> Router {
    let reads = RateLimitLayer::new(store.clone(), Quota::per_minute(100)).key(key::global());
    let orders = RateLimitLayer::new(store, Quota::per_minute(5))
        .name("orders")
        .key(key::global())
        .on_failure(FailurePolicy::closed());
    Router::new()
        .route("/", get(source).layer(reads))
        .route("/orders", get(source).layer(orders))
}

/// Returns the source of the decision.
async fn source(Extension(decision): Extension<DecisionView>) -> String {
    format!("{:?}", decision.source())
}

#[tokio::test(start_paused = true)]
async fn reads_are_served_during_an_outage() {
    let store = TestStore::new();
    let app = app(store.clone());
    let respond = async |path: &str| {
        let request = Request::get(path).body(Body::empty()).unwrap();
        let response = app.clone().oneshot(request).await.unwrap();
        let status = response.status().as_u16();
        let body = axum::body::to_bytes(response.into_body(), 100).await;
        (status, body.unwrap())
    };

    store.fail_next(2, ErrorKind::Unavailable);
    assert_eq!(respond("/").await, (200, "Fallback".into()));
    assert_eq!(respond("/orders").await.0, 503);
    assert_eq!(respond("/orders").await, (200, "Memory".into())); // the store counts again

    // A hanging store costs each request the deadline of 100 ms, until 5 timeouts open the breaker.
    store.hang_all();
    let start = tokio::time::Instant::now();
    for _ in 0..5 {
        assert_eq!(respond("/").await, (200, "Fallback".into()));
    }
    assert!(start.elapsed() >= Duration::from_millis(500));
}
// page: end
