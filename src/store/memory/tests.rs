//! Tests of a full store: which keys are evicted, and which are kept.

#[cfg(feature = "test-util")]
use std::time::Duration;

use super::MemoryStore;
#[cfg(feature = "test-util")]
use crate::clock::{Clock, TestClock};
#[cfg(feature = "test-util")]
use crate::decision::CountScope;
use crate::error::ErrorKind;
use crate::limiter::RateLimiter;
use crate::quota::Quota;

const LIMIT: u32 = 10;

async fn charge(limiter: &RateLimiter, key: &str, cost: u32) -> Result<bool, ErrorKind> {
    let decision = limiter.check_n(key, cost).await;
    decision
        .map(|decision| decision.is_allowed())
        .map_err(|error| error.kind())
}

fn full_of(keys: [(&str, u32); 3]) -> (MemoryStore, RateLimiter) {
    let store = MemoryStore::with_max_keys(3);
    let limiter = RateLimiter::new(store.clone(), Quota::per_hour(LIMIT));
    tokio_test(async {
        for (key, cost) in keys {
            assert_eq!(charge(&limiter, key, cost).await, Ok(true));
        }
    });
    (store, limiter)
}

fn tokio_test(test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread().build();
    runtime.unwrap().block_on(test);
}

#[test]
fn keys_that_have_used_more_than_half_of_a_limit_are_not_evicted() {
    let (store, limiter) = full_of([("a", 6), ("b", 10), ("c", 8)]);
    tokio_test(async {
        for stranger in ["d", "e", "f"] {
            assert_eq!(charge(&limiter, stranger, 1).await, Ok(true));
        }
        // The keys in the store are still counted, and a check that writes nothing needs no room.
        assert_eq!(charge(&limiter, "b", 1).await, Ok(false));
        assert_eq!(charge(&limiter, "a", 5).await, Ok(false));
        assert_eq!(charge(&limiter, "a", 4).await, Ok(true));
        assert_eq!(charge(&limiter, "g", 0).await, Ok(true));
        assert_eq!(
            charge(&limiter, "d", LIMIT + 1).await,
            Err(ErrorKind::CostExceedsLimit)
        );
    });
    assert_eq!(store.len(), 3);
}

#[test]
fn the_key_that_has_used_the_smallest_part_is_evicted_if_that_is_at_most_half() {
    let (store, limiter) = full_of([("a", 6), ("b", 5), ("c", 4)]);
    tokio_test(async {
        assert_eq!(charge(&limiter, "d", 9).await, Ok(true));
        assert_eq!(limiter.peek("c").await.unwrap().used(), 0);
        assert_eq!(charge(&limiter, "e", 9).await, Ok(true));
        assert_eq!(limiter.peek("b").await.unwrap().used(), 0);
        // The other keys have used more than half.
        assert_eq!(charge(&limiter, "f", 9).await, Ok(true));
        assert_eq!(limiter.peek("a").await.unwrap().used(), 6);
        assert_eq!(limiter.peek("d").await.unwrap().used(), 9);
        assert_eq!(limiter.peek("e").await.unwrap().used(), 9);
    });
    assert_eq!(store.len(), 3);
}

#[cfg(feature = "test-util")]
#[test]
fn an_idle_key_is_evicted_before_an_active_one() {
    let clock = TestClock::new();
    let store = MemoryStore::build(2, Clock::Test(clock.clone()), "memory");
    let short = RateLimiter::new(store.clone(), Quota::per_second(LIMIT)).name("short");
    let long = RateLimiter::new(store.clone(), Quota::per_hour(LIMIT)).name("long");
    tokio_test(async {
        assert_eq!(charge(&long, "live", 1).await, Ok(true));
        assert_eq!(charge(&short, "idle", 10).await, Ok(true));
        clock.advance(Duration::from_secs(1));
        assert_eq!(charge(&long, "new", 1).await, Ok(true));
        assert_eq!(long.peek("live").await.unwrap().used(), 1);
        assert_eq!(store.len(), 2);
    });
}

