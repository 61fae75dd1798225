use http::request::Parts;
use tollgate::{Key, MemoryStore, Quota, RateLimitLayer};

fn main() {
    let layer = RateLimitLayer::new(MemoryStore::new(), Quota::per_minute(100));
    let _ = layer.key(|parts: &Parts| Some(Key::from(parts.uri.path())));
}
