//! What a client is answered that is refused, by what it speaks: over HTTP, as it arrives.

use axum::body::Bytes;
use axum::http::{HeaderMap, StatusCode};
use axum::{Router, routing::get};
use tollgate::{MemoryStore, Quota, RateLimitLayer, key, problem_json};

/// One request is admitted; of the next, the first quota has no room and the second has.
fn layer() -> RateLimitLayer {
    let quotas = [
        Quota::per_minute(1).named("burst"),
        Quota::per_day(1_000).named("daily"),
    ];
    RateLimitLayer::new(MemoryStore::new(), quotas).key(key::global())
}

/// Asks twice, and returns what the second request is answered.
async fn refused(layer: RateLimitLayer, content_type: &str) -> (StatusCode, HeaderMap, Bytes) {
    let app: Router = Router::new()
        .route("/", get(|| async { "ok" }))
        .layer(layer);
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move { axum::serve(listener, app).await });
    let ask = async || {
        let request = reqwest::Client::new().get(&url);
        let request = request.header("content-type", content_type);
        request.send().await.unwrap()
    };
    assert_eq!(ask().await.text().await.unwrap(), "ok");
    let response = ask().await;
    let (status, headers) = (response.status(), response.headers().clone());
    (status, headers, response.bytes().await.unwrap())
}

fn seconds(headers: &HeaderMap) -> u32 {
    headers["retry-after"].to_str().unwrap().parse().unwrap()
}

#[tokio::test]
async fn a_client_of_http_is_told_the_quota_that_refuses_and_when_it_has_room() {
    let (status, headers, body) = refused(layer(), "application/json").await;
    assert_eq!(status, StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(body, "rate limit exceeded\n");
    assert_eq!(headers["cache-control"], "no-store");
    assert_eq!(
        headers["ratelimit-policy"],
        r#""burst";q=1;w=60, "daily";q=1000;w=86400"#
    );
    let wait = seconds(&headers);
    assert_eq!(
        headers["ratelimit"],
        format!(r#""burst";r=0;t={wait}"#).as_str()
    );
}

#[tokio::test]
async fn problem_details_are_an_answer_like_any() {
    let (status, headers, body) = refused(layer().responder(problem_json()), "text/plain").await;
    assert_eq!(status, StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(headers["content-type"], "application/problem+json");
    assert_eq!(headers["cache-control"], "no-store");
    let wait = seconds(&headers);
    assert_eq!(
        headers["ratelimit"],
        format!(r#""burst";r=0;t={wait}"#).as_str()
    );
    let document: serde_json::Value = serde_json::from_slice(&body).unwrap();
    assert_eq!(document["status"], 429);
    assert_eq!(document["violated-policies"], serde_json::json!(["burst"]));
}

#[tokio::test]
async fn the_status_of_problem_details_is_that_of_the_answer() {
    let layer = layer()
        .status(StatusCode::SERVICE_UNAVAILABLE)
        .responder(problem_json());
    let (status, _, body) = refused(layer, "text/plain").await;
    assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
    let document: serde_json::Value = serde_json::from_slice(&body).unwrap();
    assert_eq!(document["status"], 503);
}

#[tokio::test]
async fn a_call_of_grpc_is_answered_in_headers_whatever_the_responder_and_the_status() {
    let layer = layer()
        .status(StatusCode::FORBIDDEN)
        .responder(problem_json());
    let (status, headers, body) = refused(layer, "application/grpc+proto").await;
    assert_eq!(status, StatusCode::OK);
    assert_eq!(headers["content-type"], "application/grpc");
    assert_eq!(headers["grpc-status"], "8");
    let pushback = headers["grpc-retry-pushback-ms"].to_str().unwrap();
    let pushback: u32 = pushback.parse().unwrap();
    assert_eq!(pushback.div_ceil(1_000), seconds(&headers));
    assert!(body.is_empty());
}
