use axum::Router;
use tollgate::{MemoryStore, Quota, RateLimitLayer};
use tower::util::option_layer;

fn main() {
    let layer = RateLimitLayer::new(MemoryStore::new(), Quota::per_minute(100));
    let _: Router = Router::new().layer(option_layer(Some(layer)));
}
