use tollgate::{MemoryStore, Quota, RateLimiter};
use uuid::Uuid;

fn main() {
    let limiter = RateLimiter::new(MemoryStore::new(), Quota::per_minute(100));
    let _ = limiter.check(Uuid::from_u128(7));
}
