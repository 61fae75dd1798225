//! Numbers at the limits of what Lua and Redis store exactly.

use std::time::Duration;

use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use redis::Commands;
use tollgate::{Algorithm, Decision, Quota, RateLimiter};

use crate::support::algorithms::is_log;
use crate::support::cases::cases;
use crate::support::redis_server::RedisServer;
use crate::support::store_on;
use crate::support::stored::{HEADER, double_at};
use crate::support::test_time::TestTime;

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
        limiter.reset("ada").await.unwrap();
    }
}

type Numbers = (bool, u32, u32, Duration, Option<Duration>);

fn numbers(decision: &Decision) -> Numbers {
    (
        decision.is_allowed(),
        decision.used(),
        decision.remaining(),
        decision.reset_after(),
        decision.retry_after(),
    )
}

/// Checks in both stores, compares the decisions, and returns them.
async fn both(time: &TestTime, quota: &Quota, cost: u32) -> Numbers {
    let memory = RateLimiter::new(time.memory.clone(), quota.clone());
    let redis = RateLimiter::new(time.redis.clone(), quota.clone());
    let memory = numbers(&memory.check_n("ada", cost).await.unwrap());
    let redis = numbers(&redis.check_n("ada", cost).await.unwrap());
    assert_eq!(memory, redis, "{cost} of {quota:?}");
    memory
}

/// Credits units in both stores, and verifies that as many fewer are used.
async fn credit_both(time: &TestTime, quota: &Quota, units: u32) {
    let (_, before, ..) = both(time, quota, 0).await;
    let memory = RateLimiter::new(time.memory.clone(), quota.clone());
    let redis = RateLimiter::new(time.redis.clone(), quota.clone());
    memory.admin().credit("ada", units).await.unwrap();
    redis.admin().credit("ada", units).await.unwrap();
    let (_, after, ..) = both(time, quota, 0).await;
    assert_eq!(after, before.saturating_sub(units), "{units} of {quota:?}");
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::float_arithmetic,
    reason = "a part of it"
)]
fn part_of(limit: u32, part: f64) -> u32 {
    (f64::from(limit) * part) as u32
}

/// Here a level drains in ticks of ten seconds, so a full one drains for longer than the window. The second charge
/// finds a time to live that is a second longer than the window.
#[tokio::test]
async fn a_charge_renews_the_time_to_live_for_the_ticks_in_which_it_drains() {
    let server = RedisServer::start();
    let mut time = TestTime::new(&server);
    let window = Duration::from_micros(2_097_152_000_001);
    let quota = Quota::new(u32::MAX, window).with_algorithm(Algorithm::Gcra);
    assert!(both(&time, &quota, 1).await.0);
    time.advance(window);
    assert!(both(&time, &quota, u32::MAX).await.0);
    let (.., wait) = both(&time, &quota, u32::MAX).await;
    time.advance(wait.expect("a wait") - Duration::from_micros(1));
    assert!(!both(&time, &quota, u32::MAX).await.0, "the level is lost");
}

/// The products of these numbers exceed 2^53. Old servers write some of the numbers as 1e+08.
#[test]
fn products_beyond_2_pow_53_are_decided_alike_and_waits_are_exact() {
    let server = RedisServer::start();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
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
    TestRunner::new(cases(400))
        .run(
            &(limit, window, algorithm, steps),
            |(limit, window, algorithm, steps)| {
                let mut time = TestTime::new(&server);
                for (cost, step, divisor, given) in steps {
                    let limit = limit / divisor;
                    let quota = Quota::new(limit, window).with_algorithm(algorithm);
                    runtime.block_on(credit_both(&time, &quota, part_of(limit, given)));
                    let cost = part_of(limit, cost);
                    let said = runtime.block_on(both(&time, &quota, cost));
                    if let (false, .., Some(wait)) = said {
                        time.advance(wait - Duration::from_micros(1));
                        assert!(
                            !runtime.block_on(both(&time, &quota, cost)).0,
                            "admitted before {wait:?}"
                        );
                        time.advance(Duration::from_micros(1));
                        assert!(
                            runtime.block_on(both(&time, &quota, cost)).0,
                            "refused after {wait:?}"
                        );
                    }
                    time.advance(window.mul_f64(step / 3.0));
                }
                Ok(())
            },
        )
        .unwrap();
}
