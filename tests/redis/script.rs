//! The state that the script leaves in Redis, and its cost.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::time::Duration;

use redis::Commands;
use tollgate::store::protocol::Subject;
use tollgate::{Algorithm, ErrorKind, Key, Quota, Quotas, RateLimiter, RedisStore, Store};

use crate::support::ask;
use crate::support::costs::{algorithms, calls, forget_calls};
use crate::support::redis_server::{RedisServer, run, times_to_live};
use crate::support::stored::{HEADER, RUN, name_of, store_log};
use crate::support::timeless::TimelessServer;
use crate::support::{holds_for_any, runtime, store_on};

const HOUR: Duration = Duration::from_secs(3_600);

#[tokio::test]
async fn a_check_writes_one_value_under_its_name() {
    let server = RedisServer::start();
    let limiter = RateLimiter::new(store_on(&server).prefix("shop"), Quota::per_minute(10));
    let _ = limiter.name("search").check_n("ada", 3).await.unwrap();

    let mut connection = server.connect();
    let keys = times_to_live(&mut connection);
    let [(key, millis)] = keys.as_slice() else {
        panic!("{keys:?}");
    };
    assert_eq!(key, "shop:v3:{search,ada}:log");
    assert!((120_000..=121_000).contains(millis), "{millis}");
}

#[tokio::test]
async fn a_refusal_and_a_look_write_nothing() {
    let server = RedisServer::start();
    let limiter = RateLimiter::new(
        store_on(&server),
        [Quota::per_hour(2), Quota::per_second(1_000)],
    );
    let mut connection = server.connect();
    let mut written = move || -> u64 {
        let info = redis::cmd("INFO").arg("persistence").query(&mut connection);
        let info: redis::InfoDict = info.unwrap();
        info.get("rdb_changes_since_last_save").unwrap()
    };

    assert!(limiter.peek("ada").await.unwrap().is_allowed());
    assert_eq!(written(), 0);

    assert!(limiter.check_n("ada", 2).await.unwrap().is_allowed());
    let before = written();
    assert!(before > 0);
    for _ in 0..3 {
        let refused = limiter.check("ada").await.unwrap();
        assert!(!refused.is_allowed());
        let each: Vec<_> = refused.quotas().map(|quota| quota.is_allowed()).collect();
        assert_eq!(each, [false, true]);
        let _ = limiter.peek("ada").await.unwrap();
    }
    assert_eq!(written(), before);
}

#[tokio::test]
async fn a_look_at_a_log_that_has_partly_expired_writes_nothing() {
    let server = RedisServer::start();
    let limiter = RateLimiter::new(store_on(&server), Quota::new(9, Duration::from_millis(400)));
    let _ = limiter.check_n("ada", 2).await.unwrap();
    tokio::time::sleep(Duration::from_millis(200)).await;
    let _ = limiter.check_n("ada", 3).await.unwrap();
    tokio::time::sleep(Duration::from_millis(210)).await;
    let mut connection = server.connect();
    let mut stored = || -> Vec<u8> { connection.get("tollgate:v3:{default,ada}:log").unwrap() };
    let before = stored();
    assert_eq!(before.len(), HEADER + 2 * RUN);
    assert_eq!(limiter.peek("ada").await.unwrap().used(), 3);
    assert_eq!(stored(), before);
}

#[tokio::test]
async fn expired_units_of_a_long_log_are_found_in_few_pages() {
    let server = RedisServer::start();
    let limiter = RateLimiter::new(store_on(&server), Quota::per_minute(u32::MAX));
    let name = "tollgate:v3:{default,ada}:log";
    let mut connection = server.connect();
    let (seconds, _): (u64, u64) = redis::cmd("TIME").query(&mut connection).unwrap();
    let seconds = [seconds - 600, seconds - 30].into_iter();
    let times = seconds.flat_map(|second| (0..5_000).map(move |unit| second * 1_000_000 + unit));
    let times = times.collect::<Vec<_>>();
    store_log(&mut connection, name, 60_000_000, u32::MAX, &times);
    let _ = limiter.peek("nobody").await.unwrap();
    forget_calls(&mut connection);
    assert_eq!(limiter.peek("ada").await.unwrap().used(), 5_000);
    let calls = calls(&mut connection);
    // Both ends, six guesses that the two bursts mislead, and the logarithm of 625 pages of 16 runs.
    assert!(calls["getrange"] <= 2 + 6 + 10, "{calls:?}");
    assert!(!calls.contains_key("get"), "{calls:?}");
}

