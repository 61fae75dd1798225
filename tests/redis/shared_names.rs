//! Limiters of one name in several services.

use std::time::Duration;

use tollgate::{Quota, RateLimiter, RedisStore};

use crate::support::log;
use crate::support::redis_server::RedisServer;

/// The warnings of this process after the comparison, which comes a second after the first check.
async fn warnings() -> Vec<String> {
    tokio::time::sleep(Duration::from_millis(1_500)).await;
    let mut lines = log::all_kept();
    lines.retain(|line| line.contains("another process"));
    lines
}

fn limiter(store: &RedisStore, limit: u32) -> RateLimiter {
    RateLimiter::new(store.clone(), Quota::per_minute(limit))
}

#[tokio::test]
async fn a_service_with_other_quotas_under_the_same_name_is_told_once() {
    log::keep();
    let server = RedisServer::start();
    // Each service opens a store of its own.
    let open = || RedisStore::open(&server.url()).unwrap();
    let check = async |limiter: &RateLimiter| limiter.check("ada").await.unwrap();
    for _ in 0..2 {
        let _ = check(&limiter(&open(), 100)).await;
    }
    assert_eq!(warnings().await, [""; 0], "the same quotas");
    let other = limiter(&open(), 5);
    for _ in 0..2 {
        let _ = check(&other).await;
        let _ = check(&other.clone()).await;
    }
    let told = warnings().await;
    let [warning] = told.as_slice() else {
        panic!("{told:?}");
    };
    for part in [
        "WARN",
        "limiter=\"default\"",
        "\"100/minute\" there and \"5/minute\" here",
        "under the prefix \"tollgate\"",
        "set `RedisStore::prefix`",
        "(redis-",
    ] {
        assert!(warning.contains(part), "{part}: {warning}");
    }
    for another in [
        limiter(&open(), 7).name("login"),
        limiter(&open().prefix("shop"), 8),
        limiter(&open(), 5),
    ] {
        let _ = check(&another).await;
    }
    assert_eq!(
        warnings().await,
        [""; 0],
        "another name, another prefix, the same quotas"
    );
}

#[tokio::test]
async fn the_quotas_of_a_limiter_are_stored_for_a_day() {
    let server = RedisServer::start();
    let store = RedisStore::open(&server.url()).unwrap().prefix("shop");
    let limiter = limiter(&store, 9).name("a:b{c}");
    let _ = limiter.check("ada").await.unwrap();
    tokio::time::sleep(Duration::from_millis(1_500)).await;
    let mut connection = server.connect();
    let mut ask = |command: &str, key: &str| -> redis::Value {
        redis::cmd(command).arg(key).query(&mut connection).unwrap()
    };
    let key = "shop:v2:{limiters}:a:b%7Bc%7D";
    let text: String = redis::from_redis_value(ask("GET", key)).unwrap();
    let program = text.strip_prefix("9/minute\n").expect("quotas first");
    assert!(program.starts_with("redis-"), "{program}");
    let left: i64 = redis::from_redis_value(ask("TTL", key)).unwrap();
    assert!((86_000..=86_400).contains(&left), "{left}");
}
