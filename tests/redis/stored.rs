//! What Redis stores: the bytes of each value, how many they are, how long they live, and bytes that are no value.

use std::time::Duration;

use futures_util::future::join_all;
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use redis::{Commands, Connection};
use tollgate::store::TestClock;
use tollgate::{Algorithm, ErrorKind, Quota, RateLimiter, RedisStore};

use crate::state::describe;
use crate::support::cases::some_or_all;
use crate::support::costs::{algorithms, memory_of};
use crate::support::redis_server::{RedisServer, run, times_to_live};
use crate::support::stored::{HEADER, RUN, double, double_at, name_of, seconds, store_log};
use crate::support::{runtime, store_on};

const ROW: &str = "tollgate:v3:{default,ada}";
const LOG: &str = "tollgate:v3:{default,ada}:log";

const SECOND: Duration = Duration::from_secs(1);
const YEAR: Duration = Duration::from_secs(366 * 86_400);

fn value(connection: &mut Connection, name: &str) -> Vec<u8> {
    connection.get(name).unwrap()
}

/// The units of each quota that count.
async fn used(limiter: &RateLimiter) -> Vec<u32> {
    let looked = limiter.peek("ada").await.unwrap();
    looked.quotas().map(|quota| quota.used()).collect()
}

#[tokio::test]
async fn the_bytes_of_a_log_and_of_a_row_are_those_that_are_documented() {
    let server = RedisServer::start();
    let mut connection = server.connect();
    let minute = Duration::from_secs(60);
    let quotas = [
        Quota::new(10, minute),
        Quota::new(20, minute).with_algorithm(Algorithm::FixedWindow),
    ];
    let limiter = RateLimiter::new(store_on(&server), quotas);
    let before = u64::from(seconds(&mut connection)) * 1_000_000;
    let _ = limiter.check_n("ada", 3).await.unwrap();

    let log = value(&mut connection, LOG);
    let time = double_at(&log, HEADER);
    assert!((before..before + 5_000_000).contains(&time), "{time}");
    // In whole seconds: two windows and a second.
    let expires = (time / 1_000_000 + 121).to_be_bytes();
    let mut expected = expires[4..].to_vec();
    expected.extend([0; 8]);
    expected.push(b'l');
    expected.extend(double(60_000_000));
    expected.extend([0, 0, 0, 10, 0, 0, 0, 0]);
    expected.extend(double(time));
    expected.extend([0, 0, 0, 3]);
    assert_eq!(log, expected);

    let mut expected = expires[4..].to_vec();
    expected.extend(*b"\0\x07f\0\0\x03\x93\x87\0");
    expected.extend(double(time));
    expected.extend(double(time / 60_000_000));
    expected.extend([0, 0, 0, 3]);
    assert_eq!(value(&mut connection, ROW), expected);
}

#[tokio::test]
async fn the_example_describes_what_is_stored() {
    let server = RedisServer::start();
    let mut connection = server.connect();
    let quotas = algorithms().map(|(_, algorithm)| Quota::new(90, YEAR).with_algorithm(algorithm));
    let limiter = RateLimiter::new(store_on(&server), quotas.collect::<Vec<_>>());
    let mut decision = limiter.check_n("ada", 5).await.unwrap();
    decision.refund(2).await.unwrap();
    for (name, algorithm) in algorithms() {
        let key = name_of("{default,ada}", algorithm, YEAR);
        if algorithm == Algorithm::SortedSetLog {
            // `tests/examples/main.rs` runs the example.
            continue;
        }
        let text = describe(&value(&mut connection, &key)).unwrap();
        let parts: &[&str] = match algorithm {
            Algorithm::SlidingLog => &["largest limit 90 in it\n3 units at 1"],
            Algorithm::SlidingBuckets(_) => &["buckets, generation 1", "\n3 units at 1"],
            Algorithm::FixedWindow => &["fixed_window, generation 1", ", count 3\n"],
            Algorithm::SlidingCounter => &["sliding_counter, generation 1", ", previous 0, "],
            _ => &[
                ", flowed in 5, rate 90\n",
                "window 31622400000000 us: 2 given back of 0 to 4\n",
            ],
        };
        for part in [&["expires at 1", "window 31622400000000 us"], parts].concat() {
            assert!(text.contains(part), "{name}: {part} is not in {text}");
        }
    }
    assert_eq!(describe(b"somebody else's"), None);
}