#[cfg(feature = "test-util")]
#[test]
fn checks_of_other_keys_drop_expired_keys() {
    let clock = TestClock::new();
    let store = MemoryStore::with_clock(clock.clone());
    let limiter = RateLimiter::new(store.clone(), Quota::per_second(LIMIT));
    tokio_test(async {
        for key in 0..1_000 {
            assert_eq!(charge(&limiter, &format!("{key}"), 1).await, Ok(true));
        }
        assert_eq!(store.len(), 1_000);
        // A count lives for two windows and a second.
        clock.advance(Duration::from_secs(3));
        for look in 0..10_000 {
            assert_eq!(charge(&limiter, &format!("look {look}"), 0).await, Ok(true));
        }
        assert!(store.len() < 50, "{} keys are left", store.len());
    });
}

#[test]
fn a_key_at_one_of_its_limits_is_not_evicted() {
    let quotas = [Quota::per_hour(2), Quota::per_hour(9)];
    let store = MemoryStore::with_max_keys(1);
    let limiter = RateLimiter::new(store.clone(), quotas);
    let lax = RateLimiter::new(store, Quota::per_hour(100));
    tokio_test(async {
        assert_eq!(charge(&limiter, "a", 2).await, Ok(true));
        assert_eq!(charge(&limiter, "stranger", 1).await, Ok(true));
        assert_eq!(charge(&limiter, "a", 1).await, Ok(false));
        assert_eq!(lax.peek("a").await.unwrap().used(), 2);
        assert_eq!(charge(&limiter, "stranger", 1).await, Ok(true));
        assert_eq!(limiter.peek("a").await.unwrap().used(), 2);
    });
}

#[cfg(feature = "test-util")]
#[test]
fn with_every_algorithm_a_key_is_idle_once_all_units_have_returned() {
    use crate::quota::Algorithm;

    for algorithm in Algorithm::ALL {
        let algorithm = algorithm.with_buckets(7);
        let clock = TestClock::new();
        let store = MemoryStore::build(1, Clock::Test(clock.clone()), "memory");
        let quota = Quota::per_second(LIMIT).with_algorithm(algorithm);
        let limiter = RateLimiter::new(store, quota);
        let other = limiter.clone().name("other");
        tokio_test(async {
            assert_eq!(charge(&limiter, "a", LIMIT).await, Ok(true));
            // Advance by half a window while units count.
            while limiter.peek("a").await.unwrap().used() > LIMIT / 2 {
                assert_eq!(charge(&other, "b", 1).await, Ok(true), "{algorithm:?}");
                let used = limiter.peek("a").await.unwrap().used();
                assert!(used > 0, "{algorithm:?} dropped a key that is not idle");
                clock.advance(Duration::from_millis(500));
            }
            // Now the shared count of "b" is idle too.
            clock.advance(Duration::from_secs(2));
            assert_eq!(charge(&other, "b", 1).await, Ok(true), "{algorithm:?}");
            assert_eq!(limiter.peek("a").await.unwrap().used(), 0, "{algorithm:?}");
            let decision = other.check("b").await.unwrap();
            assert_eq!(
                decision.view().answer().scope(),
                CountScope::Own,
                "{algorithm:?}"
            );
        });
    }
}

#[cfg(feature = "test-util")]
#[test]
fn remove_dead_drops_all_expired_keys() {
    let clock = TestClock::new();
    let store = MemoryStore::with_clock(clock.clone());
    let short = RateLimiter::new(store.clone(), Quota::per_second(LIMIT)).name("short");
    let long = RateLimiter::new(store.clone(), Quota::per_hour(LIMIT)).name("long");
    tokio_test(async {
        for key in 0..100 {
            assert_eq!(charge(&short, &format!("{key}"), 1).await, Ok(true));
        }
        assert_eq!(charge(&long, "ada", 1).await, Ok(true));
    });
    clock.advance(Duration::from_millis(2_999));
    store.remove_dead();
    assert_eq!(store.len(), 101);
    clock.advance(Duration::from_millis(1));
    store.remove_dead();
    assert_eq!(store.len(), 1);
}

#[test]
fn the_number_of_keys_is_bounded_over_all_shards() {
    let store = MemoryStore::with_max_keys(5_000);
    assert!(store.inner.counts.keys.shards().count() > 1);
    let limiter = RateLimiter::new(store.clone(), Quota::per_hour(LIMIT));
    tokio_test(async {
        for key in 0..20_000 {
            let _ = charge(&limiter, &format!("{key}"), 1).await;
        }
    });
    assert!(
        store.len() <= 5_000 && store.len() > 4_000,
        "{}",
        store.len()
    );
}
