//! Limiters of one name in several services, and in one.

use std::env;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use redis::Commands;
use tollgate::{Quota, RateLimiter, RedisStore};

use crate::support::log;
use crate::support::process::Process;
use crate::support::redis_server::RedisServer;

/// Several times what a comparison takes on a busy machine. It comes a second after the first check.
const PATIENCE: Duration = Duration::from_secs(30);

/// The variable with the server's URL, which only the other service has.
const SERVER: &str = "TOLLGATE_TEST_SHARED_SERVER";

fn open(url: &str) -> RedisStore {
    RedisStore::open(url).expect("a URL")
}

fn limiter(store: &RedisStore, limit: u32) -> RateLimiter {
    RateLimiter::new(store.clone(), Quota::per_minute(limit))
}

async fn check(limiter: &RateLimiter) {
    let _ = limiter.check("ada").await.expect("Redis answers");
}

/// What is logged about limiters of one name, once the comparisons are done that `store` has begun.
///
/// A comparison without a finding says nothing, so one with a finding follows it on the same connection.
async fn told(server: &RedisServer, store: &RedisStore) -> Vec<String> {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let name = format!("last-{}", NUMBER.fetch_add(1, Ordering::Relaxed));
    let mut connection = server.connect();
    let key = format!("tollgate:v3:{{limiters}}:{name}");
    let _: () = connection
        .set(key, "9/hour\nffffffffffffffff\n0\nother")
        .expect("it is set");
    check(&limiter(store, 1).name(&name)).await;
    let patience = Instant::now() + PATIENCE;
    let mut lines = Vec::new();
    let is_last = |line: &String| line.contains(&name) && line.contains("another process");
    while !lines.iter().any(is_last) {
        assert!(Instant::now() < patience, "{lines:?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
        lines.extend(log::all_kept());
    }
    lines.retain(|line| line.contains("of this name") && !is_last(line));
    lines
}

/// One line, which says all of this.
fn is_one_line(lines: &[String], parts: &[&str]) {
    let [line] = lines else {
        panic!("{lines:?}");
    };
    for part in parts {
        assert!(line.contains(part), "{part}: {line}");
    }
}

/// Another service: it counts 100 a minute, until the quotas of its limiters are in Redis.
async fn serve_elsewhere(url: &str) {
    let store = open(url);
    let client = redis::Client::open(url).expect("a URL");
    let mut connection = client.get_connection().expect("a connection");
    for name in ["site", "login"] {
        check(&limiter(&store, 100).name(name)).await;
        until_stored(&mut connection, &format!("tollgate:v3:{{limiters}}:{name}")).await;
    }
}

async fn until_stored(connection: &mut redis::Connection, key: &str) {
    let patience = Instant::now() + PATIENCE;
    while !connection.exists::<_, bool>(key).expect("an answer") {
        assert!(Instant::now() < patience, "nothing was stored");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn a_service_with_other_quotas_under_the_same_name_is_told_once() {
    let test = "shared_names::a_service_with_other_quotas_under_the_same_name_is_told_once";
    if let Ok(url) = env::var(SERVER) {
        return serve_elsewhere(&url).await;
    }
    log::keep();
    let server = RedisServer::start();
    let mut elsewhere = Command::new(env::current_exe().expect("this program"));
    let elsewhere = elsewhere.args([test, "--exact"]).env(SERVER, server.url());
    Process::start(elsewhere).wait();

    let store = open(&server.url());
    for same in [
        limiter(&store, 100).name("site"),
        limiter(&store, 7).name("another"),
    ] {
        check(&same).await;
        assert_eq!(told(&server, &store).await, [""; 0], "{same:?}");
    }
    let shop = open(&server.url()).prefix("shop");
    check(&limiter(&shop, 8).name("site")).await;
    assert_eq!(told(&server, &store).await, [""; 0], "another prefix");
    let other = limiter(&store, 5).name("login");
    for _ in 0..2 {
        check(&other).await;
        check(&other.clone()).await;
    }
    is_one_line(
        &told(&server, &store).await,
        &[
            "WARN",
            "limiter=\"login\"",
            "another process (redis-",
            "\"100/minute\" there and \"5/minute\" here",
            "under the prefix \"tollgate\"",
            "set `RedisStore::prefix`",
        ],
    );
}

#[tokio::test]
async fn two_stores_of_one_process_are_not_called_another_process() {
    log::keep();
    let server = RedisServer::start();
    let stores = [open(&server.url()), open(&server.url())];
    let limiters = [limiter(&stores[0], 100), limiter(&stores[1], 5)];
    check(&limiters[0]).await;
    assert_eq!(told(&server, &stores[0]).await, [""; 0]);
    check(&limiters[1]).await;
    is_one_line(
        &told(&server, &stores[1]).await,
        &[
            "WARN",
            "limiter=\"default\"",
            "another store of this process",
            "\"100/minute\" there and \"5/minute\" here",
            "under the prefix \"tollgate\"",
            "give each limiter its own name",
        ],
    );
}

#[tokio::test]
async fn two_limiters_of_one_store_are_one_line_that_names_no_other_process() {
    log::keep();
    let server = RedisServer::start();
    let store = open(&server.url());
    let limiters = [limiter(&store, 100), limiter(&store, 5)];
    for limiter in &limiters {
        check(limiter).await;
    }
    is_one_line(
        &told(&server, &store).await,
        &[
            "WARN",
            "limiter=\"default\"",
            "two limiters of this name and store",
            "\"100/minute\" and \"5/minute\"",
        ],
    );
}

#[tokio::test]
async fn quotas_that_replace_others_in_one_process_are_told_nobody() {
    log::keep();
    let server = RedisServer::start();
    let store = open(&server.url());
    for limit in [100, 5] {
        // As after a reload of the settings: the former limiter is gone.
        check(&limiter(&store, limit)).await;
        assert_eq!(told(&server, &store).await, [""; 0], "{limit}");
    }
}

#[tokio::test]
async fn the_quotas_of_a_limiter_are_stored_for_a_day() {
    let server = RedisServer::start();
    let store = RedisStore::open(&server.url()).unwrap().prefix("shop");
    let limiter = limiter(&store, 9).name("a:b{c}");
    check(&limiter).await;
    let mut connection = server.connect();
    until_stored(&mut connection, "shop:v3:{limiters}:a:b%7Bc%7D").await;
    let mut ask = |command: &str, key: &str| -> redis::Value {
        redis::cmd(command).arg(key).query(&mut connection).unwrap()
    };
    let key = "shop:v3:{limiters}:a:b%7Bc%7D";
    let text: String = redis::from_redis_value(ask("GET", key)).unwrap();
    let [quotas, process, _store, program] = text.split('\n').collect::<Vec<_>>()[..] else {
        panic!("{text}");
    };
    assert_eq!(quotas, "9/minute");
    assert_eq!(process.len(), 16, "{process}");
    assert!(program.starts_with("redis-"), "{program}");
    let left: i64 = redis::from_redis_value(ask("TTL", key)).unwrap();
    assert!((86_000..=86_400).contains(&left), "{left}");
}
