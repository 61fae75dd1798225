//! Responses to rejected requests, and what handlers see.

use axum::body::{Body, Bytes};
use axum::response::{Html, IntoResponse};
use axum::routing::get as route;
use axum::{Extension, Json, Router};
use http::{HeaderMap, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use serde::Serialize;
use tollgate::{
    DecisionView, MemoryStore, Quota, RateLimitLayer, Rejection, RejectionReason, Reservation,
    WouldReject, key, problem_json, problem_json_typed,
};
use tower::ServiceExt;

use super::{get, status};

fn layer() -> RateLimitLayer {
    RateLimitLayer::new(MemoryStore::new(), Quota::per_minute(0)).key(key::global())
}

/// Returns the answer to a rejected request.
async fn rejected(layer: RateLimitLayer) -> (StatusCode, HeaderMap, Bytes) {
    let app = Router::new()
        .route("/", route(|| async { "ok" }))
        .layer(layer);
    let response = app.oneshot(get("/")).await.unwrap();
    let (head, body) = response.into_parts();
    let body = body.collect().await.unwrap().to_bytes();
    (head.status, head.headers, body)
}

#[derive(Serialize)]
struct Problem {
    code: &'static str,
    retry_in: Option<u64>,
}

#[tokio::test]
async fn a_status_and_json() {
    let layer = layer().responder(|rejection| {
        let retry_in = rejection.retry_after().map(|wait| wait.as_secs());
        let code = match rejection.reason() {
            RejectionReason::Refused(_) => "rate_limited",
            _ => "rejected",
        };
        (rejection.status(), Json(Problem { code, retry_in }))
    });
    let (status, headers, body) = rejected(layer).await;
    assert_eq!(status, StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(headers["content-type"], "application/json");
    assert_eq!(headers["cache-control"], "no-store");
    assert_eq!(body, r#"{"code":"rate_limited","retry_in":null}"#);
}

#[tokio::test]
async fn a_status_and_text() {
    let text = layer().responder(|rejection| (rejection.status(), "slow down"));
    assert_eq!(rejected(text).await.2, "slow down");
    let string = layer().responder(|rejection| {
        (
            rejection.status(),
            format!("{} is exhausted", rejection.limiter()),
        )
    });
    assert_eq!(rejected(string.name("api")).await.2, "api is exhausted");
}

#[tokio::test]
async fn only_a_body() {
    let text = layer().responder(|_| "slow down");
    let json = layer().responder(|_| Json("slow down"));
    let http = layer().responder(|_| Response::new("slow down"));
    for layer in [text, json, http] {
        assert_eq!(rejected(layer).await.0, StatusCode::TOO_MANY_REQUESTS);
    }
}

#[tokio::test]
async fn a_status_headers_and_a_page() {
    let layer = layer().responder(|rejection| {
        let headers = [("x-reason", "limit")];
        (rejection.status(), headers, Html("<h1>Slow down</h1>"))
    });
    let (status, headers, body) = rejected(layer).await;
    assert_eq!(status, StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(headers["x-reason"], "limit");
    assert_eq!(body, "<h1>Slow down</h1>");
}

#[tokio::test]
async fn only_a_status() {
    let layer = layer().responder(|_| StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(rejected(layer).await.0, StatusCode::SERVICE_UNAVAILABLE);
}

#[tokio::test]
async fn an_error_type_of_the_application() {
    enum ApiError {
        TooManyRequests,
        Internal,
    }

    impl IntoResponse for ApiError {
        fn into_response(self) -> axum::response::Response {
            match self {
                Self::TooManyRequests => {
                    (StatusCode::TOO_MANY_REQUESTS, "too many").into_response()
                }
                Self::Internal => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
            }
        }
    }

    let layer = layer().responder(|rejection| match rejection.reason() {
        RejectionReason::Refused(_) => ApiError::TooManyRequests,
        _ => ApiError::Internal,
    });
    assert_eq!(rejected(layer).await.2, "too many");
}

#[tokio::test]
async fn only_refusals() {
    let json = layer().responder(|rejection| match rejection.reason() {
        RejectionReason::Refused(_) => Some(Json("slow down")),
        _ => None,
    });
    let text = layer().responder(|rejection| {
        let RejectionReason::Refused(_) = rejection.reason() else {
            return None;
        };
        Some(Response::new("slow down"))
    });
    for layer in [json, text] {
        assert_eq!(rejected(layer.clone()).await.0, 429);
        let keyless = layer.key(key::header("x-api-key"));
        let (status, _, body) = rejected(keyless).await;
        assert_eq!(status, StatusCode::BAD_REQUEST);
        assert!(body.starts_with(b"cannot identify the client"));
    }
}

#[tokio::test]
async fn the_text_of_a_rejection() {
    let layer = layer().responder(|rejection| format!("{}: {rejection}", rejection.limiter()));
    assert_eq!(rejected(layer).await.2, "default: rate limit exceeded");
}

#[tokio::test]
async fn a_function_that_returns_a_response_of_axum() {
    fn slow_down(rejection: &Rejection) -> axum::response::Response {
        (rejection.status(), "slow down").into_response()
    }
    let layer = layer().responder(slow_down);
    assert_eq!(rejected(layer).await.2, "slow down");
}

#[tokio::test]
async fn a_function_that_returns_impl_into_response() {
    fn slow_down(rejection: &Rejection) -> impl IntoResponse + use<> {
        (rejection.status(), "slow down")
    }
    let layer = layer().responder(slow_down);
    assert_eq!(rejected(layer).await.2, "slow down");
}

#[tokio::test]
async fn responses_of_http() {
    let text = layer().responder(|rejection| {
        let mut response = Response::new("slow down");
        *response.status_mut() = rejection.status();
        response
    });
    let string = layer().responder(|rejection| {
        let response = Response::builder().status(rejection.status());
        response.body(String::from("slow down")).unwrap()
    });
    let bytes = layer().responder(|rejection| {
        let response = Response::builder().status(rejection.status());
        response.body(Bytes::from_static(b"slow down")).unwrap()
    });
    let vec = layer().responder(|rejection| {
        let response = Response::builder().status(rejection.status());
        response.body(b"slow down".to_vec()).unwrap()
    });
    let full = layer().responder(|rejection| {
        let response = Response::builder().status(rejection.status());
        response.body(Full::<Bytes>::from("slow down")).unwrap()
    });
    let body = layer().responder(|rejection| {
        let response = Response::builder().status(rejection.status());
        response.body(Body::from("slow down")).unwrap()
    });
    for layer in [text, string, bytes, vec, full, body] {
        let (status, _, body) = rejected(layer).await;
        assert_eq!(
            (status.as_u16(), body.as_ref()),
            (429, b"slow down".as_slice())
        );
    }
}

#[tokio::test]
async fn problem_details() {
    let (_, headers, _) = rejected(layer().responder(problem_json())).await;
    assert_eq!(headers["content-type"], "application/problem+json");
    let typed = problem_json_typed(|_| "https://example.com/limits");
    let (_, _, body) = rejected(layer().responder(typed)).await;
    assert!(String::from_utf8_lossy(&body).contains("https://example.com/limits"));
}

#[tokio::test]
async fn a_handler_reads_the_decision() {
    async fn remaining(Extension(decision): Extension<DecisionView>) -> String {
        decision.remaining().to_string()
    }
    let limit = RateLimitLayer::new(MemoryStore::new(), Quota::per_minute(5)).key(key::global());
    let app = Router::new().route("/", route(remaining)).layer(limit);
    assert_eq!(status(&app, "/").await, 200);
}

#[tokio::test]
async fn a_handler_settles() {
    async fn complete(reservation: Reservation) -> &'static str {
        reservation.settle(3);
        "done"
    }
    let limit = RateLimitLayer::new(MemoryStore::new(), Quota::per_minute(50))
        .key(key::global())
        .cost(|_| 10)
        .reserve();
    let app = Router::new().route("/", route(complete)).layer(limit);
    assert_eq!(status(&app, "/").await, 200);
}

#[tokio::test]
async fn an_outer_layer_sees_rejections_and_dry_runs() {
    let app: Router = Router::new()
        .route("/", route(|| async { "ok" }))
        .layer(layer().dry_run())
        .layer(axum::middleware::map_response(
            |response: axum::response::Response| async {
                assert!(response.extensions().get::<Rejection>().is_none());
                assert!(response.extensions().get::<WouldReject>().is_some());
                response
            },
        ));
    assert_eq!(status(&app, "/").await, 200);
}