#[tokio::test]
async fn a_quota_added_beside_a_shorter_one_lives_as_long_as_it_counts() {
    let server = RedisServer::start();
    let mut connection = server.connect();
    let day = Duration::from_secs(86_400);
    for (name, algorithm) in algorithms() {
        let shorter = Quota::per_second(99).with_algorithm(algorithm);
        let longer = Quota::per_day(99).with_algorithm(algorithm);
        // Of sorted sets and buckets, each window has a value of its own.
        let [of_short, of_long] =
            [SECOND, day].map(|window| name_of("{default,ada}", algorithm, window));
        let short = RateLimiter::new(store_on(&server), shorter.clone());
        let _ = short.check("ada").await.unwrap();
        let millis: i64 = connection.pttl(&of_short).unwrap();
        assert!((1..=3_000).contains(&millis), "{name}: {millis}");
        let both = RateLimiter::new(store_on(&server), [shorter, longer]);
        let _ = both.check("ada").await.unwrap();
        let mut lives = || connection.pttl::<_, i64>(&of_long).unwrap();
        assert!(lives() > 86_400_000, "{name}");
        // Neither a charge to the short one nor a refund or a credit makes it shorter.
        let mut decision = short.check_n("ada", 2).await.unwrap();
        decision.refund(1).await.unwrap();
        short.admin().credit("ada", 1).await.unwrap();
        assert!(lives() > 86_400_000, "{name}");
        run(&mut connection, &["FLUSHALL"]);
    }
}

#[tokio::test]
async fn a_charge_renews_a_value_that_would_expire_before_its_counts() {
    let server = RedisServer::start();
    let mut connection = server.connect();
    let second = seconds(&mut connection);
    for (name, algorithm) in algorithms() {
        if algorithm == Algorithm::SortedSetLog {
            continue;
        }
        let quota =
            |seconds| Quota::new(99, Duration::from_secs(seconds)).with_algorithm(algorithm);
        let key = name_of("{default,ada}", algorithm, Duration::from_secs(60));
        for quotas in [vec![quota(60)], vec![quota(30), quota(60)]] {
            let limiter = RateLimiter::new(store_on(&server), quotas);
            let _ = limiter.check("ada").await.unwrap();
            // As if a minute and a half had passed.
            let () = connection
                .setrange(&key, 0, &(second + 20).to_be_bytes())
                .unwrap();
            let () = connection.pexpire(&key, 20_000).unwrap();
            let _ = limiter.check("ada").await.unwrap();
            let millis: i64 = connection.pttl(&key).unwrap();
            assert!(millis > 110_000, "{name}: {millis}");
            let stored = value(&mut connection, &key);
            let expires = u32::from_be_bytes(*stored.first_chunk().unwrap());
            assert!(expires > second + 110, "{name}: {expires}");
            assert_eq!(used(&limiter).await[0], 2, "{name}");
            run(&mut connection, &["FLUSHALL"]);
        }
    }
}