#[test]
fn no_key_is_without_a_time_to_live_after_any_operations() {
    let server = RedisServer::start();
    let runtime = runtime();
    let window = Duration::from_millis;
    let plans = [
        vec![Quota::new(5, window(4))],
        vec![Quota::new(3, window(50)), Quota::new(9, window(4))],
        vec![Quota::per_hour(20), Quota::new(4, window(50))],
    ];
    let limiters = plans.map(|plan| RateLimiter::new(store_on(&server), plan));
    let operation = (0..limiters.len(), 0..3_u8, 0..6_u32, 0..40_u8);
    let operations = proptest::collection::vec(operation, 1..60);
    let law = |operations: Vec<(usize, u8, u32, u8)>| {
        runtime.block_on(async {
            for (limiter, key, cost, chance) in operations {
                let (limiter, key) = (&limiters[limiter], format!("key {key}"));
                match chance {
                    0 => limiter.admin().reset(key).await.unwrap(),
                    1 => tokio::time::sleep(window(5)).await,
                    _ => drop(limiter.check_n(key, cost).await),
                }
            }
        });
        for (key, millis) in times_to_live(&mut server.connect()) {
            // The name of a value tells no window: the longest of all plans is an hour.
            let window = key.rsplit(':').next().and_then(|end| end.parse().ok());
            let window: i64 = window.unwrap_or(3_600_000_000);
            // -2: the key expired in between.
            let lives = (0..=2 * window / 1_000 + 1_000).contains(&millis) || millis == -2;
            assert!(lives, "{key} lives for {millis} ms");
        }
        Ok(())
    };
    holds_for_any(40, &operations, law);
}

#[tokio::test]
async fn quotas_of_one_window_are_charged_once_and_decided_each() {
    let server = RedisServer::start();
    let quotas = [Quota::per_hour(9), Quota::per_hour(2).with_name("strict")];
    let limiter = RateLimiter::new(store_on(&server), quotas);
    let decision = limiter.check("ada").await.unwrap();
    let used: Vec<_> = decision
        .quotas()
        .map(|quota| (quota.limit(), quota.used()))
        .collect();
    assert_eq!(used, [(9, 1), (2, 1)]);
    assert!(limiter.check("ada").await.unwrap().is_allowed());
    let refused = limiter.check("ada").await.unwrap();
    assert_eq!((refused.limit(), refused.used()), (2, 2));
    let mut connection = server.connect();
    let value: Vec<u8> = connection.get("tollgate:v3:{default,ada}:log").unwrap();
    assert_eq!(value.len(), HEADER + 2 * RUN);
}

#[tokio::test]
async fn a_script_flush_between_any_two_checks_changes_nothing() {
    let server = RedisServer::start();
    let limiter = RateLimiter::new(store_on(&server), Quota::per_hour(20));
    let mut connection = server.connect();
    for used in 1..=20 {
        run(&mut connection, &["SCRIPT", "FLUSH"]);
        let decision = limiter.check("ada").await.unwrap();
        assert_eq!((decision.is_allowed(), decision.used()), (true, used));
    }
    run(&mut connection, &["SCRIPT", "FLUSH"]);
    assert!(!limiter.check("ada").await.unwrap().is_allowed());
}

#[tokio::test]
async fn the_whole_range_of_limits_windows_and_costs_works() {
    let server = RedisServer::start();
    let store = store_on(&server);
    let days = |days: u64| Duration::from_secs(days * 86_400);
    for (limit, window) in [(u32::MAX, days(366)), (1, days(366)), (u32::MAX, HOUR)] {
        let name = format!("{limit} in {window:?}");
        let limiter = RateLimiter::new(store.clone(), Quota::new(limit, window)).name(name);
        let decision = limiter.check("ada").await.unwrap();
        assert_eq!((decision.used(), decision.remaining()), (1, limit - 1));
        assert_eq!(decision.reset_after(), window);
    }

    let brief = RateLimiter::new(store.clone(), Quota::new(1, Duration::from_millis(1)));
    for _ in 0..50 {
        let decision = brief.check("ada").await.unwrap();
        let wait = decision.retry_after().unwrap_or_default();
        assert!(wait <= Duration::from_millis(1));
        tokio::time::sleep(Duration::from_millis(1)).await;
    }

    let large = RateLimiter::new(store, Quota::new(u32::MAX, HOUR)).name("large");
    let decision = large.check_n("ada", 100_000).await.unwrap();
    assert_eq!((decision.is_allowed(), decision.used()), (true, 100_000));
    let error = large.check_n("ada", 100_001).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::CostTooLarge);
    assert_eq!(large.peek("ada").await.unwrap().used(), 100_000);
}

