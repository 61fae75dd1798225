use axum::Router;
use axum::routing::get;
use tollgate::{MemoryStore, Quota, RateLimitLayer};

fn main() {
    let layer = RateLimitLayer::new(MemoryStore::new(), Quota::per_minute(100));
    let _: Router = Router::new().route("/", get(|| async {}).layer(layer.clone()).layer(layer));
}
