//~ type annotations needed
//~ ----- type must be known at this point

use tollgate::{MemoryStore, Quota, RateLimitLayer};

fn main() {
    let layer = RateLimitLayer::new(MemoryStore::new(), Quota::per_minute(100));
    let _ = layer.key(|parts| parts.uri.path().to_owned());
}
