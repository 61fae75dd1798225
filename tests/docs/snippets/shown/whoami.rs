//! A route that shows the key of a request.

use axum::body::{Body, to_bytes};
use axum::extract::Request;
use tower::ServiceExt;

// page: shown
use std::net::SocketAddr;

use axum::extract::ConnectInfo;
use axum::http::{HeaderMap, request::Parts};
use axum::{Router, routing::get};
use tollgate::key::{self, KeyExtractor};

async fn whoami(peer: ConnectInfo<SocketAddr>, headers: HeaderMap, parts: Parts) -> String {
    let key = key::client_ip().behind(["10.0.0.0/8"]).extract(&parts);
    let key = key.map_or_else(|error| error.to_string(), |key| key.as_str().to_owned());
    let forwarded = headers.get("x-forwarded-for");
    format!(
        "peer {}, x-forwarded-for {forwarded:?}, key {key}\n",
        peer.0
    )
}

fn app() -> Router {
    Router::new().route("/whoami", get(whoami))
}
// page: end

#[tokio::test]
async fn the_key_is_the_address_that_the_proxy_appended() {
    let request = Request::get("/whoami").header("x-forwarded-for", "6.6.6.6, 192.0.2.1");
    let mut request = request.body(Body::empty()).expect("a request");
    let peer = SocketAddr::from(([10, 0, 0, 1], 80));
    request.extensions_mut().insert(ConnectInfo(peer));
    let response = app().oneshot(request).await.expect("a response");
    let body = to_bytes(response.into_body(), 1_000).await.expect("a body");
    let text = std::str::from_utf8(&body).expect("text");
    let expected =
        "peer 10.0.0.1:80, x-forwarded-for Some(\"6.6.6.6, 192.0.2.1\"), key ip=192.0.2.1\n";
    assert_eq!(text, expected);
}