/// A limiter with windows of a second, of two, and so on.
fn limiter_of(server: &RedisServer, count: u64, name: &str, algorithm: Algorithm) -> RateLimiter {
    let quota = |seconds| Quota::new(2, Duration::from_secs(seconds)).with_algorithm(algorithm);
    let quotas: Quotas = (1..=count).map(quota).collect();
    RateLimiter::new(store_on(server), quotas).name(format!("{count} quotas {name}"))
}

#[tokio::test]
async fn a_limiter_may_have_a_thousand_quotas_and_any_number_of_logs() {
    let server = RedisServer::start();
    // Around the number from which on an array is packed, and beyond what a Lua function returns.
    for count in [30, 660, 664, 990, 1_000, 1_100, 3_000] {
        for (name, algorithm) in algorithms() {
            let is_counter = name_of("{}", algorithm, HOUR).ends_with('}');
            if is_counter && count > 1_100 {
                continue;
            }
            let limiter = limiter_of(&server, count, name, algorithm);
            assert!(limiter.check_n("ada", 2).await.unwrap().is_allowed());
            let looked = limiter.peek("ada").await.unwrap();
            assert_eq!(looked.quotas().count() as u64, count);
            // Some windows end during the test; the longest does not.
            assert_eq!(looked.quotas().last().unwrap().used(), 2);
        }
    }
}

#[tokio::test]
async fn more_counters_than_a_row_holds_fail_their_own_check() {
    let server = RedisServer::start();
    let many = limiter_of(&server, 3_000, "many", Algorithm::Gcra);
    let few = RateLimiter::new(store_on(&server), Quota::per_hour(9));
    for used in 1..=9 {
        let (error, decision) = tokio::join!(many.check("ada"), few.check("ada"));
        let error = error.unwrap_err();
        assert!(error.to_string().contains("too many counters"), "{error}");
        assert_eq!(error.kind(), ErrorKind::Misconfigured);
        assert_eq!(decision.unwrap().used(), used);
    }
}

#[tokio::test]
async fn keys_of_any_bytes_are_counted_apart_and_in_one_slot() {
    let server = RedisServer::start();
    // The second has a key of its own.
    let set = Quota::per_minute(1).with_algorithm(Algorithm::SortedSetLog);
    let limiter = RateLimiter::new(store_on(&server), [Quota::per_hour(1), set]);
    let megabyte = vec![b'x'; 1 << 20];
    let keys: [&[u8]; 12] = [
        b"",
        b" ",
        b"{}",
        b"}{",
        b"{a}",
        b"a\nb",
        b"a\0b",
        b"\xff\xfe",
        b"a,b",
        "é".as_bytes(),
        &megabyte,
        &megabyte[1..],
    ];
    for key in keys {
        assert!(limiter.check(key).await.unwrap().is_allowed());
        assert!(!limiter.check(key).await.unwrap().is_allowed());
    }
    let mut connection = server.connect();
    let stored = times_to_live(&mut connection);
    assert_eq!(stored.len(), 2 * keys.len());
    // The text between the first braces decides the slot: all quotas of a key share it.
    let mut tags = BTreeMap::<String, usize>::new();
    for (key, _) in stored {
        assert!(
            key.len() < 120 && key.bytes().all(|byte| byte.is_ascii_graphic()),
            "{key}"
        );
        let (_, tag) = key.split_once('{').unwrap();
        let (tag, _) = tag.split_once('}').unwrap();
        *tags.entry(tag.to_owned()).or_default() += 1;
    }
    assert!(
        tags.len() == keys.len() && tags.values().all(|keys| *keys == 2),
        "{tags:?}"
    );
}

#[tokio::test]
async fn reset_forgets_one_key_of_one_limiter() {
    let server = RedisServer::start();
    let store = store_on(&server);
    let quotas = [Quota::per_hour(5), Quota::per_minute(5)];
    let (search, export) = (
        RateLimiter::new(store.clone(), quotas.clone()).name("search"),
        RateLimiter::new(store, quotas).name("export"),
    );
    for (limiter, key) in [(&search, "ada"), (&search, "bob"), (&export, "ada")] {
        let _ = limiter.check_n(key, 5).await.unwrap();
    }
    search.admin().reset("ada").await.unwrap();
    search.admin().reset("nobody").await.unwrap();
    assert_eq!(search.peek("ada").await.unwrap().used(), 0);
    assert_eq!(search.peek("bob").await.unwrap().used(), 5);
    assert_eq!(export.peek("ada").await.unwrap().used(), 5);
}

