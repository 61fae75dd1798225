//~ `&str` is not a quota or a list of quotas
//~ expected quotas, such as `Quota::per_minute(100)`
//~ for text like "100/minute", write `RateLimitLayer::try_new(store, "100/minute")?`, `RateLimiter::try_new(store, "100/minute")?`, or `text.parse::<Quotas>()?`

use tollgate::{MemoryStore, RateLimitLayer};

fn main() {
    let _ = RateLimitLayer::new(MemoryStore::new(), "100/minute");
}
