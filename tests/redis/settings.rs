//! Settings are chosen before a store is used. A later change is an error, because handles would differ.

use std::time::Duration;

use tollgate::store::Store;
use tollgate::store::protocol::{Block, Change, Subject};
use tollgate::{ErrorKind, Key, Quota, Quotas, RateLimitLayer, RateLimiter, RedisStore, Source};

use crate::support::ask;
use crate::support::redis_server::RedisServer;
use crate::support::store_on;

fn limiter(store: &RedisStore) -> RateLimiter {
    hourly(store.clone())
}

fn hourly(store: impl Store) -> RateLimiter {
    RateLimiter::new(store, Quota::per_hour(1))
}

#[tokio::test]
async fn settings_before_the_first_use_are_those_of_the_store() {
    let server = RedisServer::start();
    let store = store_on(&server)
        .prefix("shop")
        .refusal_cache(Duration::ZERO);
    assert!(limiter(&store).check("ada").await.unwrap().is_allowed());
    for _ in 0..2 {
        let refused = limiter(&store).check("ada").await.unwrap();
        assert_eq!(refused.source(), Source::Redis);
    }
    let keys: Vec<String> = redis::cmd("KEYS")
        .arg("*")
        .query(&mut server.connect())
        .unwrap();
    assert!(keys.iter().all(|key| key.starts_with("shop:")), "{keys:?}");
}

#[tokio::test]
async fn a_url_sets_the_prefix_and_what_it_opens_can_be_pinged() {
    let server = RedisServer::start();
    let store = tollgate::store::from_url(&format!("{}?prefix=shop", server.url())).unwrap();
    store.ping().await.unwrap();
    let decision = hourly(store).check("ada").await.unwrap();
    assert_eq!(decision.source(), Source::Redis);
    let keys: Vec<String> = redis::cmd("KEYS")
        .arg("shop:v3:{default,ada}:log")
        .query(&mut server.connect())
        .unwrap();
    assert_eq!(keys.len(), 1);
    let memory = tollgate::store::from_url("memory:?max_keys=5").unwrap();
    memory.ping().await.unwrap();
    let decision = hourly(memory).check("ada").await.unwrap();
    assert_eq!(decision.source(), Source::Memory);
}

#[tokio::test]
async fn a_setting_of_a_store_in_use_fails_loudly_and_leaves_the_store_as_it_was() {
    let server = RedisServer::start();
    let store = store_on(&server);
    let layer = RateLimitLayer::new(store.clone(), Quota::per_hour(9));
    let changed = store.clone().prefix("shop");
    let (limiter_of_changed, key) = (limiter(&changed), Key::from("ada"));
    let quotas = Quotas::from(Quota::per_hour(1));
    let errors = [
        limiter_of_changed.check("ada").await.unwrap_err(),
        changed.ping().await.unwrap_err(),
        ask(&changed, &[]).await.unwrap_err(),
        changed
            .adjust(Subject::new(&key, &key, &quotas).adjust(Change::Reset))
            .await
            .unwrap_err(),
        changed
            .adjust(Subject::new(&key, &key, &quotas).adjust(Change::Credit { units: 1 }))
            .await
            .unwrap_err(),
        changed
            .block(Block::new(&key, &key, Duration::from_secs(1)))
            .await
            .unwrap_err(),
    ];
    for error in errors {
        assert_eq!(error.kind(), ErrorKind::Misconfigured);
        assert_eq!(error.code(), "tollgate::E125");
        let text = error.to_string();
        for part in ["RedisStore::prefix", "RedisStore::open", "store.fork()"] {
            assert!(text.contains(part), "{text}");
        }
    }
    assert!(limiter(&store).check("ada").await.unwrap().is_allowed());
    drop(layer);
}

#[tokio::test]
async fn a_fork_counts_in_the_same_keys_and_has_its_own_settings_and_refusal_cache() {
    let server = RedisServer::start();
    let store = store_on(&server);
    let fork = store.fork().refusal_cache(Duration::ZERO);
    assert_ne!(store.id(), fork.id());
    assert_eq!(store.id(), store.clone().id());
    assert!(limiter(&store).check("ada").await.unwrap().is_allowed());
    assert!(!limiter(&store).check("ada").await.unwrap().is_allowed());
    let [remembered, asked] = [&store, &fork].map(limiter);
    let remembered = remembered.check("ada").await.unwrap();
    assert_eq!(remembered.source(), Source::RefusalCache);
    let asked = asked.check("ada").await.unwrap();
    assert_eq!((asked.source(), asked.is_allowed()), (Source::Redis, false));
}
