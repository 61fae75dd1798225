//! What a value that packs all counts of a key must not break.

use std::time::Duration;

use redis::{Commands, Connection};
use tollgate::{Algorithm, Quota, RateLimiter};

use crate::state::describe;
use crate::store_on;
use crate::support::costs::{algorithms, calls, forget_calls, memory_of};
use crate::support::redis_server::{RedisServer, run, times_to_live};
use crate::support::test_time::TestTime;

const VALUE: &str = "tollgate:v3:{default,ada}";

fn value(connection: &mut Connection) -> Vec<u8> {
    connection.get(VALUE).unwrap()
}

/// The units of each quota that count.
async fn used(limiter: &RateLimiter) -> Vec<u32> {
    let looked = limiter.peek("ada").await.unwrap();
    looked.quotas().map(|quota| quota.used()).collect()
}

#[tokio::test]
async fn a_quota_added_beside_a_shorter_one_lives_as_long_as_it_counts() {
    let server = RedisServer::start();
    let mut connection = server.connect();
    for (name, algorithm) in algorithms() {
        if algorithm == Algorithm::SortedSetLog {
            continue;
        }
        let (second, day) = (
            Quota::per_second(99),
            Quota::per_day(99).algorithm(algorithm),
        );
        let short = RateLimiter::new(store_on(&server), second.clone());
        let _ = short.check("ada").await.unwrap();
        let millis: i64 = connection.pttl(VALUE).unwrap();
        assert!((1..=3_000).contains(&millis), "{name}: {millis}");
        let both = RateLimiter::new(store_on(&server), [second, day]);
        let _ = both.check("ada").await.unwrap();
        let at_least = 86_400_000;
        assert!(
            connection.pttl::<_, i64>(VALUE).unwrap() > at_least,
            "{name}"
        );
        // Neither a charge to the short one nor a refund or a credit makes it shorter.
        let mut decision = short.check_n("ada", 2).await.unwrap();
        short.refund(&mut decision, 1).await.unwrap();
        short.admin().credit("ada", 1).await.unwrap();
        assert!(
            connection.pttl::<_, i64>(VALUE).unwrap() > at_least,
            "{name}"
        );
        run(&mut connection, &["DEL", VALUE]);
    }
}

#[tokio::test]
async fn a_charge_renews_a_value_that_would_expire_before_its_counts() {
    let server = RedisServer::start();
    let mut connection = server.connect();
    let (seconds, _): (u32, u32) = redis::cmd("TIME").query(&mut connection).unwrap();
    for (name, algorithm) in algorithms() {
        if algorithm == Algorithm::SortedSetLog {
            continue;
        }
        let quota = |seconds| Quota::new(99, Duration::from_secs(seconds)).algorithm(algorithm);
        for quotas in [vec![quota(60)], vec![quota(30), quota(60)]] {
            let limiter = RateLimiter::new(store_on(&server), quotas);
            let _ = limiter.check("ada").await.unwrap();
            // As if a minute and a half had passed.
            let soon = (seconds + 20).to_be_bytes();
            let () = connection.setrange(VALUE, 0, &soon).unwrap();
            let () = connection.pexpire(VALUE, 20_000).unwrap();
            let _ = limiter.check("ada").await.unwrap();
            let millis: i64 = connection.pttl(VALUE).unwrap();
            assert!(millis > 110_000, "{name}: {millis}");
            let stored = value(&mut connection);
            let expires = u32::from_be_bytes(*stored.first_chunk().unwrap());
            assert!(expires > seconds + 110, "{name}: {expires}");
            assert_eq!(used(&limiter).await[0], 2, "{name}");
            run(&mut connection, &["DEL", VALUE]);
        }
    }
}

#[tokio::test]
async fn quotas_that_a_check_does_not_ask_are_copied_unread() {
    let server = RedisServer::start();
    let mut connection = server.connect();
    let year = Duration::from_secs(366 * 86_400);
    let quotas: Vec<_> = algorithms()
        .map(|(_, algorithm)| Quota::new(90, year).algorithm(algorithm))
        .filter(|quota| !format!("{quota:?}").contains("SortedSetLog"))
        .collect();
    let all = RateLimiter::new(store_on(&server), quotas.clone());
    let _ = all.check_n("ada", 5).await.unwrap();
    for (asked, quota) in quotas.iter().enumerate() {
        let one = RateLimiter::new(store_on(&server), quota.clone());
        let before = used(&all).await;
        let mut decision = one.check_n("ada", 3).await.unwrap();
        one.refund(&mut decision, 1).await.unwrap();
        one.admin().credit("ada", 1).await.unwrap();
        let mut expected = before.clone();
        expected[asked] += 1;
        assert_eq!(used(&all).await, expected, "{quota:?}");
        // Nor does a reset of one forget the others.
        one.reset("ada").await.unwrap();
        expected[asked] = 0;
        assert_eq!(used(&all).await, expected, "{quota:?}");
    }
    // In another order, with one more and one fewer.
    let mut others: Vec<_> = quotas.into_iter().skip(1).rev().collect();
    others.push(Quota::per_day(9));
    let others = RateLimiter::new(store_on(&server), others);
    let before = used(&others).await;
    let _ = others.check("ada").await.unwrap();
    let more: Vec<_> = before.iter().map(|used| used + 1).collect();
    assert_eq!(used(&others).await, more);
    let lives = times_to_live(&mut connection);
    assert!(lives.len() == 1 && lives[0].1 > 0, "{lives:?}");
}

