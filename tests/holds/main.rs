//! Units that a process reserves: held until they are used or returned, also if it dies.

#[path = "../support/mod.rs"]
mod support;

#[cfg(feature = "cluster")]
mod cluster;
mod layer;
mod parity;
mod permits;
mod redis;

use std::time::{Duration, Instant};

use tollgate::{Permit, RateLimiter};

/// The shortest lease.
const LEASE: Duration = Duration::from_secs(5);

async fn reserve(limiter: &RateLimiter, units: u32) -> Permit {
    let level = limiter.level("ada").cost(units);
    RateLimiter::acquire_all([level]).await.unwrap()
}

/// The units that processes hold of the key.
async fn held(limiter: &RateLimiter) -> u32 {
    let seen = limiter.peek("ada").await.unwrap();
    let level = seen.levels().next().unwrap();
    level.reserved()
}

async fn until_held(limiter: &RateLimiter, expected: u32) {
    let began = Instant::now();
    while held(limiter).await != expected {
        assert!(began.elapsed() < LEASE + Duration::from_secs(1));
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Waits until so many units are used, held ones included.
async fn until_used(limiter: &RateLimiter, expected: u32) {
    until_key_used(limiter, "ada", expected).await;
}

async fn until_key_used(limiter: &RateLimiter, key: &str, expected: u32) {
    let began = Instant::now();
    loop {
        let seen = limiter.peek(key).await.map(|decision| decision.used());
        if seen.as_ref().is_ok_and(|used| *used == expected) {
            return;
        }
        assert!(
            began.elapsed() < Duration::from_secs(4),
            "{seen:?}, expected {expected}"
        );
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}
