//~ `u16` is not a response to a rejected request
//~ the responder returns this
//~ return an `http::Response` with a text or bytes as its body or, with the feature `axum-08`, anything that implements axum's `IntoResponse`, such as `"slow down"` or `Json(..)`; or an `Option` of these

use tollgate::{MemoryStore, Quota, RateLimitLayer};

fn main() {
    let layer = RateLimitLayer::new(MemoryStore::new(), Quota::per_minute(100));
    let _ = layer.responder(|rejection| rejection.status().as_u16());
}
