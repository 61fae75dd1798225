//! A server of a cluster runs a call only if all its keys are in one slot.

use std::num::NonZeroU16;

use tollgate::{Quota, RateLimiter, RedisStore};

use crate::store_on;
use crate::support::costs::{calls, forget_calls};
use crate::support::redis_server::RedisServer;

/// Checks a unit of each of a hundred keys, at once.
async fn check_all(limiter: &RateLimiter) -> Vec<u32> {
    let checks = (0..100).map(|key| {
        let limiter = limiter.clone();
        tokio::spawn(async move { limiter.check(format!("key:{key}")).await.unwrap().used() })
    });
    let mut used = Vec::new();
    for check in checks.collect::<Vec<_>>() {
        used.push(check.await.unwrap());
    }
    used
}

/// How many calls a hundred checks take on a cluster, once that is known for one.
async fn calls_on_a_cluster(configure: impl FnOnce(RedisStore) -> RedisStore) -> u64 {
    let server = RedisServer::start_cluster();
    let limiter = RateLimiter::new(configure(store_on(&server)), Quota::per_hour(9));
    // Refused as a whole, and sent again slot by slot: nothing is charged twice.
    assert_eq!(check_all(&limiter).await, [1; 100]);
    let mut connection = server.connect();
    forget_calls(&mut connection);
    assert_eq!(check_all(&limiter).await, [2; 100]);
    calls(&mut connection).get("evalsha").copied().unwrap_or(0)
}

#[tokio::test]
async fn checks_of_keys_in_several_slots_are_sent_slot_by_slot() {
    let calls = calls_on_a_cluster(|store| store).await;
    assert!((99..=100).contains(&calls), "{calls} calls");
}

#[tokio::test]
async fn keys_that_share_hash_tags_share_calls() {
    let tags = NonZeroU16::new(4).unwrap();
    let calls = calls_on_a_cluster(|store| store.hash_tags(tags)).await;
    // Four tags, and of each the first check finds nobody there, and goes at once.
    assert_eq!(calls, 8);
}

#[tokio::test]
async fn checks_of_one_key_share_calls_on_a_cluster_too() {
    let server = RedisServer::start_cluster();
    let limiter = RateLimiter::new(store_on(&server), Quota::per_hour(100));
    let _ = check_all(&limiter).await;
    let mut connection = server.connect();
    forget_calls(&mut connection);
    let checks: Vec<_> = (0..90)
        .map(|_| {
            let limiter = limiter.clone();
            tokio::spawn(async move { limiter.check("ada").await.unwrap().used() })
        })
        .collect();
    for (used, check) in (1..).zip(checks) {
        assert_eq!(check.await.unwrap(), used);
    }
    // The first finds nobody there, and goes at once.
    assert_eq!(calls(&mut connection).get("evalsha"), Some(&2));
}
