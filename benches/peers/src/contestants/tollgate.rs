//! This crate as in the README: hashed keys and default headers. Only the deadline is raised.

use std::time::Duration;

use axum::Router;
use tollgate::{Algorithm, MemoryStore, Quota, RateLimitLayer, RedisStore, key};

use crate::workload::Workload;

pub(super) fn layer(router: Router, name: &str, workload: &Workload, redis: &str) -> Router {
    let quota = Quota::new(workload.limit, workload.window);
    let quota = match name.ends_with("gcra") {
        true => quota.with_algorithm(Algorithm::Gcra),
        false => quota,
    };
    let layer = if name.starts_with("tollgate-redis") {
        let store = RedisStore::open(redis).expect("a URL");
        // A slow machine is not what is measured.
        RateLimitLayer::new(store.deadline(Duration::from_secs(10)), quota)
    } else {
        RateLimitLayer::new(MemoryStore::new(), quota)
    };
    router.layer(layer.key(key::header(super::HEADER)))
}
