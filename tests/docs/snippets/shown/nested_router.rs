//! A layer in a nested router that skips a route by its whole path.

use axum::body::Body;
use axum::http::Request;
use tower::ServiceExt;

// page: shown
use axum::extract::OriginalUri;
use axum::{Router, routing::get};
use tollgate::{MemoryStore, Quota, RateLimitLayer, key};

fn app() -> Router {
    let limit = RateLimitLayer::new(MemoryStore::new(), Quota::per_minute(100))
        .key(key::global())
        .skip(|parts| {
            let uri = parts.extensions.get::<OriginalUri>();
            uri.is_some_and(|OriginalUri(uri)| uri.path() == "/api/health")
        });
    let api = Router::new()
        .route("/health", get(|| async { "ok" }))
        .layer(limit);
    Router::new().nest("/api", api)
}
// page: end

#[tokio::test]
async fn the_route_is_skipped() {
    let request = Request::get("/api/health").body(Body::empty());
    let response = app().oneshot(request.expect("a request")).await;
    let response = response.expect("a response");
    assert_eq!(response.status(), 200);
    assert!(!response.headers().contains_key("x-ratelimit-limit"));
}
