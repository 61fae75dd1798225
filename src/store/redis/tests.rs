//! Several entries in one call, and several checks in one entry, on a real server.

use std::time::Duration;

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use redis::{Connection, ConnectionLike};

use super::protocol::KeyNames;
use super::protocol::{BatchEntry, EntryReply};
use super::script::Scripts;
use super::test_server::{RedisServer, run};
use crate::decision::Answer;
use crate::decision::QuotaAnswer;
use crate::error::ErrorKind;
use crate::key::Key;
use crate::quota::{Algorithm, Quota, Quotas};
use crate::store::Check;
use crate::store::requests::Subject;

const CLOCK: &str = include_str!("../../../tests/support/clock.lua");

const ALGORITHMS: [Algorithm; 6] = [
    Algorithm::SlidingLog,
    Algorithm::SortedSetLog,
    Algorithm::SlidingCounter,
    Algorithm::SlidingBuckets(60),
    Algorithm::FixedWindow,
    Algorithm::Gcra,
];

/// What is asked in an entry: key, quotas, cost and count.
type Asked<'a> = (&'a str, &'a Quotas, u32, u32);

/// What one call says of its entries.
fn decided(
    scripts: &Scripts,
    connection: &mut Connection,
    asked: &[Asked<'_>],
) -> Vec<Result<EntryReply, ErrorKind>> {
    let limiter = Key::from("l");
    let keys: Vec<Key> = asked.iter().map(|(key, ..)| Key::from(*key)).collect();
    let entries = asked.iter().zip(&keys);
    let entries: Vec<BatchEntry<'_>> = entries
        .map(|(&(_, quotas, cost, count), key)| {
            let limiter = &limiter;
            let subject = Subject {
                limiter,
                key,
                quotas,
            };
            BatchEntry {
                check: Check { subject, cost },
                count,
            }
        })
        .collect();
    let call = super::protocol::encode_checks(&scripts.decide, &KeyNames::default(), &entries);
    let reply = connection.req_command(&scripts.decide.by_text(&call));
    let asked = asked
        .iter()
        .map(|&(_, quotas, cost, count)| (quotas, cost, count));
    let granted = super::protocol::decode_replies(reply.unwrap(), asked).unwrap();
    let granted = granted.into_iter();
    granted
        .map(|granted| granted.map_err(|error| error.kind()))
        .collect()
}

/// The answers to all checks of an entry, one by one.
fn answers(granted: &EntryReply, cost: u32, count: u32) -> Vec<Answer> {
    let looked = cost == 0 && granted.refused.is_none();
    let last = if looked {
        granted.admitted.first()
    } else {
        granted.refused.as_ref()
    };
    let mut answers = granted.admitted.to_vec();
    if let Some(last) = last {
        answers.resize(count as usize, last.clone());
    }
    answers
}

/// The units used after the only check of each entry, of cost and key.
fn used(server: &RedisServer, checks: &[(&str, &Quotas, u32)]) -> Vec<Result<Vec<u32>, ErrorKind>> {
    let asked: Vec<Asked<'_>> = checks
        .iter()
        .map(|&(key, quotas, cost)| (key, quotas, cost, 1))
        .collect();
    let decided = decided(&Scripts::shared(), &mut server.connect(), &asked);
    let used = decided.into_iter().zip(checks).map(|(granted, check)| {
        let answer = answers(&granted?, check.2, 1).remove(0);
        Ok(answer.quotas().iter().map(QuotaAnswer::used).collect())
    });
    used.collect()
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
fn an_entry_that_fails_leaves_its_neighbours_alone() {
    let server = RedisServer::start();
    let mut connection = server.connect();
    let broken = "tollgate:v1:{l,bob}:gcra:3600000000";
    run(&mut connection, &["RPUSH", broken, "x"]);
    let meter = Quota::per_hour(5).algorithm(Algorithm::Gcra);
    let quotas = Quotas::from([Quota::per_hour(2), meter]);
    let asked = [
        ("ada", &quotas, 1, 1),
        ("bob", &quotas, 1, 3),
        ("eve", &quotas, 1, 3),
        ("bob", &quotas, 0, 2),
        ("eve", &quotas, 1, 1),
    ];
    let decided = decided(&Scripts::shared(), &mut connection, &asked);
    let admitted = decided
        .into_iter()
        .map(|granted| Ok(granted?.admitted.len()));
    let broken = Err(ErrorKind::Misconfigured);
    assert_eq!(
        admitted.collect::<Vec<_>>(),
        [Ok(1), broken, Ok(2), broken, Ok(0)]
    );
    // Nothing was charged where a count could not be read.
    let lists: usize = ::redis::cmd("EXISTS")
        .arg("tollgate:v1:{l,bob}:log:3600000000")
        .query(&mut connection)
        .unwrap();
    assert_eq!(lists, 0);
}

#[test]
fn a_full_server_fails_only_the_checks_that_would_write() {
    let server = RedisServer::start();
    let mut connection = server.connect();
    for algorithm in ALGORITHMS {
        run(&mut connection, &["CONFIG", "SET", "maxmemory", "0"]);
        run(&mut connection, &["FLUSHALL"]);
        let year = Duration::from_secs(366 * 86_400);
        let quotas = Quotas::from(Quota::new(1, year).algorithm(algorithm));
        assert_eq!(used(&server, &[("ada", &quotas, 1)]), [Ok(vec![1])]);
        run(&mut connection, &["CONFIG", "SET", "maxmemory", "1"]);
        let checks = ["bob", "ada", "eve"].map(|key| (key, &quotas, 1));
        let full = Err(ErrorKind::Full);
        let expected = [full.clone(), Ok(vec![1]), full];
        assert_eq!(used(&server, &checks), expected, "{algorithm:?}");
    }
}

#[test]
fn a_large_entry_is_granted_as_far_as_it_fits() {
    let server = RedisServer::start();
    let mut connection = server.connect();
    // So long that nothing returns meanwhile.
    let year = Duration::from_secs(366 * 86_400);
    for algorithm in [
        Algorithm::SlidingLog,
        Algorithm::SortedSetLog,
        Algorithm::Gcra,
    ] {
        let quotas = Quotas::from(Quota::new(99_990, year).algorithm(algorithm));
        let mut granted = |asked: Asked<'_>| {
            let granted = decided(&Scripts::shared(), &mut connection, &[asked]).remove(0);
            granted.map(|granted| (granted.admitted.len(), granted.refused.is_some()))
        };
        assert_eq!(granted(("ada", &quotas, 7, 1_143)), Ok((1_143, false)));
        assert_eq!(granted(("ada", &quotas, 9_000, 11)), Ok((10, true)));
        assert_eq!(granted(("ada", &quotas, 1, 100_000)), Ok((1_989, true)));
        // More than an entry may ask for.
        assert_eq!(
            granted(("bob", &quotas, 1, 100_001)),
            Err(ErrorKind::Misconfigured)
        );
        assert_eq!(granted(("bob", &quotas, 0, u32::MAX)), Ok((1, false)));
    }
    let length: usize = ::redis::cmd("LLEN")
        .arg("tollgate:v1:{l,ada}:log:31622400000000")
        .query(&mut connection)
        .unwrap();
    assert_eq!(length, 99_990);
}

/// How many commands the server has run since this was asked last, one by one.
fn commands(connection: &mut Connection) -> Vec<String> {
    let info: String = ::redis::cmd("INFO")
        .arg("commandstats")
        .query(connection)
        .unwrap();
    run(connection, &["CONFIG", "RESETSTAT"]);
    let calls = info.lines().filter_map(|line| line.split(',').next());
    let calls = calls.filter(|calls| !calls.contains("_info") && !calls.contains("_config"));
    calls.map(str::to_owned).collect()
}

#[test]
fn an_entry_of_many_checks_runs_the_commands_of_one() {
    let server = RedisServer::start();
    let mut connection = server.connect();
    for algorithm in ALGORITHMS {
        let year = Duration::from_secs(366 * 86_400);
        let quotas = Quotas::from(Quota::new(2_000, year).algorithm(algorithm));
        let mut commands_of = |key, count| {
            let _ = commands(&mut connection);
            let asked = (key, &quotas, 1, count);
            let granted = decided(&Scripts::shared(), &mut connection, &[asked]).remove(0);
            assert_eq!(granted.unwrap().admitted.len(), count as usize);
            commands(&mut connection)
        };
        for check in ["first", "second", "third"] {
            let (one, many) = (commands_of("ada", 1), commands_of("bob", 400));
            assert!(one.len() > 3, "{one:?}");
            // The oldest unit of a log that holds one is the newest: a command is spared.
            if check != "second" {
                assert_eq!(one, many, "{check} entry of {algorithm:?}");
            }
        }
    }
}

/// The quotas that a key of the law below is checked against, by turns.
fn plans(algorithm: Algorithm) -> Vec<Quotas> {
    let second = Duration::from_secs(1);
    let per = |limit, window| Quota::new(limit, window).algorithm(algorithm);
    vec![
        Quotas::from(per(9, second)),
        Quotas::from(per(4, second)),
        Quotas::from(per(0, second)),
        Quotas::from([per(12, second), per(7, second), per(30, 4 * second)]),
        Quotas::from([
            Quota::new(11, second),
            per(8, second),
            Quota::new(9, second).algorithm(Algorithm::Gcra),
        ]),
    ]
}

/// All that is stored for a key, with the ends of its times to live, but for the key's name.
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
  stored[#stored + 1] = name .. ' ' .. deadline .. ': ' .. table.concat(what, ' ')
end
table.sort(stored)
return stored
";

fn stored(connection: &mut Connection, key: &str) -> Vec<String> {
    let mut command = ::redis::cmd("EVAL");
    command.arg(STORED).arg(0).arg(key);
    command.query(connection).unwrap()
}

/// Steps of a time in microseconds, forth and back, and what is asked then: plan, cost and count.
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

/// An entry of n and n entries of one, at one time: the same answers, and the same is stored.
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
    let law = |steps: Vec<(i64, usize, u32, u32)>| {
        let connection = &mut *connection.borrow_mut();
        run(connection, &["FLUSHALL"]);
        let mut now = 1_800_000_000_000_000_i64;
        for (step, plan, cost, count) in steps {
            now += step;
            run(connection, &["SET", "test:clock", &now.to_string()]);
            let quotas = &plans[plan];
            let mut asked = vec![("joined", quotas, cost, count)];
            asked.extend((0..count).map(|_| ("single", quotas, cost, 1)));
            let mut decided = decided(&scripts, connection, &asked).into_iter();
            let joined = decided.next().unwrap().unwrap();
            let joined = answers(&joined, cost, count);
            let single = decided.map(|granted| answers(&granted.unwrap(), cost, 1).remove(0));
            prop_assert_eq!(joined, single.collect::<Vec<_>>());
            let kept = [stored(connection, "joined"), stored(connection, "single")];
            prop_assert_eq!(&kept[0], &kept[1]);
        }
        Ok(())
    };
    TestRunner::new(config).run(&steps(), law).unwrap();
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
