//~ expected a `Fn(&http::request::Parts)` closure, found `{integer}`
//~ expected an `Fn(&http::request::Parts)` closure, found `{integer}`

use tollgate::{MemoryStore, Quota, RateLimitLayer};

fn main() {
    let layer = RateLimitLayer::new(MemoryStore::new(), Quota::per_minute(100));
    let _ = layer.cost(10);
}
