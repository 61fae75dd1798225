//~ `Result<RedisStore, ConfigError>` is not a store
//~ expected a store, such as `MemoryStore::new()`
//~ for a URL, write `RedisStore::open("redis://127.0.0.1:6379")?` or `tollgate::store::from_url(url)?`
//~ a `Result` needs a `?` after the call that returns it, and a reference a `.clone()`: handles of one store share their counts

use tollgate::{Quota, RateLimitLayer, RedisStore};

fn main() {
    let store = RedisStore::open("redis://127.0.0.1:6379");
    let _ = RateLimitLayer::new(store, Quota::per_minute(100));
}
