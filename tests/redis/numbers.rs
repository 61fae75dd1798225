//! Numbers at the limits of what Lua and Redis store exactly.

use std::time::Duration;

use proptest::prelude::*;
use redis::Commands;
use tollgate::{Algorithm, Quota, RateLimiter};

use crate::support::algorithms::{is_log, part_of};
use crate::support::both::Both;
use crate::support::redis_server::RedisServer;
use crate::support::stored::{HEADER, double_at};
use crate::support::test_time::TestTime;
use crate::support::{holds_for_any, runtime, store_on};

#[tokio::test]
async fn every_microsecond_is_kept() {
    let server = RedisServer::start();
    let mut connection = server.connect();
    for algorithm in Algorithm::ALL.iter().copied() {
        let quota = Quota::per_day(100).with_algorithm(algorithm);
        let limiter = RateLimiter::new(store_on(&server), quota);
        let (seconds, micros): (u64, u64) = redis::cmd("TIME").query(&mut connection).unwrap();
        let _ = limiter.check("ada").await.unwrap();
        let key: String = connection.keys::<_, Vec<String>>("*").unwrap().remove(0);
        let kind: String = redis::cmd("TYPE").arg(&key).query(&mut connection).unwrap();
        let stored: String = match kind.as_str() {
            "zset" => {
                connection
                    .zrange_withscores::<_, Vec<(String, String)>>(&key, 0, 0)
                    .unwrap()
                    .remove(0)
                    .1
            }
            // The first run of a log; the generation of buckets and of the counter of a row.
            _ => {
                let at = match algorithm {
                    Algorithm::SlidingLog => HEADER,
                    Algorithm::SlidingBuckets(_) => 4,
                    _ => 13,
                };
                double_at(&connection.get::<_, Vec<u8>>(&key).unwrap(), at).to_string()
            }
        };
        let stored: u64 = stored
            .parse()
            .unwrap_or_else(|_| panic!("{algorithm:?}: {stored}"));
        let before = seconds * 1_000_000 + micros;
        assert!(
            (before..before + 5_000_000).contains(&stored),
            "{algorithm:?}: {stored}"
        );
        limiter.admin().reset("ada").await.unwrap();
    }
}

/// Credits units in both stores, and verifies that as many fewer are used.
async fn credit_both(limiters: &Both, units: u32) {
    let before = limiters.decide("ada", 0).await.used();
    limiters.credit("ada", units).await;
    let after = limiters.decide("ada", 0).await.used();
    assert_eq!(after, before.saturating_sub(units), "{units} credited");
}

/// Here a level drains in ticks of ten seconds, so a full one drains for longer than the window. The second charge
/// finds a time to live that is a second longer than the window.
#[tokio::test]
async fn a_charge_renews_the_time_to_live_for_the_ticks_in_which_it_drains() {
    let server = RedisServer::start();
    let mut time = TestTime::new(&server);
    let window = Duration::from_micros(2_097_152_000_001);
    let quota = Quota::new(u32::MAX, window).with_algorithm(Algorithm::Gcra);
    let limiters = Both::new(&time, quota);
    assert!(limiters.decide("ada", 1).await.allowed);
    time.advance(window);
    assert!(limiters.decide("ada", u32::MAX).await.allowed);
    let refused = limiters.decide("ada", u32::MAX).await;
    time.advance(refused.wait().expect("a wait") - Duration::from_micros(1));
    let early = limiters.decide("ada", u32::MAX).await;
    assert!(!early.allowed, "the level is lost");
}

/// The products of these numbers exceed 2^53. Old servers write some of the numbers as 1e+08.
#[test]
fn products_beyond_2_pow_53_are_decided_alike_and_waits_are_exact() {
    let server = RedisServer::start();
    let runtime = runtime();
    let limit = prop_oneof![Just(100_000_000), Just(u32::MAX), 1_000_000..u32::MAX];
    let part = prop_oneof![Just(1.0), Just(0.5), 0.0..1.0_f64];
    let window = prop_oneof![
        Just(Duration::from_secs(366 * 86_400)),
        Just(Duration::from_secs(86_400)),
        (1_000_000..31_622_400_000_000_u64).prop_map(Duration::from_micros),
    ];
    // Some checks use a lowered limit.
    let divisor = prop_oneof![3 => Just(1), 1 => Just(1_000), 1 => Just(100_000)];
    let given = prop_oneof![2 => Just(0.0), 1 => 0.0..1.0_f64];
    let steps = prop::collection::vec((part.clone(), part, divisor, given), 1..12);
    let any_cost = Algorithm::ALL.iter().copied();
    let any_cost: Vec<_> = any_cost.filter(|algorithm| !is_log(*algorithm)).collect();
    let algorithm = prop::sample::select(any_cost);
    let input = (limit, window, algorithm, steps);
    holds_for_any(400, &input, |(limit, window, algorithm, steps)| {
        let mut time = TestTime::new(&server);
        for (cost, step, divisor, given) in steps {
            let limit = limit / divisor;
            let quota = Quota::new(limit, window).with_algorithm(algorithm);
            let limiters = Both::new(&time, quota);
            runtime.block_on(credit_both(&limiters, part_of(limit, given)));
            let decide = || runtime.block_on(limiters.decide("ada", part_of(limit, cost)));
            if let Some(wait) = decide().wait() {
                time.advance(wait - Duration::from_micros(1));
                assert!(!decide().allowed, "admitted before {wait:?}");
                time.advance(Duration::from_micros(1));
                assert!(decide().allowed, "refused after {wait:?}");
            }
            time.advance(window.mul_f64(step / 3.0));
        }
        Ok(())
    });
}
