//~ type annotations needed
//~ cannot infer type of the type parameter `NewError` declared on the method `layer`

use axum::Router;
use axum::routing::get;
use tollgate::{MemoryStore, Quota, RateLimitLayer};

fn main() {
    let inner = RateLimitLayer::new(MemoryStore::new(), Quota::per_minute(100)).name("inner");
    let outer = RateLimitLayer::new(MemoryStore::new(), Quota::per_hour(1_000)).name("outer");
    let _: Router = Router::new().route("/", get("hello").layer(inner).layer(outer));
}
