use tollgate::{MemoryStore, RateLimitLayer};

fn main() {
    let _ = RateLimitLayer::new(MemoryStore::new(), "100/minute");
}
