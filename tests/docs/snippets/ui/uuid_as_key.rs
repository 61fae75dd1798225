//~ `Uuid` is not a key
//~ expected a key: text, bytes, a number, an address, or a pair of these
//~ for a UUID, or another type that implements `Display`, write `Key::from_display(value)`

use tollgate::{MemoryStore, Quota, RateLimiter};
use uuid::Uuid;

fn main() {
    let limiter = RateLimiter::new(MemoryStore::new(), Quota::per_minute(100));
    let _ = limiter.check(Uuid::from_u128(7));
}
