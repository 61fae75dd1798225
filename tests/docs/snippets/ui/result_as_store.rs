use tollgate::{Quota, RateLimitLayer, RedisStore};

fn main() {
    let store = RedisStore::open("redis://127.0.0.1:6379");
    let _ = RateLimitLayer::new(store, Quota::per_minute(100));
}
