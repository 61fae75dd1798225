//~ is not a key extractor
//~ expected a key extractor, such as `key::header("x-api-key")`
//~ for a closure, write `key::from_fn(|parts| ..)`, which returns text, a number or a `Key`
//~ for a header, write `key::header("x-api-key")`; for one key of all requests, `key::global()`; for a request extension, `key::extension::<T>()`
//~ the module `tollgate::key` lists all extractors

use http::request::Parts;
use tollgate::{Key, MemoryStore, Quota, RateLimitLayer};

fn main() {
    let layer = RateLimitLayer::new(MemoryStore::new(), Quota::per_minute(100));
    let _ = layer.key(|parts: &Parts| Some(Key::from(parts.uri.path())));
}