#[tokio::test]
async fn a_log_becomes_a_list_and_returns_whatever_its_limit_is() {
    let server = RedisServer::start();
    let mut connection = server.connect();
    let window = Duration::from_secs(2);
    let of_limit = |limit| RateLimiter::new(store_on(&server), Quota::new(limit, window));
    let (large, small) = (of_limit(1_000), of_limit(100));
    for units in 1..=300 {
        assert_eq!(large.check("ada").await.unwrap().used(), units);
    }
    let list = format!("{VALUE}:log:2000000");
    assert_eq!(connection.llen::<_, usize>(&list).unwrap(), 3);
    assert!(value(&mut connection).len() <= 15 + 17 + 16 + 64 * 4 + 65 * 4);
    assert!(connection.pttl::<_, i64>(&list).unwrap() > 0);
    // No list is declared for this limit: the check is sent again.
    let _ = small.peek("nobody").await.unwrap();
    forget_calls(&mut connection);
    let refused = small.check("ada").await.unwrap();
    assert_eq!((refused.is_allowed(), refused.used()), (false, 300));
    assert_eq!(calls(&mut connection)["evalsha"], 2);
    tokio::time::sleep(window + Duration::from_millis(20)).await;
    assert_eq!(small.check("ada").await.unwrap().used(), 1);
    assert_eq!(times_to_live(&mut connection).len(), 1);
    assert_eq!(value(&mut connection).len(), 15 + 16 + 4);
}

#[tokio::test]
async fn units_of_one_charge_are_one_run_and_most_charges_append_one() {
    let server = RedisServer::start();
    let mut connection = server.connect();
    let limiter = RateLimiter::new(store_on(&server), Quota::per_hour(100_000));
    let _ = limiter.check_n("ada", 10_000).await.unwrap();
    // The times of a window beyond 18 minutes have six bytes.
    assert_eq!(value(&mut connection).len(), 15 + 16 + 10);
    let before = value(&mut connection);
    let _ = limiter.check_n("ada", 10_000).await.unwrap();
    let after = value(&mut connection);
    assert_eq!(after[..after.len() - 10], before);
}

#[tokio::test]
async fn expired_runs_are_removed_when_they_are_half_of_all() {
    let server = RedisServer::start();
    let mut connection = server.connect();
    let window = Duration::from_millis(500);
    let limiter = RateLimiter::new(store_on(&server), Quota::new(90, window));
    for _ in 0..4 {
        let _ = limiter.check("ada").await.unwrap();
    }
    tokio::time::sleep(window / 2).await;
    for _ in 0..4 {
        let _ = limiter.check("ada").await.unwrap();
    }
    tokio::time::sleep(window / 2 + Duration::from_millis(5)).await;
    assert_eq!(limiter.check("ada").await.unwrap().used(), 5);
    assert_eq!(value(&mut connection).len(), 15 + 16 + 5 * 4);
}