#[tokio::test]
async fn a_check_calls_as_few_commands_as_it_can() {
    let server = RedisServer::start();
    let limiter = RateLimiter::new(store_on(&server), Quota::per_hour(3));
    let _ = limiter.peek("ada").await.unwrap();
    let mut connection = server.connect();
    let mut calls_of_next = async |expected: &str| {
        forget_calls(&mut connection);
        let _ = limiter.check("ada").await.unwrap();
        let calls = calls(&mut connection).into_iter();
        let calls: Vec<_> = calls
            .map(|(name, calls)| format!("{name} {calls}"))
            .collect();
        assert_eq!(calls.join(", "), expected);
    };
    // MGET does not tell a missing key from one of another type.
    calls_of_next("evalsha 1, exists 1, mget 1, set 1, time 1").await;
    calls_of_next("append 1, evalsha 1, mget 1, time 1").await;
    calls_of_next("append 1, evalsha 1, mget 1, time 1").await;
    // Refused.
    calls_of_next("evalsha 1, mget 1, time 1").await;
}

/// The file of a line of a script, and the number of the line in the file. Lines count from 1.
fn in_file(script: &str, line: usize) -> (&str, usize) {
    let lines: Vec<_> = script.lines().take(line).collect();
    let is_marker = |line: &&str| line.starts_with("-- lua/");
    let marker = lines
        .iter()
        .rposition(is_marker)
        .expect("a line with the path");
    (&lines[marker]["-- ".len()..], line - (marker + 1))
}

fn line_of_file(path: &str, line: usize) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
    let text = fs::read_to_string(path).unwrap();
    text.lines().nth(line - 1).unwrap().to_owned()
}

/// Runs a script with these arguments, and returns the line that its error names.
fn line_of_error(server: &RedisServer, script: &str, args: &[Vec<u8>]) -> usize {
    let mut eval = redis::cmd("EVAL");
    let eval = eval.arg(script).arg(1).arg("key").arg(args);
    let said = match eval.query::<Vec<u8>>(&mut server.connect()) {
        Ok(reply) => String::from_utf8_lossy(&reply).into_owned(),
        Err(error) => error.to_string(),
    };
    let (_, line) = said.split_once("user_script:").expect(&said);
    let line = line.trim_start();
    let end = line.find(|c: char| !c.is_ascii_digit()).expect(&said);
    line[..end].parse().expect(&said)
}

#[test]
fn the_line_that_an_error_names_is_that_line_of_the_script() {
    let server = RedisServer::start();
    let packed = |args: &str| -> Vec<u8> {
        let pack = "return cmsgpack.pack(unpack(cjson.decode(ARGV[1])))";
        let mut eval = redis::cmd("EVAL");
        eval.arg(pack).arg(0).arg(args);
        eval.query(&mut server.connect()).unwrap()
    };
    // No arguments at all; then a limit that is a table, from which nothing can be taken.
    let call = |is_usual| {
        let call = format!(
            r#"[1, 14, 7, 1, "log", 0, 0, 3000, 0, "sliding_log", {{}}, 1000000, "l",
                {is_usual}, 11, 1, 1, 0, 0, 1, 0, 4, 1, 1]"#
        );
        vec![packed(&call)]
    };
    let script = RedisStore::scripts().next().expect("a script").1;
    for (args, file, text) in [
        (vec![], "lua/call.lua", "cmsgpack.unpack(ARGV[1])"),
        (call(1), "lua/log_loop.lua", "limit - cost"),
        (call(0), "lua/log.lua", "quota.limit - used"),
    ] {
        let number = line_of_error(&server, script, &args);
        let line = script.lines().nth(number - 1).unwrap();
        assert!(line.contains(text), "{number}: {line}");
        let (named_file, number_in_file) = in_file(script, number);
        assert_eq!(named_file, file);
        assert_eq!(line_of_file(file, number_in_file), line);
    }
}

#[test]
fn each_file_of_a_script_stands_behind_a_line_with_its_path() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("lua");
    let mut missing: BTreeSet<_> = fs::read_dir(directory)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| name.ends_with(".lua"))
        .collect();
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR"));
    for (name, script) in RedisStore::scripts() {
        let mut files = Vec::new();
        for part in script.split("-- lua/").skip(1) {
            let (file, text) = part.split_once('\n').unwrap();
            let source = fs::read_to_string(manifest.join("lua").join(file)).unwrap();
            assert!(text.starts_with(&source), "{file} of {name}");
            missing.remove(file);
            files.push(file);
        }
        let kind = name.strip_suffix("_clock_argument");
        let clock = kind.map_or("clock.lua", |_| "clock_argument.lua");
        assert_eq!(files.first(), Some(&clock));
        // Those that decide checks end alike.
        let (last, name) = (*files.last().unwrap(), kind.unwrap_or(name));
        assert!(
            last == "decide.lua" || last == format!("{name}.lua"),
            "{name}: {last}"
        );
    }
    assert_eq!(missing, BTreeSet::new());
}

