//! Helpers of several tests.
#![allow(dead_code, reason = "each test uses a part")]

pub(crate) mod algorithms;
#[cfg(feature = "redis")]
pub(crate) mod calls;
pub(crate) mod cases;
pub(crate) mod cluster;
#[cfg(feature = "redis")]
pub(crate) mod costs;
pub(crate) mod example;
pub(crate) mod files;
pub(crate) mod log;
#[cfg(feature = "test-util")]
pub(crate) mod moody;
pub(crate) mod node;
pub(crate) mod permissions;
pub(crate) mod process;
pub(crate) mod proxy;
pub(crate) mod redis_server;
pub(crate) mod relay;
pub(crate) mod request;
pub(crate) mod running;
pub(crate) mod sentinel;
pub(crate) mod served;
#[cfg(feature = "redis")]
pub(crate) mod stored;
#[cfg(all(feature = "redis", feature = "test-util"))]
pub(crate) mod test_time;
pub(crate) mod timeless;
#[cfg(feature = "tls")]
pub(crate) mod tls;
pub(crate) mod watched;

use std::time::{Duration, Instant};

#[cfg(feature = "redis")]
use tollgate::RedisStore;
use tollgate::store::{Answers, Check, Store, StoreFuture};
use tollgate::{Decision, RateLimiter};

/// Asks a store to decide these checks together.
pub(crate) fn ask(store: &impl Store, checks: &[Check<'_>]) -> StoreFuture {
    let mut answers = Answers::empty(checks.len());
    let asked = store.check(checks, &mut answers);
    asked.unwrap_or_else(|| StoreFuture::ready(Ok(answers)))
}

/// A store on a server, patient with a slow machine.
#[cfg(feature = "redis")]
pub(crate) fn store_on(server: &redis_server::RedisServer) -> RedisStore {
    RedisStore::open(&server.url())
        .expect("a URL")
        .deadline(Duration::from_secs(10))
        // Calls are counted: none is to be for anything else.
        .block_list_refresh(Duration::ZERO)
}

/// Checks until one is decided, which must be soon.
pub(crate) async fn decided(limiter: &RateLimiter, key: &str) -> Decision {
    let patience = Instant::now() + Duration::from_secs(5);
    loop {
        match limiter.check(key).await {
            Ok(decision) => return decision,
            Err(error) => assert!(Instant::now() < patience, "{error}"),
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