#[tokio::test]
async fn runs_of_one_unit_are_stored_without_positions_while_all_are() {
    let server = RedisServer::start();
    let mut connection = server.connect();
    let windows = [
        (Duration::from_secs(2), 4),
        (Duration::from_secs(86_400), 6),
    ];
    for (window, bytes) in windows {
        run(&mut connection, &["FLUSHALL"]);
        let limiter = RateLimiter::new(store_on(&server), Quota::new(90, window));
        for units in 1..=4 {
            assert_eq!(limiter.check("ada").await.unwrap().used(), units);
        }
        assert_eq!(value(&mut connection).len(), 15 + 16 + 4 * bytes);
        let text = describe(&value(&mut connection)).unwrap();
        assert_eq!(text.matches(", 1 at ").count(), 4, "{text}");
        let mut decision = limiter.check_n("ada", 5).await.unwrap();
        assert_eq!(decision.used(), 9);
        assert_eq!(value(&mut connection).len(), 15 + 16 + 5 * (bytes + 4));
        limiter.refund(&mut decision, 4).await.unwrap();
        assert_eq!(used(&limiter).await, [5]);
        if bytes == 4 {
            // Half of the runs expire. The others are one unit each.
            tokio::time::sleep(window / 2).await;
            for _ in 0..3 {
                let _ = limiter.check("ada").await.unwrap();
            }
            tokio::time::sleep(window / 2 + Duration::from_millis(20)).await;
            assert_eq!(limiter.check("ada").await.unwrap().used(), 4);
            assert_eq!(value(&mut connection).len(), 15 + 16 + 4 * bytes);
            assert_eq!(used(&limiter).await, [4]);
        }
    }
}

#[tokio::test]
async fn a_refund_in_an_old_segment_is_seen_by_the_segments_behind_it() {
    let server = RedisServer::start();
    let window = Duration::from_secs(4);
    let limiter = RateLimiter::new(store_on(&server), Quota::new(1_000, window));
    let mut decisions = Vec::new();
    for _ in 0..100 {
        decisions.push(limiter.check("ada").await.unwrap());
    }
    tokio::time::sleep(window / 2).await;
    for _ in 0..200 {
        let _ = limiter.check("ada").await.unwrap();
    }
    limiter.refund(&mut decisions[10], 1).await.unwrap();
    assert_eq!(used(&limiter).await, [299]);
    // The oldest unit that counts is in the middle of the second segment.
    tokio::time::sleep(window / 2).await;
    assert_eq!(used(&limiter).await, [200]);
}

#[tokio::test]
async fn a_list_that_has_expired_goes_while_the_value_still_counts() {
    let server = RedisServer::start();
    let mut connection = server.connect();
    let window = Duration::from_secs(2);
    let limiter = RateLimiter::new(store_on(&server), Quota::new(1_000, window));
    for _ in 0..193 {
        let _ = limiter.check("ada").await.unwrap();
    }
    tokio::time::sleep(window / 2).await;
    for _ in 0..30 {
        let _ = limiter.check("ada").await.unwrap();
    }
    assert!(
        connection
            .exists::<_, bool>(format!("{VALUE}:log:2000000"))
            .unwrap()
    );
    tokio::time::sleep(window / 2 + Duration::from_millis(20)).await;
    assert_eq!(limiter.check("ada").await.unwrap().used(), 31);
    assert_eq!(times_to_live(&mut connection).len(), 1);
    // Nor is it looked for again.
    let text = describe(&value(&mut connection)).unwrap();
    assert!(!text.contains("a list"), "{text}");
}

#[tokio::test]
async fn a_unit_of_several_logs_is_appended_once() {
    let server = RedisServer::start();
    let mut connection = server.connect();
    let windows = [2, 3_600, 86_400].map(Duration::from_secs);
    let quotas = windows.map(|window| Quota::new(90, window));
    let limiter = RateLimiter::new(store_on(&server), quotas.clone());
    let _ = limiter.check("ada").await.unwrap();
    for units in 2..=33 {
        let before = value(&mut connection);
        let decision = limiter.check("ada").await.unwrap();
        assert!(decision.quotas().all(|quota| quota.used() == units));
        let after = value(&mut connection);
        assert_eq!(after[..after.len() - 4], before);
    }
    let text = describe(&value(&mut connection)).unwrap();
    assert_eq!(text.matches(", 1 at ").count(), 3 + 32, "{text}");
    // The logs take the units of the journal.
    assert_eq!(limiter.check("ada").await.unwrap().used(), 34);
    let text = describe(&value(&mut connection)).unwrap();
    assert_eq!(text.matches(", 1 at ").count(), 3 * 34, "{text}");
    // Whatever comes next finds the units.
    let mut decision = limiter.check("ada").await.unwrap();
    let _ = limiter.check("ada").await.unwrap();
    limiter.refund(&mut decision, 1).await.unwrap();
    assert_eq!(used(&limiter).await, [35, 35, 35]);
    let _ = limiter.check("ada").await.unwrap();
    let _ = limiter.check_n("ada", 4).await.unwrap();
    assert_eq!(used(&limiter).await, [40, 40, 40]);
    for (asked, quota) in quotas.into_iter().enumerate() {
        let _ = limiter.check("ada").await.unwrap();
        let one = RateLimiter::new(store_on(&server), quota);
        let before = used(&limiter).await;
        let _ = one.check("ada").await.unwrap();
        let mut expected = before.clone();
        expected[asked] += 1;
        assert_eq!(used(&limiter).await, expected);
    }
    // Full quotas refuse, and the shortest recovers first.
    while limiter.check("ada").await.unwrap().is_allowed() {}
    assert_eq!(used(&limiter).await.iter().max(), Some(&90));
    tokio::time::sleep(windows[0] + Duration::from_millis(20)).await;
    let refused = limiter.check("ada").await.unwrap();
    let of_quotas: Vec<_> = refused.quotas().map(|quota| quota.used()).collect();
    assert_eq!((of_quotas[0], of_quotas[1..].iter().max()), (0, Some(&90)));
}

