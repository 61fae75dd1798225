//! Settings of layers, limiters and stores.

use std::future::ready;
use std::sync::Arc;

use tollgate::{
    MemoryStore, MissingKey, Plan, Quota, RateLimit, RateLimitLayer, RateLimiter, RedisStore, key,
};
use tower::Layer;

#[tokio::test]
async fn a_name_is_text_in_any_form() {
    let (name, store) = (String::from("acme"), MemoryStore::new().name("local"));
    let quota = Quota::per_minute(100).with_name(&name);
    assert_eq!(quota, Quota::per_minute(100).with_name(name.clone()));

    let limiter = RateLimiter::new(store.name(&name), quota).name(&name);
    let _layer = RateLimitLayer::from(limiter.clone()).name(&name);
    let _layer = RateLimitLayer::from(limiter.clone()).name(Arc::<str>::from("acme"));
    let _layer = RateLimitLayer::from(limiter).name(format!("{name}-search"));

    let redis = RedisStore::open("redis://127.0.0.1:6379").expect("a URL");
    let _redis = redis.prefix(&name).name(&name);
}

#[test]
fn a_plan_that_is_known_at_once_is_ready() {
    let layer = RateLimitLayer::new(MemoryStore::new(), Quota::per_minute(100))
        .key(key::header("x-api-key"))
        .on_missing_key(MissingKey::Reject);
    let _quota = layer.clone().quotas_for(|_, _| ready(Quota::per_hour(5)));
    let _exempt = layer.quotas_for(|_key, _parts| ready(Plan::Exempt));
}

#[test]
fn a_service_is_a_field_of_a_struct() {
    struct Server<S> {
        service: RateLimit<S>,
    }
    let layer = RateLimitLayer::new(MemoryStore::new(), Quota::per_minute(100));
    let server = Server {
        service: layer.layer("any service"),
    };
    assert_eq!(*server.service.get_ref(), "any service");
}
