//! Tests on a real server: several entries in one call, several checks in one entry; and shared
//! connections.

use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use redis::{Connection, ConnectionLike};

use super::protocol::{BatchEntry, EntryAnswers, HashTags, KeyNames, ServerClock};
use super::redis_store::RedisStore;
use super::script::Scripts;
use super::test_server::{RedisServer, run};
use crate::decision::{Answers, Holding, QuotaAnswer};
use crate::error::ErrorKind;
use crate::key::Key;
use crate::quota::{Algorithm, Quota, Quotas, Share};
use crate::store::Check;
use crate::store::requests::{OwnedCheck, Subject};

#[path = "../../../tests/support/state.rs"]
mod state;

const CLOCK: &str = include_str!("../../../tests/support/clock.lua");

/// The key, quotas, cost and count of an entry.
type Entry<'a> = (&'a str, &'a Quotas, u32, u32);

fn decide(
    scripts: &Scripts,
    connection: &mut Connection,
    entries: &[Entry<'_>],
) -> Vec<Result<EntryAnswers, ErrorKind>> {
    let limiter = Key::from("l");
    let keys: Vec<Key> = entries.iter().map(|(key, ..)| Key::from(*key)).collect();
    let levels: Vec<[OwnedCheck; 1]> = entries
        .iter()
        .zip(&keys)
        .map(|(&(_, quotas, cost, _), key)| {
            [Subject::new(&limiter, key, quotas).check(cost).owned()]
        })
        .collect();
    let batch: Vec<BatchEntry<'_>> = entries
        .iter()
        .zip(&levels)
        .map(|(&(.., count), levels)| BatchEntry {
            levels,
            count,
            may_repeat: true,
        })
        .collect();
    call(scripts, connection, &batch)
}

fn call(
    scripts: &Scripts,
    connection: &mut Connection,
    batch: &[BatchEntry<'_>],
) -> Vec<Result<EntryAnswers, ErrorKind>> {
    let (script, call, plan) = super::protocol::encode_checks(
        scripts,
        &KeyNames::default(),
        &ServerClock::default(),
        batch,
    );
    let reply = connection.req_command(&script.by_text(&call));
    let reply = match reply.and_then(::redis::Value::extract_error) {
        Ok(reply) => reply,
        Err(error) => {
            let server = &super::protocol::ServerName::UNKNOWN;
            let kind = {
                use super::protocol::errors::{Handshake, from_redis};
                from_redis(error, Handshake::Unknown, server).kind()
            };
            return vec![Err(kind); batch.len()];
        }
    };
    let server = &super::protocol::ServerName::UNKNOWN;
    let replies = super::protocol::decode_replies(reply, server, batch, &plan).unwrap();
    replies
        .into_iter()
        .map(|reply| reply.map_err(|error| error.kind()))
        .collect()
}

fn admitted(answers: &[Answers]) -> usize {
    answers
        .iter()
        .filter(|answers| answers.are_admitted())
        .count()
}

fn used_in(answers: &Answers) -> Vec<u32> {
    answers
        .iter()
        .flat_map(|answer| answer.quotas())
        .map(QuotaAnswer::used)
        .collect()
}

/// Returns the units used after the only check of each entry.
fn used(server: &RedisServer, checks: &[(&str, &Quotas, u32)]) -> Vec<Result<Vec<u32>, ErrorKind>> {
    let entries: Vec<Entry<'_>> = checks
        .iter()
        .map(|&(key, quotas, cost)| (key, quotas, cost, 1))
        .collect();
    decide(&Scripts::shared(), &mut server.connect(), &entries)
        .into_iter()
        .map(|reply| Ok(used_in(&reply?[0])))
        .collect()
}

#[test]
fn checks_of_one_call_see_each_other() {
    let server = RedisServer::start();
    let quotas = Quotas::from([Quota::per_hour(5), Quota::per_minute(9)]);
    let check = ("ada", &quotas, 2);
    let answers = used(&server, &[check, check, check, ("bob", &quotas, 1)]);
    // The third is refused: neither quota is charged.
    let expected = [[2, 2], [4, 4], [4, 4], [1, 1]];
    assert_eq!(answers, expected.map(|used| Ok(used.to_vec())));
}

#[test]
fn refused_checks_of_several_levels_see_the_charges_between_them() {
    let server = RedisServer::start();
    let mut connection = server.connect();
    for algorithm in Algorithm::ALL.iter().copied() {
        run(&mut connection, &["FLUSHALL"]);
        let first = check_users(&server, algorithm, &["ada"]);
        assert_eq!(first, [(true, vec![1, 1])], "{algorithm:?}");
        // The tenant has no room for all of them, so they are decided one by one.
        let expected = [
            (false, vec![1, 1]),
            (true, vec![1, 2]),
            (false, vec![1, 2]),
            (true, vec![1, 3]),
            (false, vec![0, 3]),
            (false, vec![1, 3]),
        ];
        let users = ["ada", "bob", "ada", "cem", "dan", "ada"];
        let found = check_users(&server, algorithm, &users);
        assert_eq!(found, expected, "{algorithm:?}");
    }
}

/// Checks one unit of each user, of one, and of their tenant, of three. Returns whether it was admitted, and the units used.
fn check_users(
    server: &RedisServer,
    algorithm: Algorithm,
    users: &[&str],
) -> Vec<(bool, Vec<u32>)> {
    let user_quotas = Quotas::from(Quota::per_hour(1).with_algorithm(algorithm));
    let tenant_quotas = Quotas::from(Quota::per_hour(3).with_algorithm(algorithm));
    let entries: Vec<_> = users
        .iter()
        .map(|user| [level(user, &user_quotas), level("acme", &tenant_quotas)])
        .collect();
    let batch: Vec<_> = entries
        .iter()
        .map(|levels| BatchEntry {
            levels,
            count: 1,
            may_repeat: true,
        })
        .collect();
    call(&Scripts::shared(), &mut server.connect(), &batch)
        .into_iter()
        .map(|answers| answers.unwrap().remove(0))
        .map(|answers| (answers.are_admitted(), used_in(&answers)))
        .collect()
}

fn level(key: &str, quotas: &Quotas) -> OwnedCheck {
    let key = Key::from(key);
    Subject::new(&Key::from("l"), &key, quotas).check(1).owned()
}

#[test]
fn an_entry_that_fails_leaves_its_neighbours_alone() {
    let server = RedisServer::start();
    let mut connection = server.connect();
    let broken = "tollgate:v3:{l,bob}:log";
    run(&mut connection, &["RPUSH", broken, "x"]);
    let set = Quota::per_hour(5).with_algorithm(Algorithm::SortedSetLog);
    let quotas = Quotas::from([set, Quota::per_hour(2)]);
    let entries = [
        ("ada", &quotas, 1, 1),
        ("bob", &quotas, 1, 3),
        ("eve", &quotas, 1, 3),
        ("bob", &quotas, 0, 2),
        ("eve", &quotas, 1, 1),
    ];
    let replies = decide(&Scripts::shared(), &mut connection, &entries);
    let admitted: Vec<_> = replies
        .into_iter()
        .map(|reply| Ok(admitted(&reply?)))
        .collect();
    let broken = Err(ErrorKind::Misconfigured);
    assert_eq!(admitted, [Ok(1), broken, Ok(2), broken, Ok(0)]);
    // No count was charged beside one that could not be read.
    let sets: usize = ::redis::cmd("EXISTS")
        .arg("tollgate:v3:{l,bob}:set:3600000000")
        .query(&mut connection)
        .unwrap();
    assert_eq!(sets, 0);
}

#[test]
fn a_full_server_fails_only_the_checks_that_would_write() {
    let server = RedisServer::start();
    let mut connection = server.connect();
    for algorithm in Algorithm::ALL.iter().copied() {
        run(&mut connection, &["CONFIG", "SET", "maxmemory", "0"]);
        run(&mut connection, &["FLUSHALL"]);
        let year = Duration::from_secs(366 * 86_400);
        let quotas = Quotas::from(Quota::new(1, year).with_algorithm(algorithm));
        assert_eq!(used(&server, &[("ada", &quotas, 1)]), [Ok(vec![1])]);
        run(&mut connection, &["CONFIG", "SET", "maxmemory", "1"]);
        for (key, expected) in [("bob", Err(ErrorKind::Full)), ("ada", Ok(vec![1]))] {
            let found = used(&server, &[(key, &quotas, 1)]);
            assert_eq!(found, [expected], "{algorithm:?}");
        }
    }
}

#[test]
fn a_large_entry_is_admitted_up_to_the_limit() {
    let server = RedisServer::start();
    let mut connection = server.connect();
    // Long enough that no unit returns meanwhile.
    let year = Duration::from_secs(366 * 86_400);
    for algorithm in [
        Algorithm::SlidingLog,
        Algorithm::SortedSetLog,
        Algorithm::Gcra,
    ] {
        let quotas = Quotas::from(Quota::new(99_990, year).with_algorithm(algorithm));
        let mut checked = |entry: Entry<'_>| {
            let reply = decide(&Scripts::shared(), &mut connection, &[entry]).remove(0);
            reply.map(|answers| (admitted(&answers), answers.len()))
        };
        assert_eq!(checked(("ada", &quotas, 7, 1_143)), Ok((1_143, 1_143)));
        assert_eq!(checked(("ada", &quotas, 9_000, 11)), Ok((10, 11)));
        assert_eq!(checked(("ada", &quotas, 1, 100_000)), Ok((1_989, 100_000)));
        assert_eq!(
            checked(("bob", &quotas, 0, 100_000)),
            Ok((100_000, 100_000))
        );
    }
    // The units of each charge are one run.
    let packed: Vec<u8> = ::redis::cmd("GET")
        .arg("tollgate:v3:{l,ada}:log")
        .query(&mut connection)
        .unwrap();
    assert!(packed.len() < 150, "{} bytes", packed.len());
}

/// Returns how often the server has run each command since the last call of this function.
fn commands(connection: &mut Connection) -> Vec<String> {
    let info: String = ::redis::cmd("INFO")
        .arg("commandstats")
        .query(connection)
        .unwrap();
    run(connection, &["CONFIG", "RESETSTAT"]);
    info.lines()
        .filter_map(|line| line.split(',').next())
        .filter(|calls| !calls.contains("_info") && !calls.contains("_config"))
        .map(str::to_owned)
        .collect()
}

#[test]
fn an_entry_of_many_checks_runs_the_commands_of_one() {
    let server = RedisServer::start();
    let mut connection = server.connect();
    for algorithm in Algorithm::ALL.iter().copied() {
        let year = Duration::from_secs(366 * 86_400);
        let quotas = Quotas::from(Quota::new(2_000, year).with_algorithm(algorithm));
        for check in ["first", "second", "third"] {
            let one = commands_to_decide(&mut connection, ("ada", &quotas, 1, 1));
            let many = commands_to_decide(&mut connection, ("bob", &quotas, 1, 400));
            assert!(one.len() > 3, "{one:?}");
            // In a log of one unit, the oldest is the newest: one command less.
            if check != "second" {
                assert_eq!(one, many, "{check} entry of {algorithm:?}");
            }
        }
    }
}

fn commands_to_decide(connection: &mut Connection, entry: Entry<'_>) -> Vec<String> {
    let _ = commands(connection);
    let reply = decide(&Scripts::shared(), connection, &[entry]).remove(0);
    assert_eq!(admitted(&reply.unwrap()), entry.3 as usize);
    commands(connection)
}

/// The quotas that the property below checks a key against, in turn.
fn plans(algorithm: Algorithm) -> Vec<Quotas> {
    let second = Duration::from_secs(1);
    vec![
        Quotas::from(Quota::new(9, second).with_algorithm(algorithm)),
        Quotas::from(Quota::new(4, second).with_algorithm(algorithm)),
        Quotas::from(Quota::new(0, second).with_algorithm(algorithm)),
        Quotas::from([
            Quota::new(12, second).with_algorithm(algorithm),
            Quota::new(7, second).with_algorithm(algorithm),
            Quota::new(30, 4 * second).with_algorithm(algorithm),
        ]),
        Quotas::from([
            Quota::new(11, second),
            Quota::new(8, second).with_algorithm(algorithm),
            Quota::new(9, second).with_algorithm(Algorithm::Gcra),
        ]),
    ]
}

/// Reads all that is stored for a key and when it expires, without the name of the key.
const STORED: &str = r"
local stored = {}
for _, key in ipairs(redis.call('KEYS', '*{l,' .. ARGV[1] .. '}*')) do
  local kind = redis.call('TYPE', key).ok
  local what
  if kind == 'list' then
    what = redis.call('LRANGE', key, 0, -1)
  elseif kind == 'zset' then
    what = redis.call('ZRANGE', key, 0, -1, 'WITHSCORES')
  else
    what = { redis.call('GET', key) }
  end
  local name = string.gsub(key, '.*}', '')
  local deadline = redis.call('HGET', 'test:deadlines', key)
  stored[#stored + 1] = { name .. ' ' .. deadline, table.concat(what, ' ') }
end
table.sort(stored, function(one, other)
  return one[1] < other[1]
end)
return stored
";

/// Describes all that is stored for a key. The same units may be stored in several forms.
fn stored(connection: &mut Connection, key: &str) -> Vec<String> {
    let mut command = ::redis::cmd("EVAL");
    command.arg(STORED).arg(0).arg(key);
    let stored: Vec<(String, Vec<u8>)> = command.query(connection).unwrap();
    let described = stored.into_iter().map(|(name, content)| {
        let text = state::describe(&content).unwrap_or_else(|| format!("{content:?}"));
        format!("{name}: {text}")
    });
    described.collect()
}

/// Steps of the clock in microseconds, forth and back, each with the plan, cost and count of an
/// entry.
fn steps() -> impl Strategy<Value = Vec<(i64, usize, u32, u32)>> {
    let time = prop_oneof![
        4 => 0..300_000_i64,
        2 => Just(0),
        1 => Just(1_000_000),
        1 => 0..9_000_000_i64,
        1 => -1_500_000..0_i64,
    ];
    prop::collection::vec((time, 0..5_usize, 0..4_u32, 1..9_u32), 1..40)
}

/// Compares an entry of n checks with n entries of one check at the same time: answers and stored
/// state.
fn several_checks_as_one_entry_are_the_same(algorithm: Algorithm) {
    let server = RedisServer::start();
    let connection = std::cell::RefCell::new(server.connect());
    let scripts = Scripts::with_clock(CLOCK);
    let plans = plans(algorithm);
    let config = Config {
        cases: 60,
        failure_persistence: None,
        ..Config::default()
    };
    let property = |steps: Vec<(i64, usize, u32, u32)>| {
        let connection = &mut *connection.borrow_mut();
        run(connection, &["FLUSHALL"]);
        let mut now = 1_800_000_000_000_000_i64;
        for (step, plan, cost, count) in steps {
            now += step;
            run(connection, &["SET", "test:clock", &now.to_string()]);
            let quotas = &plans[plan];
            let mut entries = vec![("joined", quotas, cost, count)];
            entries.extend((0..count).map(|_| ("single", quotas, cost, 1)));
            let mut replies = decide(&scripts, connection, &entries).into_iter();
            let joined = replies.next().unwrap().unwrap();
            let single = replies.map(|reply| reply.unwrap().remove(0));
            prop_assert_eq!(joined, single.collect::<EntryAnswers>());
            let [joined, single] = ["joined", "single"].map(|key| stored(connection, key));
            prop_assert_eq!(joined, single);
        }
        Ok(())
    };
    TestRunner::new(config).run(&steps(), property).unwrap();
}

mod several_checks_as_one_entry {
    use super::several_checks_as_one_entry_are_the_same;
    use crate::quota::Algorithm;

    #[test]
    fn sliding_log() {
        several_checks_as_one_entry_are_the_same(Algorithm::SlidingLog);
    }

    #[test]
    fn sorted_set_log() {
        several_checks_as_one_entry_are_the_same(Algorithm::SortedSetLog);
    }

    #[test]
    fn sliding_counter() {
        several_checks_as_one_entry_are_the_same(Algorithm::SlidingCounter);
    }

    #[test]
    fn sliding_buckets() {
        several_checks_as_one_entry_are_the_same(Algorithm::SlidingBuckets(7));
    }

    #[test]
    fn fixed_window() {
        several_checks_as_one_entry_are_the_same(Algorithm::FixedWindow);
    }

    #[test]
    fn gcra() {
        several_checks_as_one_entry_are_the_same(Algorithm::Gcra);
    }
}

#[tokio::test]
async fn stores_of_one_server_share_its_connection_whatever_their_deadlines() {
    let store = RedisStore::open("redis://127.0.0.1:1").unwrap();
    let other = store.fork().deadline(Duration::from_secs(5));
    let [one, other] = [&store, &other].map(|store| &store.shared.settings.deployment);
    assert!(Arc::ptr_eq(one, other));
}

/// Checks one unit of a key at a time that the call tells. Returns the time of the answer.
fn check_at(
    connection: &mut Connection,
    names: &KeyNames,
    check: Check<'_>,
    server_time: u64,
) -> u64 {
    let scripts = Scripts::shared();
    let levels = [check.owned()];
    let batch = [BatchEntry::only(&levels)];
    let clock = ServerClock::default();
    let (script, call, plan) = super::protocol::encode_checks(&scripts, names, &clock, &batch);
    let call = script.by_text(&script.at_time(&call, server_time));
    let reply = connection.req_command(&call).unwrap().extract_error();
    let server = &super::protocol::ServerName::UNKNOWN;
    let replies = super::protocol::decode_replies(reply.unwrap(), server, &batch, &plan).unwrap();
    let answers = replies.into_iter().next().unwrap().unwrap().remove(0);
    answers.iter().next().unwrap().time()
}

#[test]
fn a_call_is_never_earlier_than_the_newest_value_that_it_reads() {
    const T: u64 = 1_800_000_004_321_987;
    let server = RedisServer::start();
    let mut connection = server.connect();
    let shares = [Share::of("one").reserve(2), Share::of("other")];
    let holding = Holding::new([7; 16], 1, 0, 1, Duration::from_secs(15));
    let of = |algorithm| Quota::per_minute(50).with_algorithm(algorithm);
    let [log, buckets] = [Algorithm::SlidingLog, Algorithm::SlidingBuckets(600)].map(of);
    let quotas = [
        (log.clone(), T),
        (Quota::per_minute(5_000), T),
        (log.clone().shares(shares.clone()), T),
        (log.soft(), T),
        (buckets.clone(), T - T % 100_000),
        (buckets.shares(shares), T - T % 100_000),
        (of(Algorithm::SortedSetLog), T),
        (of(Algorithm::Gcra), T),
        (of(Algorithm::Gcra).soft(), T),
        // The window of the newest unit began then.
        (
            Quota::new(50, Duration::from_secs(2)).with_algorithm(Algorithm::SlidingCounter),
            T - T % 2_000_000,
        ),
        (Quota::in_flight(5), T),
    ];
    let tags = HashTags::Shared(std::num::NonZeroU16::MIN);
    for names in [
        KeyNames::default(),
        KeyNames::default().with_hash_tags(tags),
    ] {
        // Names of limiters that look like those of values.
        for limiter in ["jobs", "log", "in_flight"].map(Key::from) {
            run(&mut connection, &["FLUSHALL"]);
            for (number, (quota, newest)) in quotas.iter().enumerate() {
                let key = Key::from(format!("{number}"));
                let quotas = Quotas::from(quota.clone());
                let check = Subject::new(&limiter, &key, &quotas)
                    .check(1)
                    .with_holding(&holding);
                let mut checked_at =
                    |server_time| check_at(&mut connection, &names, check, server_time);
                assert_eq!(checked_at(T), T, "{quota}");
                // Later than the newest.
                assert_eq!(checked_at(T + 1), T + 1, "{quota}");
                let newest = if *newest == T { T + 1 } else { *newest };
                for behind in [1, 5_000_000, 999_999_999] {
                    assert_eq!(
                        checked_at(newest - behind),
                        newest,
                        "{quota}, {behind} behind"
                    );
                }
                // The clock of the server has stepped back.
                let stepped = newest - 1_000_000_000;
                assert_eq!(checked_at(stepped), stepped, "{quota}");
            }
        }
    }
}

#[test]
fn foreign_values_do_not_change_the_time_that_a_call_tells() {
    const T: u64 = 1_800_000_000_000_000;
    let server = RedisServer::start();
    let mut connection = server.connect();
    let [limiter, key] = ["l", "a"].map(Key::from);
    for algorithm in Algorithm::ALL {
        let quotas = Quotas::from(Quota::per_minute(50).with_algorithm(*algorithm));
        let check = Subject::new(&limiter, &key, &quotas).check(1);
        let names = KeyNames::default();
        for bytes in ["", "x", "lllllllllllllllllllllllllllllllllllllllllllll"] {
            for suffix in ["", ":log", ":buckets:1000000", ":set:60000000"] {
                let name = format!("tollgate:v3:{{l,a}}{suffix}");
                run(&mut connection, &["SET", &name, bytes]);
            }
            let scripts = Scripts::shared();
            let levels = [check.owned()];
            let batch = [BatchEntry::only(&levels)];
            let clock = ServerClock::default();
            let (script, call, _) =
                super::protocol::encode_checks(&scripts, &names, &clock, &batch);
            let call = script.by_text(&script.at_time(&call, T));
            // The entry fails, and the call does not.
            let reply = connection.req_command(&call).unwrap().extract_error();
            assert!(reply.is_ok(), "{algorithm}, {bytes:?}: {reply:?}");
        }
    }
}