#[tokio::test]
async fn quotas_that_a_check_does_not_ask_stay_as_they_are() {
    let server = RedisServer::start();
    let mut connection = server.connect();
    let quotas: Vec<_> = algorithms()
        .map(|(_, algorithm)| Quota::new(90, YEAR).with_algorithm(algorithm))
        .collect();
    let all = RateLimiter::new(store_on(&server), quotas.clone());
    let _ = all.check_n("ada", 5).await.unwrap();
    for (asked, quota) in quotas.iter().enumerate() {
        let one = RateLimiter::new(store_on(&server), quota.clone());
        let mut expected = used(&all).await;
        let mut decision = one.check_n("ada", 3).await.unwrap();
        decision.refund(1).await.unwrap();
        one.admin().credit("ada", 1).await.unwrap();
        expected[asked] += 1;
        assert_eq!(used(&all).await, expected, "{quota:?}");
        // Nor does a reset of one forget the others.
        one.admin().reset("ada").await.unwrap();
        expected[asked] = 0;
        assert_eq!(used(&all).await, expected, "{quota:?}");
    }
    // In another order, with one more and one fewer.
    let mut others: Vec<_> = quotas.into_iter().skip(1).rev().collect();
    others.push(Quota::per_day(9).with_algorithm(Algorithm::FixedWindow));
    let others = RateLimiter::new(store_on(&server), others);
    let before = used(&others).await;
    let _ = others.check("ada").await.unwrap();
    let more: Vec<_> = before.iter().map(|used| used + 1).collect();
    assert_eq!(used(&others).await, more);
    let lives = times_to_live(&mut connection);
    assert!(lives.iter().all(|(_, millis)| *millis > 0), "{lives:?}");
}

#[tokio::test]
async fn units_of_one_charge_are_one_run_and_most_charges_append_one() {
    let server = RedisServer::start();
    let mut connection = server.connect();
    for limit in [1_000, 100_000] {
        let limiter = RateLimiter::new(store_on(&server), Quota::per_hour(limit));
        let _ = limiter.check_n("ada", limit / 10).await.unwrap();
        let before = value(&mut connection, LOG);
        assert_eq!(before.len(), HEADER + RUN);
        for runs in 2..40 {
            let before = value(&mut connection, LOG);
            assert_eq!(
                limiter.check("ada").await.unwrap().used(),
                limit / 10 + runs - 1
            );
            let after = value(&mut connection, LOG);
            assert_eq!(after[..after.len() - RUN], before);
        }
        run(&mut connection, &["FLUSHALL"]);
    }
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
    assert_eq!(value(&mut connection, LOG).len(), HEADER + 5 * RUN);
}

#[tokio::test]
async fn a_refund_of_an_old_unit_of_a_long_log_is_seen_by_all_later_ones() {
    let server = RedisServer::start();
    // A busy machine takes seconds for 300 checks.
    let window = Duration::from_secs(12);
    let limiter = RateLimiter::new(store_on(&server), Quota::new(5_000, window));
    let mut decisions = Vec::new();
    for _ in 0..100 {
        decisions.push(limiter.check("ada").await.unwrap());
    }
    tokio::time::sleep(window / 2).await;
    for _ in 0..200 {
        let _ = limiter.check("ada").await.unwrap();
    }
    decisions[10].refund(1).await.unwrap();
    assert_eq!(used(&limiter).await, [299]);
    tokio::time::sleep(window / 2).await;
    assert_eq!(used(&limiter).await, [200]);
}

/// A store whose clock moves by so many microseconds with each call.
fn store_with_steps(server: &RedisServer, micros: u64) -> RedisStore {
    let start = 1_800_000_000_000_000_u64;
    run(
        &mut server.connect(),
        &["SET", "test:clock", &start.to_string()],
    );
    let clock = format!(
        "local now = redis.call('INCRBY', 'test:clock', '{micros}')\n\
         local now_text = string.format('%.0f', now)\n"
    );
    let store = RedisStore::open(&server.url()).unwrap();
    store
        .with_clock_source(&clock, TestClock::new())
        .deadline(Duration::from_secs(10))
        .refusal_cache(Duration::ZERO)
        .block_list_refresh(Duration::ZERO)
}

