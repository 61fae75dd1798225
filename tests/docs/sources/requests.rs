//! Requests through a layer, to verify the responses that the pages show.

use std::convert::Infallible;
use std::net::{Ipv6Addr, SocketAddr};
use std::time::Duration;

use http::{Request, Response, StatusCode};
use tollgate::key::PeerAddr;
use tollgate::store::TestStore;
use tollgate::{Quota, RateLimitLayer, ResponseBody};
use tower::{Layer, ServiceExt, service_fn};

use crate::markdown::Block;

pub(super) fn layer(store: TestStore) -> RateLimitLayer {
    RateLimitLayer::new(store, Quota::per_minute(9))
}

/// Returns a layer that refuses everything for 3 s.
pub(super) fn refusing() -> RateLimitLayer {
    let store = TestStore::new();
    store.refuse_all(Duration::from_secs(3));
    layer(store)
}

fn address() -> SocketAddr {
    (Ipv6Addr::new(0x2001, 0xdb8, 1, 2, 3, 4, 5, 6), 4711).into()
}

/// Sends a request from [`address`].
pub(super) fn send(layer: &RateLimitLayer) -> Response<ResponseBody<String>> {
    let request = Request::post("/").extension(PeerAddr(address()));
    let request = request.header("content-type", "application/grpc").body(());
    let handler = service_fn(async |_: Request<()>| Ok(Response::new(String::new())));
    let response = super::block_on(layer.layer(handler).oneshot(request.expect("a request")));
    response.unwrap_or_else(|never: Infallible| match never {})
}

/// Compares each `name: value` of the block with a refused call.
pub(super) fn grpc_rejection(block: &Block) -> Result<(), String> {
    let refused = send(&refusing().grpc());
    if refused.status() != StatusCode::OK || block.text.lines().count() != 4 {
        return Err("a refused call has status 200 and four headers".to_owned());
    }
    for line in block.text.lines() {
        let (name, rest) = line.split_once(": ").ok_or("a line is not a header")?;
        let sent = refused.headers().get(name).ok_or(name)?;
        // An explanation is two spaces away.
        let written = rest.split("  ").next().unwrap_or_default();
        if written != "…" && sent != written {
            return Err(format!("{name} is {sent:?}, not {written}"));
        }
    }
    Ok(())
}
