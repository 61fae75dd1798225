//! Requests to the routers.

use std::net::SocketAddr;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::extract::ConnectInfo;
use http::{HeaderMap, Request, StatusCode};
use tower::ServiceExt;

/// A response as the client sees it.
#[derive(Debug)]
pub(crate) struct Seen {
    pub(crate) status: StatusCode,
    headers: HeaderMap,
    pub(crate) body: String,
}

impl Seen {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let value = self.headers.get(name)?;
        Some(value.to_str().expect("text"))
    }
}

/// Returns a request to `/` from this peer.
pub(crate) fn from_peer(peer: &str) -> Request<Body> {
    let peer: SocketAddr = peer.parse().expect("an address and a port");
    let mut request = Request::new(Body::empty());
    request.extensions_mut().insert(ConnectInfo(peer));
    request
}

/// Returns a request to `/` with this API key.
pub(crate) fn with_api_key(key: &'static str) -> Request<Body> {
    let request = Request::get("/").header("x-api-key", key);
    request.body(Body::empty()).expect("a valid request")
}

pub(crate) async fn send(app: &Router, request: Request<Body>) -> Seen {
    let response = app.clone().oneshot(request).await;
    let (head, body) = response.unwrap_or_else(|never| match never {}).into_parts();
    let body = to_bytes(body, 1_024).await.expect("a short body");
    Seen {
        status: head.status,
        headers: head.headers,
        body: String::from_utf8(body.to_vec()).expect("text"),
    }
}

/// Sends requests of one peer to both, at these times after the first one, and returns which were admitted by
/// both and which by neither.
pub(crate) async fn compare(before: &Router, after: &Router, times: &[Duration]) -> Vec<bool> {
    let start = tokio::time::Instant::now();
    let mut admitted = Vec::new();
    for (index, time) in times.iter().enumerate() {
        tokio::time::sleep_until(start + *time).await;
        let before = send(before, from_peer("192.0.2.7:1000")).await.status;
        let after = send(after, from_peer("192.0.2.7:1000")).await.status;
        assert_eq!(before, after, "request {index}");
        admitted.push(before == StatusCode::OK);
    }
    admitted
}
