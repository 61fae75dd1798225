//~ `u32` is not a plan
//~ the future of `quotas_for` returns this
//~ return a `Quota`, a list of them, `Quotas` or a `Plan`, an `Option` of these, or a `Result`
//~ for text from a database, write `text.parse::<Plan>()`; for a reference, clone the value

use tollgate::{MemoryStore, Quota, RateLimitLayer};

fn main() {
    let layer = RateLimitLayer::new(MemoryStore::new(), Quota::per_minute(100));
    let _ = layer.quotas_for(|_key, _parts| async { 600_u32 });
}
