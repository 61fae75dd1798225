//! `tower-rate-limiter`: GCRA or a fixed window on Redis, a fixed window in memory.

use axum::Router;
use axum::http::Request;
use tower_rate_limiter::{
    FixedWindow, GcraQuota, KeyExtractor, MemoryStore, RateLimitError, RateLimitLayer, RedisGcra,
    RedisStore,
};

use crate::support::textbook::connect;
use crate::workload::Workload;

#[derive(Clone, Copy)]
struct OfHeader;

impl KeyExtractor for OfHeader {
    type Key = String;

    fn extract<T>(&self, request: &Request<T>) -> Result<String, RateLimitError> {
        Ok(super::key(request.headers()).to_owned())
    }
}

pub(super) async fn layer(router: Router, name: &str, workload: &Workload, redis: &str) -> Router {
    let (limit, window) = (workload.limit, workload.window);
    let builder = RateLimitLayer::builder(OfHeader).policy_name("bench");
    match name {
        "tower-rate-limiter-gcra" => {
            let quota = GcraQuota::new(limit, window, limit).expect("a quota");
            let policy = RedisGcra::new(connect(redis).await, quota);
            router.layer(builder.with_policy(policy).build().expect("a policy"))
        }
        "tower-rate-limiter-fixed" => {
            let store = RedisStore::new(connect(redis).await);
            let policy = FixedWindow::new(store, limit.into(), window).expect("a policy");
            router.layer(builder.with_policy(policy).build().expect("a policy"))
        }
        _ => {
            let store = MemoryStore::new();
            let policy = FixedWindow::new(store, limit.into(), window).expect("a policy");
            router.layer(builder.with_policy(policy).build().expect("a policy"))
        }
    }
}
