//! An HTTP service without a server, and stores for a layer around it.

use std::convert::Infallible;
use std::future::{Ready, ready};
use std::net::SocketAddr;
use std::sync::Arc;

use axum::body::Bytes;
use axum::http::{Request, Response};
use http_body_util::Full;
use tollgate::key::{self, PeerAddr};
use tollgate::{Key, KeyExtractor, MemoryStore, RateLimitLayer, Store};
use tower::{Layer, ServiceExt, service_fn};

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

/// Each path is a key: `/ada`.
pub(crate) fn by_path() -> impl KeyExtractor {
    key::from_fn(|parts| Some(Key::from(parts.uri.path())))
}

/// A request to a path.
pub(crate) fn to(path: &str) -> Request<()> {
    let mut request = request(());
    *request.uri_mut() = path.parse().expect("a path");
    request
}

/// What a request to a path is answered, where the service behind says ok.
pub(crate) async fn ask(layer: &RateLimitLayer, path: &str) -> Response<()> {
    let service = layer.layer(service_fn(ok::<()>));
    let response = service.oneshot(to(path)).await.expect("nothing fails");
    response.map(drop)
}

pub(crate) async fn status(layer: &RateLimitLayer, path: &str) -> u16 {
    ask(layer, path).await.status().as_u16()
}

/// A header as text; `-` where there is none.
pub(crate) fn told<'a, B>(response: &'a Response<B>, name: &str) -> &'a str {
    let value = response.headers().get(name);
    value.map_or("-", |value| value.to_str().expect("text"))
}