#[tokio::test]
async fn a_live_unit_takes_34_bytes_and_48_at_worst() {
    let server = RedisServer::start();
    let mut connection = server.connect();
    for live in [1_000_u32, some_or_all(2_000, 10_000)] {
        let window = 3_600_000_000;
        let step = window / u64::from(live);
        let store = store_with_steps(&server, step);
        let quota = Quota::new(2 * live, Duration::from_micros(window));
        let limiter = RateLimiter::new(store, quota);
        // As many units as count, and from then on each check adds one and one expires.
        let start = 1_800_000_000_000_000;
        let times: Vec<_> = (0..u64::from(live))
            .map(|unit| start + unit * step)
            .collect();
        store_log(&mut connection, LOG, window, 2 * live, &times);
        let _: u64 = connection
            .incr("test:clock", u64::from(live - 1) * step)
            .unwrap();
        let (mut worst, mut sum, mut samples) = (0, 0, 0);
        // Over four trims, because Redis reserves space when a value grows.
        for check in 0..5 * live {
            let decision = limiter.check("ada").await.unwrap();
            assert_eq!(decision.used(), live);
            if check >= live && check % (live / 50) == 0 {
                let bytes = memory_of(&mut connection, LOG);
                (worst, sum, samples) = (worst.max(bytes), sum + bytes, samples + 1);
            }
        }
        let live = u64::from(live);
        let average = sum / samples;
        println!("{live} live units: {average} bytes, at worst {worst}");
        assert!(
            average <= 34 * live && worst <= 48 * live,
            "{live}: {average}, {worst}"
        );
        run(&mut connection, &["FLUSHALL"]);
    }
}

#[tokio::test]
async fn a_key_of_ten_units_with_a_name_of_32_bytes_takes_at_most_480_bytes() {
    let server = RedisServer::start();
    let mut connection = server.connect();
    let limiter = RateLimiter::new(store_on(&server), Quota::per_hour(10));
    for _ in 0..10 {
        let _ = limiter.check("client").await.unwrap();
    }
    let keys = times_to_live(&mut connection);
    assert_eq!(keys.len(), 1);
    assert_eq!(keys[0].0.len(), 32, "{keys:?}");
    let bytes = memory_of(&mut connection, &keys[0].0);
    println!("{bytes} bytes");
    assert!(bytes <= 480, "{bytes} bytes");
}

#[tokio::test]
async fn a_long_window_that_was_asked_once_makes_no_log_longer_than_twice_its_largest_limit() {
    let server = RedisServer::start();
    let mut connection = server.connect();
    let large = some_or_all(500, 2_000);
    for (daily, limit) in [(10, 100), (large, 100), (10, large)] {
        // Half as many again as are admitted.
        let step = 1_000_000 / u64::from(limit) * 2 / 3;
        let store = store_with_steps(&server, step);
        let day = RateLimiter::new(store.clone(), Quota::per_day(daily));
        let second = RateLimiter::new(store, Quota::per_second(limit));
        let _ = day.check("ada").await.unwrap();
        let mut longest = 0;
        for _ in 0..8 * (daily + limit) {
            let decision = second.check("ada").await.unwrap();
            assert!(decision.used() <= limit);
            let length: usize = connection.strlen(LOG).unwrap();
            longest = longest.max((length - HEADER) / RUN);
        }
        println!("{daily}/day once, then {limit}/s: at most {longest} runs");
        let largest = usize::try_from(daily.max(limit)).unwrap();
        assert!(
            longest <= 2 * largest + 2 * usize::try_from(daily.min(limit)).unwrap() + 2,
            "{daily}/day once, then {limit}/s: {longest} runs"
        );
        // The longer window still refuses.
        assert!(!day.check("ada").await.unwrap().is_allowed());
        run(&mut connection, &["FLUSHALL"]);
    }
}

/// A value that a script has written, changed at random, or bytes of somebody else.
fn spoiled(values: Vec<Vec<u8>>) -> impl Strategy<Value = Vec<u8>> {
    let changes = prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..6);
    let length = prop_oneof![4 => Just(None), 1 => any::<prop::sample::Index>().prop_map(Some)];
    let changed =
        (prop::sample::select(values), changes, length).prop_map(|(mut value, changes, length)| {
            for (at, byte) in changes {
                let at = at.index(value.len());
                value[at] = byte;
            }
            if let Some(length) = length {
                value.truncate(length.index(value.len()));
            }
            value
        });
    // The lengths of a log of one run and of rows.
    let lengths = prop::sample::select(vec![1, 11, 13, 33, 37, 41, 49, 53, 300]);
    let foreign = lengths.prop_flat_map(|length| prop::collection::vec(any::<u8>(), length));
    prop_oneof![3 => changed, 1 => foreign]
}

