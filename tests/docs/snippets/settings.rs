//! Stores.

use std::num::{NonZeroU16, NonZeroUsize};
use std::sync::Arc;
use std::time::Duration;

use tollgate::store::HashTags;
use tollgate::store::{TestClock, TestStore};
use tollgate::{
    ErrorKind, MemoryStore, Quota, RateLimitLayer, RateLimiter, RedisStore, Store, store,
};

use super::Done;

#[tokio::test]
async fn redis_by_its_url() -> Done {
    let store = RedisStore::open("redis://127.0.0.1:6379")?.prefix("shop");
    let _layer = RateLimitLayer::new(store.clone(), Quota::per_minute(100)).name("site");
    let _limiter = RateLimiter::new(store, Quota::per_day(9_500));
    Ok(())
}

#[tokio::test]
async fn redis_of_a_string() -> Done {
    let url = String::from("redis://127.0.0.1:6379");
    let app = String::from("shop");
    let _store = RedisStore::open(&url)?.prefix(&app).name(&app);
    Ok(())
}

#[tokio::test]
async fn all_settings_of_redis() -> Done {
    let tags = NonZeroU16::new(64).ok_or("zero")?;
    let store = RedisStore::open("redis://127.0.0.1:6379")?
        .prefix("shop")
        .name("main")
        .deadline(Duration::from_millis(50))
        .connections(NonZeroUsize::new(2).ok_or("zero")?)
        .refusal_cache(Duration::from_millis(100))
        .block_list_refresh(Duration::from_secs(5))
        .without_batches()
        .fallback_keys(10_000);
    let _tagged = store.fork().hash_tags(HashTags::Shared(tags));
    let _by_part = store.hash_tags(HashTags::ByFirstPart(tags));
    assert!(
        RedisStore::scripts()
            .next()
            .expect("a script")
            .1
            .contains("redis.call")
    );
    Ok(())
}

#[tokio::test]
async fn a_store_of_a_setting() -> Done {
    let url = std::env::var("STORE_URL").unwrap_or_else(|_| "memory:".to_owned());
    let store = store::from_url(&url)?;
    let _first = RateLimitLayer::new(store.clone(), Quota::per_minute(100)).name("site");
    let _second = RateLimiter::new(store, Quota::per_minute(5)).name("jobs");
    Ok(())
}

#[test]
fn a_store_of_either_kind() {
    fn limit(store: impl Store) -> RateLimitLayer {
        RateLimitLayer::new(store, Quota::per_minute(100))
    }
    let _memory = limit(MemoryStore::new());
    let dynamic: Arc<dyn Store> = Arc::new(MemoryStore::new());
    let _dynamic = limit(Arc::clone(&dynamic));
}

#[test]
fn a_store_in_memory() {
    let name = String::from("local");
    let store = MemoryStore::with_max_keys(1_000).name(&name);
    let _layer = RateLimitLayer::new(store.clone(), Quota::per_minute(100));
    store.remove_dead();
    assert!(store.is_empty());
    assert_eq!(store.len(), 0);
}

#[tokio::test]
async fn a_test_with_a_clock() -> Done {
    let clock = TestClock::new();
    let store = MemoryStore::with_clock(clock.clone());
    let limiter = RateLimiter::new(store, Quota::per_minute(1));
    assert!(limiter.check("ada").await?.is_allowed());
    assert!(!limiter.check("ada").await?.is_allowed());
    clock.advance(Duration::from_secs(60));
    assert!(limiter.check("ada").await?.is_allowed());
    Ok(())
}

#[tokio::test]
async fn a_test_of_an_outage() {
    let store = TestStore::new();
    let limiter = RateLimiter::new(store.clone(), Quota::per_minute(1));
    store.fail_next(1, ErrorKind::Unavailable);
    assert!(limiter.check("ada").await.is_err());
    store.refuse_next(1, Duration::from_secs(3));
    assert!(!limiter.check("ada").await.expect("an answer").is_allowed());
    store.recover();
    assert_eq!(store.take_checks().len(), 2);
}
