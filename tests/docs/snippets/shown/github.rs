//! GitHub's headers.

use axum::body::Body;
use axum::{Router, routing::get};
use tollgate::{MemoryStore, Quota, key};
use tower::ServiceExt;

// page: shown
use axum::Extension;
use axum::extract::Request;
use axum::http::{HeaderMap, HeaderValue};
use axum::middleware::{Next, from_fn};
use axum::response::Response;
use tollgate::{DecisionView, RateLimitLayer, Rejection, RejectionReason};
use tower::ServiceBuilder;

fn write(decision: &DecisionView, headers: &mut HeaderMap) {
    headers.insert("x-ratelimit-used", decision.used().into());
    let limiter = decision.levels().next().map(|level| level.limiter());
    if let Some(name) = limiter.and_then(|name| HeaderValue::from_str(name).ok()) {
        headers.insert("x-ratelimit-resource", name);
    }
}

type Decision = Extension<DecisionView>;

async fn used(Extension(decision): Decision, request: Request, next: Next) -> Response {
    let mut response = next.run(request).await;
    write(&decision, response.headers_mut());
    response
}

fn refused(rejection: &Rejection) -> Option<(HeaderMap, String)> {
    let RejectionReason::Refused(decision) = rejection.reason() else {
        return None;
    };
    let mut headers = HeaderMap::new();
    write(decision, &mut headers);
    Some((headers, format!("{rejection}\n")))
}

fn limited(router: Router, limit: RateLimitLayer) -> Router {
    let limit = limit.responder(refused);
    router.layer(ServiceBuilder::new().layer(limit).layer(from_fn(used)))
}
// page: end

#[tokio::test]
async fn each_response_has_the_used_units_and_the_name_of_the_limit() {
    let limit = RateLimitLayer::new(MemoryStore::new(), Quota::per_hour(2)).name("search");
    let router = Router::new().route("/", get(|| async { "found" }));
    let app = limited(router, limit.key(key::global()));
    for (status, used) in [(200, "1"), (200, "2"), (429, "2")] {
        let request = Request::get("/").body(Body::empty()).expect("a request");
        let response = app.clone().oneshot(request).await.expect("a response");
        assert_eq!(response.status(), status);
        assert_eq!(response.headers()["x-ratelimit-used"], used);
        assert_eq!(response.headers()["x-ratelimit-resource"], "search");
    }
}
