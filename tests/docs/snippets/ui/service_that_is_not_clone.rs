use std::convert::Infallible;

use axum::body::Body;
use http::{Request, Response};
use tollgate::{MemoryStore, Quota, RateLimitLayer};
use tower::util::BoxService;
use tower::{ServiceBuilder, service_fn};

async fn answer(_: Request<Body>) -> Result<Response<Body>, Infallible> {
    Ok(Response::new(Body::empty()))
}

fn main() {
    let layer = RateLimitLayer::new(MemoryStore::new(), Quota::per_minute(100));
    let inner = BoxService::new(service_fn(answer));
    let _ = ServiceBuilder::new().layer(layer).service(inner);
}