/// Times of long windows do not fit into four bytes: 2^32 microseconds are 72 minutes.
#[tokio::test]
async fn units_of_a_long_window_count_to_the_microsecond() {
    const HOUR: Duration = Duration::from_secs(3_600);
    let server = RedisServer::start();
    let day = Quota::new(500, 24 * HOUR);
    let week = Quota::new(500, 7 * 24 * HOUR);
    // One log and two, charged in single units, by refunds, or in several units; and one that becomes a list.
    for (quotas, cost, charges) in [
        (vec![day.clone()], 1, 6_u32),
        (vec![day.clone()], 3, 6),
        (vec![day.clone(), week.clone()], 1, 40),
        (vec![day.clone(), week], 2, 6),
        (vec![day], 1, 300),
    ] {
        let mut time = TestTime::new(&server);
        let memory = RateLimiter::new(time.memory.clone(), quotas.clone());
        let redis = RateLimiter::new(time.redis.clone(), quotas);
        let gap = 20 * HOUR / charges;
        for number in 0..charges + 6 {
            let mut decisions = Vec::new();
            for limiter in [&memory, &redis] {
                let mut decision = limiter.check_n("ada", cost).await.unwrap();
                assert!(decision.is_allowed());
                if number % 3 == 1 {
                    limiter.refund(&mut decision, 1).await.unwrap();
                }
                let looked = limiter.peek("ada").await.unwrap();
                let quotas = looked.quotas();
                decisions.push(
                    quotas
                        .map(|quota| (quota.used(), quota.reset_after()))
                        .collect::<Vec<_>>(),
                );
            }
            assert_eq!(decisions[0], decisions[1], "charge {number} of {charges}");
            // Most expire one by one, and then a microsecond earlier or later.
            time.advance(if number < charges {
                gap
            } else {
                decisions[0][0]
                    .1
                    .saturating_sub(Duration::from_micros((number % 2).into()))
            });
        }
    }
}

#[tokio::test]
async fn a_log_takes_few_bytes_with_its_keys() {
    let server = RedisServer::start();
    let mut connection = server.connect();
    // Up to twice of a value is reserved when a run is appended.
    for (limit, most) in [(10, 340), (1_000, 10_500), (10_000, 92_000)] {
        run(&mut connection, &["FLUSHALL"]);
        let limiter = RateLimiter::new(store_on(&server), Quota::per_hour(limit));
        for _ in 0..limit {
            let _ = limiter.check("ada").await.unwrap();
        }
        let keys = times_to_live(&mut connection);
        let bytes = keys.iter().map(|(key, _)| memory_of(&mut connection, key));
        let bytes: u64 = bytes.sum();
        println!("{limit} units: {bytes} bytes");
        assert!(bytes <= most, "{limit} units: {bytes} bytes");
    }
}

#[tokio::test]
async fn the_example_describes_what_is_stored() {
    let server = RedisServer::start();
    let mut connection = server.connect();
    let year = Duration::from_secs(366 * 86_400);
    let quotas: Vec<_> = Algorithm::ALL
        .iter()
        .map(|facts| Quota::new(90, year).algorithm(facts.algorithm))
        .collect();
    let limiter = RateLimiter::new(store_on(&server), quotas);
    let mut decision = limiter.check_n("ada", 5).await.unwrap();
    limiter.refund(&mut decision, 2).await.unwrap();
    let text = describe(&value(&mut connection)).unwrap();
    for part in [
        "expires at ",
        "window 31622400000000 us: sliding_log, 3 at ",
        "sliding_counter, generation ",
        ", count 3",
        "sliding_buckets, generation ",
        ", 3 in bucket ",
        "gcra, generation ",
        ", flowed in 5, rate 90, 2 given back of 0 to 4",
        "fixed_window, generation ",
    ] {
        assert!(text.contains(part), "{part} is not in {text}");
    }
    assert_eq!(text.lines().count(), 1 + 5);
    assert_eq!(describe(b"somebody else's"), None);
}