#[test]
fn a_loop_precedes_all_functions() {
    let loops = RedisStore::scripts().filter_map(|(name, script)| {
        let file = if name.starts_with("log") {
            "-- lua/log_loop.lua\n"
        } else {
            "-- lua/counters_loop.lua\n"
        };
        script.contains(file).then(|| {
            let (before, _) = script.split_once("-- lua/prelude.lua\n").unwrap();
            assert!(before.contains(file), "{name}");
            let (_, before) = before.split_once("-- lua/call.lua\n").unwrap();
            let code = before.lines().filter(|line| !line.starts_with("--"));
            assert!(
                code.into_iter().all(|line| !line.contains("function(")),
                "{name}"
            );
            name
        })
    });
    let loops: Vec<_> = loops.collect();
    let expected = ["log", "fixed_window", "sliding_counter", "gcra"];
    let expected = expected.map(str::to_owned).into_iter();
    let told = expected.clone().map(|name| name + "_clock_argument");
    assert_eq!(loops, expected.chain(told).collect::<Vec<_>>());
}

/// Runs each script of a store, and returns those of all that can be read that its server then knows.
async fn scripts_run_by(store: impl Fn() -> RedisStore, server: &RedisServer) -> Vec<&'static str> {
    let quotas = algorithms().map(|(_, algorithm)| Quota::per_hour(9).with_algorithm(algorithm));
    let quotas: Vec<_> = quotas.collect();
    let total = Quota::total(9, HOUR);
    let plans = quotas.iter().chain([&total]);
    let plans = plans.map(|quota| vec![quota.clone()]);
    for plan in plans.chain([quotas.clone()]) {
        let limiter = RateLimiter::new(store(), plan);
        let _ = limiter.check("ada").await.unwrap();
    }
    let [name, key] = ["jobs", "ada"].map(Key::from);
    let slots = Quotas::from(Quota::in_flight(9));
    let look = Subject::new(&name, &key, &slots).check(0);
    let _ = ask(&store(), &[look]).await.unwrap();
    let rate = Quota::per_hour(9).with_algorithm(Algorithm::Gcra);
    let mixed = Quotas::from([Quota::in_flight(9), rate]);
    let beside_counter = Subject::new(&name, &key, &mixed).check(0);
    let _ = ask(&store(), &[beside_counter]).await.unwrap();
    assert!(store().holders(look.subject).await.unwrap().is_empty());
    let limiter = RateLimiter::new(store(), total).name("held");
    let limiter = limiter.reserve_lease(Duration::from_secs(15));
    let _ = limiter.check("ada").await.unwrap();
    let limiter = RateLimiter::new(store(), Quota::per_hour(9));
    let admin = limiter.admin();
    admin.credit("ada", 1).await.unwrap();
    admin.block("ada", HOUR).await.unwrap();
    assert_eq!(admin.blocked().await.unwrap().len(), 1);

    let scripts: Vec<_> = RedisStore::scripts().collect();
    let mut exists = redis::cmd("SCRIPT");
    exists.arg("EXISTS");
    for (_, script) in &scripts {
        exists.arg(redis::Script::new(script).get_hash());
    }
    let known: Vec<bool> = exists.query(&mut server.connect()).unwrap();
    let names = scripts.iter().map(|(name, _)| *name).zip(known);
    names
        .filter(|(_, known)| *known)
        .map(|(name, _)| name)
        .collect()
}

#[tokio::test]
async fn the_scripts_that_can_be_read_are_those_that_are_run() {
    let server = RedisServer::start();
    let own = scripts_run_by(|| store_on(&server), &server).await;
    let server = TimelessServer::start();
    // One store learns that it has to tell the time, and its forks know it.
    let store = RedisStore::open(&server.url())
        .unwrap()
        .deadline(Duration::from_secs(10));
    let _ = RateLimiter::new(store.clone(), Quota::per_hour(9))
        .check("ada")
        .await;
    let store = || store.fork().deadline(Duration::from_secs(10));
    let mut told = scripts_run_by(store, server.server()).await;
    told.retain(|name| name.ends_with("_clock_argument"));
    assert_eq!([own.len(), told.len()], [14, 14], "{own:?} {told:?}");
    let all: Vec<_> = RedisStore::scripts().map(|(name, _)| name).collect();
    assert_eq!([own, told].concat(), all);
}
