//! Credits by an operator, and what they cost in Redis. The parity tests compare them with the memory
//! store.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use redis::Commands;
use tollgate::{Algorithm, ErrorKind, Quota, RateLimiter};

use crate::support::algorithms::is_log;
use crate::support::costs::{algorithms, calls, fill, forget_calls, limiter};
use crate::support::redis_server::{RedisServer, run, times_to_live};
use crate::support::store_on;

const SET_OF_ADA: &str = "tollgate:v3:{default,ada}:set:25920000000000";

/// The commands that the server runs for a credit.
async fn ran(
    connection: &mut redis::Connection,
    limiter: &RateLimiter,
    units: u32,
) -> BTreeMap<String, u64> {
    forget_calls(connection);
    limiter.admin().credit("ada", units).await.unwrap();
    calls(connection)
}

#[tokio::test]
async fn a_credit_is_one_call_of_few_commands() {
    let server = RedisServer::start();
    let mut connection = server.connect();
    for (name, algorithm) in algorithms() {
        let limiter = limiter(store_on(&server), algorithm, 100_000).await;
        let limiter = limiter.name(name);
        // A search reads some pages of a long log.
        let is_log = algorithm == Algorithm::SlidingLog;
        let began = Instant::now();
        fill(&limiter, "ada", 300).await;
        let _ = limiter.check_n("ada", 20_000).await.unwrap();
        // The server learns the script.
        limiter.admin().credit("nobody", 1).await.unwrap();
        for (units, left) in [(1, 20_299), (150, 20_149), (19_000, 1_149), (1_149, 0)] {
            let ran = ran(&mut connection, &limiter, units).await;
            assert_eq!(ran.get("evalsha"), Some(&1), "{name}: {ran:?}");
            let commands = ran.values().sum::<u64>() - 1;
            let most = if is_log { 10 } else { 6 };
            assert!((3..=most).contains(&commands), "{name}, {units}: {ran:?}");
            assert_eq!(limiter.peek("ada").await.unwrap().used(), left, "{name}");
            // As long as it counts, or gone.
            let lives = times_to_live(&mut connection);
            let seconds: Vec<_> = lives.iter().map(|(_, millis)| millis / 1_000).collect();
            let life = 2 * 300 * 86_400;
            let passed = i64::try_from(began.elapsed().as_secs()).unwrap();
            let expected = life - passed - 1..=life + 1;
            assert!(seconds.iter().all(|seconds| expected.contains(seconds)));
            assert_eq!(seconds.len(), usize::from(left > 0), "{lives:?}");
        }
    }
}

#[tokio::test]
async fn a_credited_value_lives_as_long_as_before_and_a_sorted_set_as_if_charged() {
    let server = RedisServer::start();
    let mut connection = server.connect();
    for (name, algorithm) in algorithms() {
        let limiter = limiter(store_on(&server), algorithm, 100).await.name(name);
        let _ = limiter.check_n("ada", 9).await.unwrap();
        let (key, _) = times_to_live(&mut connection).remove(0);
        let () = connection.pexpire(&key, 50_000).unwrap();
        limiter.admin().credit("ada", 4).await.unwrap();
        let millis: i64 = connection.pttl(&key).unwrap();
        if algorithm == Algorithm::SortedSetLog {
            assert!(millis > 300 * 86_400_000, "{name}: {millis}");
        } else {
            assert!((40_000..=50_000).contains(&millis), "{name}: {millis}");
        }
        let () = connection.del(&key).unwrap();
    }
}

#[tokio::test]
async fn a_key_without_a_count_is_left_alone() {
    let server = RedisServer::start();
    let mut connection = server.connect();
    for (name, algorithm) in algorithms() {
        let limiter = limiter(store_on(&server), algorithm, 9).await.name(name);
        limiter.admin().credit("nobody", 1).await.unwrap();
        let ran_for_five = ran(&mut connection, &limiter, 5).await;
        // EVALSHA, TIME, and one read.
        assert_eq!(ran_for_five.values().sum::<u64>(), 3, "{ran_for_five:?}");
        let ran_for_none = ran(&mut connection, &limiter, 0).await;
        assert!(ran_for_none.is_empty(), "{ran_for_none:?}");
        let unlimited = RateLimiter::new(store_on(&server), []);
        assert!(ran(&mut connection, &unlimited, 5).await.is_empty());
    }
    assert!(times_to_live(&mut connection).is_empty());
}