#[test]
fn any_bytes_fail_their_own_entry_and_never_the_call_or_other_entries() {
    const KEYS: usize = 4;
    let server = RedisServer::start();
    let mut connection = server.connect();
    let runtime = runtime();
    let (mut failed, mut decided) = (0, 0);
    for (name, algorithm) in algorithms() {
        if algorithm == Algorithm::SortedSetLog {
            // Its values are no text, which `tests/failures/redis.rs` covers.
            continue;
        }
        for limit in [9, 5_000] {
            let quotas = [
                vec![Quota::new(limit, YEAR).with_algorithm(algorithm)],
                vec![
                    Quota::new(limit, YEAR).with_algorithm(algorithm),
                    Quota::new(limit, YEAR / 2).with_algorithm(algorithm),
                ],
            ];
            let limiters =
                quotas.map(|quotas| RateLimiter::new(store_on(&server), quotas).name("default"));
            let own = name_of("{default,ada}", algorithm, YEAR);
            let mut values = Vec::new();
            for limiter in &limiters {
                run(&mut connection, &["FLUSHALL"]);
                for _ in 0..3 {
                    let mut decision = runtime.block_on(limiter.check_n("ada", 2)).unwrap();
                    runtime.block_on(decision.refund(1)).unwrap();
                }
                values.push(value(&mut connection, &own));
            }
            let all = prop::collection::vec(spoiled(values), KEYS);
            let mut runner = proptest::test_runner::TestRunner::deterministic();
            for round in 0..60 {
                let limiter = &limiters[round % 2];
                let spoiled = all.new_tree(&mut runner).unwrap().current();
                for (key, bytes) in spoiled.iter().enumerate() {
                    let own = name_of(&format!("{{default,bad{key}}}"), algorithm, YEAR);
                    let () = connection.set_ex(own, bytes, 1_000).unwrap();
                }
                // The first is sent at once, the others together.
                let names = (0..KEYS).flat_map(|key| {
                    let good = format!("good{name}{limit}{key}");
                    [good, format!("bad{key}")]
                });
                let names: Vec<_> = std::iter::once("first".to_owned()).chain(names).collect();
                let cost = u32::from(round % 3 > 0);
                let answers = runtime.block_on(join_all(
                    names.iter().map(|key| limiter.check_n(key.as_str(), cost)),
                ));
                for (key, answer) in names.iter().zip(answers) {
                    match answer {
                        Ok(_) if key.starts_with("bad") => decided += 1,
                        Err(error) if key.starts_with("bad") => {
                            let kinds = [ErrorKind::Misconfigured, ErrorKind::InvalidReply];
                            assert!(kinds.contains(&error.kind()), "{name}: {error}");
                            failed += 1;
                        }
                        answer => drop(answer.unwrap_or_else(|error| {
                            panic!("{name}, {limit}, {key}: {error}: {spoiled:?}")
                        })),
                    }
                }
                // A change of such a key may fail, and never with an error of the script itself.
                let changed = runtime.block_on(async { limiter.admin().credit("bad0", 1).await });
                if let Err(error) = changed {
                    let text = error.to_string();
                    assert!(text.contains("WRONGTYPE"), "{name}: {text}: {spoiled:?}");
                }
                runtime.block_on(limiter.admin().reset("bad1")).ok();
            }
            let good = format!("good{name}{limit}0");
            let charged = runtime.block_on(limiters[1].peek(good.as_str())).unwrap();
            // Of each three rounds, one only looks.
            let expected = if limit == 9 { 9 } else { 40 };
            assert_eq!(charged.used(), expected, "{name}");
        }
    }
    println!("{failed} entries failed, {decided} were decided");
    assert!(failed > 500 && decided > 100);
}
