//~ `tollgate::Quota` is not a future
//~ `tollgate::Quota` is not a future

use tollgate::{MemoryStore, Quota, RateLimitLayer};

fn main() {
    let layer = RateLimitLayer::new(MemoryStore::new(), Quota::per_minute(100));
    let _ = layer.quotas_for(|_key, _parts| Quota::per_minute(600));
}