#[tokio::test]
async fn a_credit_applies_once_to_each_key_of_all_quotas() {
    let server = RedisServer::start();
    let log = [Quota::per_day(90), Quota::per_day(50).with_name("strict")];
    // So long that no window ends during the test.
    let year = Duration::from_secs(366 * 86_400);
    let others = algorithms().map(|(_, algorithm)| Quota::new(70, year).with_algorithm(algorithm));
    let others: Vec<_> = others.collect();
    let meters = [40, 60].map(|limit| Quota::new(limit, year / 2).with_algorithm(Algorithm::Gcra));
    let quotas = [&log[..], &others, &meters].concat();
    let limiter = RateLimiter::new(store_on(&server), quotas);
    let _ = limiter.check_n("ada", 20).await.unwrap();
    let _ = limiter.check_n("bob", 20).await.unwrap();
    limiter.admin().credit("ada", 12).await.unwrap();
    let used = async |key| -> Vec<u32> {
        let looked = limiter.peek(key).await.unwrap();
        looked.quotas().map(|quota| quota.used()).collect()
    };
    assert_eq!(used("ada").await, [8; 10]);
    assert_eq!(used("bob").await, [20; 10]);
}

#[tokio::test]
async fn if_one_key_cannot_be_read_none_is_credited() {
    let server = RedisServer::start();
    let mut connection = server.connect();
    for (name, algorithm) in algorithms() {
        // The broken key is read last.
        let days = |days: u64| {
            let window = Duration::from_secs(days * 86_400);
            Quota::new(9, window).with_algorithm(algorithm)
        };
        let [one, both] = [vec![days(300)], vec![days(300), days(301)]]
            .map(|quotas| RateLimiter::new(store_on(&server), quotas).name(name));
        let _ = one.check_n("ada", 5).await.unwrap();
        let (key, _) = times_to_live(&mut connection).remove(0);
        // The value of the other count is cut short, or of another type. Buckets and sorted sets have one for each window.
        if algorithm == Algorithm::SortedSetLog {
            let broken = key.replace(":25920000000000", ":26006400000000");
            let () = connection.hset(&broken, "somebody", "else's").unwrap();
        } else {
            let _ = both.check_n("ada", 1).await.unwrap();
            let (broken, _) = times_to_live(&mut connection).into_iter().max().unwrap();
            let whole: Vec<u8> = connection.get(&broken).unwrap();
            let () = connection.set(&broken, &whole[..whole.len() - 1]).unwrap();
        }
        let stored: redis::Value = redis::cmd("DUMP").arg(&key).query(&mut connection).unwrap();
        let error = both.admin().credit("ada", 2).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Misconfigured, "{name}");
        assert!(error.to_string().contains("WRONGTYPE"), "{error}");
        let left: redis::Value = redis::cmd("DUMP").arg(&key).query(&mut connection).unwrap();
        assert_eq!(left, stored, "{name}");
        run(&mut connection, &["FLUSHALL"]);
    }
}

#[tokio::test]
async fn a_credit_removes_the_newest_units() {
    let server = RedisServer::start();
    let mut connection = server.connect();
    let limiter = limiter(store_on(&server), Algorithm::SortedSetLog, 100).await;
    let mut units =
        || -> Vec<(String, u64)> { connection.zrange_withscores(SET_OF_ADA, 0, -1).unwrap() };
    for _ in 0..9 {
        let _ = limiter.check("ada").await.unwrap();
    }
    let before = units();
    limiter.admin().credit("ada", 4).await.unwrap();
    assert_eq!(units(), before[..5]);
}

#[tokio::test]
async fn a_credit_of_more_than_a_log_accepts_is_an_error() {
    let server = RedisServer::start();
    for (_, algorithm) in algorithms() {
        let quota = Quota::per_day(1_000_000).with_algorithm(algorithm);
        let limiter = RateLimiter::new(store_on(&server), quota);
        let outcome = limiter.admin().credit("ada", 100_001).await;
        let refused = is_log(algorithm).then_some(ErrorKind::CostTooLarge);
        assert_eq!(
            outcome.err().map(|error| error.kind()),
            refused,
            "{algorithm:?}"
        );
    }
}
