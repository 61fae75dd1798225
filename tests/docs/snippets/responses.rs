//! Responses to rejected requests.

use axum::Router;
use axum::body::Bytes;
use axum::response::{Html, IntoResponse, Response};
use axum::routing::get as route;
use http::StatusCode;
use http_body_util::{BodyExt, Full};
use tollgate::{MemoryStore, Quota, RateLimitLayer, Rejection, RejectionReason};
use tower::ServiceExt;

use super::get;

fn layer() -> RateLimitLayer {
    RateLimitLayer::new(MemoryStore::new(), Quota::per_minute(0))
}

/// The error type of an application.
enum ApiError {
    TooManyRequests,
    Internal,
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        match self {
            Self::TooManyRequests => (StatusCode::TOO_MANY_REQUESTS, "slow down").into_response(),
            Self::Internal => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
        }
    }
}

#[tokio::test]
async fn a_responder_returns_what_a_handler_may_return() {
    fn response(rejection: &Rejection) -> Response {
        (rejection.status(), "slow down").into_response()
    }
    fn into_response(rejection: &Rejection) -> impl IntoResponse + use<> {
        (rejection.status(), "slow down")
    }
    for layer in [
        layer().responder(response),
        layer().responder(into_response),
        layer().responder(|rejection| {
            let headers = [("x-reason", "limit")];
            (rejection.status(), headers, Html("slow down"))
        }),
        layer().responder(|rejection| match rejection.reason() {
            RejectionReason::Refused(_) => ApiError::TooManyRequests,
            _ => ApiError::Internal,
        }),
        layer().responder(|rejection| {
            let response = http::Response::builder().status(rejection.status());
            response.body(b"slow down".to_vec()).expect("a response")
        }),
        layer().responder(|_| http::Response::new(Full::<Bytes>::from("slow down"))),
    ] {
        let app = Router::new().route("/", route("ok")).layer(layer);
        let response = app.oneshot(get("/")).await.expect("a response");
        assert_eq!(response.status(), StatusCode::TOO_MANY_REQUESTS);
        let body = response.into_body().collect().await.expect("a body");
        assert_eq!(body.to_bytes(), "slow down");
    }
}
