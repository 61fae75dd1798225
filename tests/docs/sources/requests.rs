//! Requests through a layer, to verify the responses that the pages show.

use std::convert::Infallible;
use std::net::{Ipv6Addr, SocketAddr};
use std::time::Duration;

use http::header::CONTENT_TYPE;
use http::{HeaderValue, Method, Request, Response, StatusCode};
use tollgate::key::PeerAddr;
use tollgate::store::{Checked, TestStore};
use tollgate::{DecisionView, ErrorKind, Quota, RateLimitLayer, ResponseBody, key};
use tower::{Layer, ServiceExt, service_fn};

use crate::markdown::Block;

pub(super) fn layer(store: TestStore) -> RateLimitLayer {
    RateLimitLayer::new(store, Quota::per_minute(9))
}

/// Returns a layer that refuses everything.
pub(super) fn refusing() -> RateLimitLayer {
    let store = TestStore::new();
    store.refuse_all(Duration::from_millis(1_001));
    layer(store)
}

/// Returns a layer whose store fails.
pub(super) fn failing() -> RateLimitLayer {
    let store = TestStore::new();
    store.fail_all(ErrorKind::Unavailable);
    layer(store)
}

pub(super) fn address() -> SocketAddr {
    (Ipv6Addr::new(0x2001, 0xdb8, 1, 2, 3, 4, 5, 6), 4711).into()
}

/// Returns a request from [`address`].
pub(super) fn request() -> Request<()> {
    let mut request = Request::new(());
    request.extensions_mut().insert(PeerAddr(address()));
    request
}

pub(super) fn send(layer: &RateLimitLayer) -> Response<ResponseBody<String>> {
    send_request(layer, request())
}

/// Sends the request to a handler behind the layer. The response carries the handler's decision.
pub(super) fn send_request(
    layer: &RateLimitLayer,
    request: Request<()>,
) -> Response<ResponseBody<String>> {
    let handler = service_fn(|request: Request<()>| async move {
        let mut response = Response::new(String::new());
        if let Some(decision) = request.extensions().get::<DecisionView>() {
            response.extensions_mut().insert(decision.clone());
        }
        Ok::<_, Infallible>(response)
    });
    let response = super::block_on(layer.layer(handler).oneshot(request));
    response.unwrap_or_else(|never| match never {})
}

/// Returns the check that a request leads to.
pub(super) fn checked() -> Checked {
    let store = TestStore::new();
    send(&layer(store.clone()));
    store.take_checks().pop().expect("a check")
}

/// Returns the status for a request without the header that is its key.
pub(super) fn without_key() -> StatusCode {
    send(&layer(TestStore::new()).key(key::header("x-api-key"))).status()
}

/// Returns the status for a request whose peer address is unknown.
pub(super) fn without_address() -> StatusCode {
    send_request(&layer(TestStore::new()), Request::new(())).status()
}

pub(super) fn grpc_request() -> Request<()> {
    let mut request = request();
    *request.method_mut() = Method::POST;
    let grpc = HeaderValue::from_static("application/grpc");
    request.headers_mut().insert(CONTENT_TYPE, grpc);
    request
}

/// Compares each `name: value` of the block with a refused call.
pub(super) fn grpc_rejection(block: &Block) -> Result<(), String> {
    let store = TestStore::new();
    store.refuse_all(Duration::from_secs(3));
    let refused = send_request(&layer(store).grpc(), grpc_request());
    if refused.status() != StatusCode::OK || block.text.lines().count() != 4 {
        return Err("a refused call has status 200 and four headers".to_owned());
    }
    for line in block.text.lines() {
        let (name, rest) = line.split_once(": ").ok_or("a line is not a header")?;
        let written = rest.split("  ").next().unwrap_or_default().trim();
        let sent = refused.headers().get(name);
        let sent = sent
            .and_then(|value| value.to_str().ok())
            .unwrap_or("nothing");
        if sent != written && (written != "…" || sent == "nothing") {
            return Err(format!("{name} is {sent}, not {written}"));
        }
    }
    Ok(())
}
