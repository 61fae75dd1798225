use tollgate::{Quota, RateLimitLayer};

fn main() {
    let _ = RateLimitLayer::new("redis://127.0.0.1:6379", Quota::per_minute(100));
}
