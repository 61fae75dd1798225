//! An HTTP service without a server, and stores for a layer around it.

use std::convert::Infallible;
use std::future::{Ready, ready};
use std::net::SocketAddr;
use std::sync::Arc;

use axum::body::Bytes;
use axum::http::{Request, Response};
use http_body_util::Full;
use tollgate::key::PeerAddr;
use tollgate::{MemoryStore, Store};

use super::redis_server::RedisServer;
use super::store_on;

pub(crate) fn request<B>(body: B) -> Request<B> {
    let mut request = Request::new(body);
    let peer = PeerAddr(SocketAddr::from(([192, 0, 2, 1], 5_000)));
    request.extensions_mut().insert(peer);
    request
}

pub(crate) fn ok<B>(_: Request<B>) -> Ready<Result<Response<Full<Bytes>>, Infallible>> {
    ready(Ok(Response::new(Full::from("ok"))))
}

/// Whatever the store: at once in memory, later in Redis.
pub(crate) fn stores(server: &RedisServer) -> [Arc<dyn Store>; 2] {
    [Arc::new(MemoryStore::new()), Arc::new(store_on(server))]
}
