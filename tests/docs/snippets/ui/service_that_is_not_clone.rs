//~ `BoxService<http::Request<Body>, Response<Body>, Infallible>` is not `Clone`, so a rate limit cannot wrap it
//~ the inner service of a rate limit has to implement `Clone`
//~ derive `Clone`, or replace `BoxService` by `BoxCloneService` (`.boxed()` by `.boxed_clone()`)
//~ a service that cannot be cloned can be shared by `tower::buffer::Buffer` inside of the rate limit

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
