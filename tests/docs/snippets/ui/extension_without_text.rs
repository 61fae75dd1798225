//~ `User` has no text that could be a key: it does not implement `Display`
//~ this type does not implement `Display`
//~ take a part of it with a closure: `key::extension_with(|value: &User| value.id)`

use tollgate::{MemoryStore, Quota, RateLimitLayer, key};

#[derive(Clone)]
struct User {
    id: u64,
}

fn main() {
    let layer = RateLimitLayer::new(MemoryStore::new(), Quota::per_minute(100));
    let _ = layer.key(key::extension::<User>());
    let _ = User { id: 7 }.id;
}
