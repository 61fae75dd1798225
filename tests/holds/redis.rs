//! Held units on Redis: processes that die or stand still, replies that are lost, servers that go away or lose their data.

use std::time::{Duration, Instant};

use tollgate::{Acquired, ErrorKind, FailurePolicy, Permit, Quota, RateLimiter, RedisStore};

use crate::support::node::Node;
use crate::support::process::{Process, argument, child};
use crate::support::proxy::{Proxy, Wire};
use crate::support::redis_server::{RedisServer, run};
use crate::{LEASE, held, reserve, until_held, until_used};

const DAY: Duration = Duration::from_secs(86_400);

/// The longest time between two messages about a key.
const RENEWAL: Duration = Duration::from_millis(1_667);

/// A limiter with a table of permits of its own, as another process has.
fn process(url: &str) -> RateLimiter {
    let store = RedisStore::open(url)
        .unwrap()
        .deadline(Duration::from_secs(5))
        .block_list_refresh(Duration::ZERO);
    RateLimiter::new(store, Quota::total(100, DAY)).reserve_lease(LEASE)
}

/// A limiter behind a proxy, which gives a message up quickly.
fn behind(proxy: &Proxy) -> RateLimiter {
    let store = RedisStore::open(&proxy.url())
        .unwrap()
        .block_list_refresh(Duration::ZERO);
    RateLimiter::new(store, Quota::total(100, DAY)).reserve_lease(LEASE)
}

/// Reserves as soon as there is a connection.
async fn eventually(limiter: &RateLimiter, units: u32) -> Permit {
    let began = Instant::now();
    loop {
        match try_reserve(limiter, units).await {
            Ok(Acquired::Permit(permit)) => return permit,
            other => assert!(began.elapsed() < Duration::from_secs(4), "{other:?}"),
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

async fn try_reserve(limiter: &RateLimiter, units: u32) -> Result<Acquired, tollgate::Error> {
    RateLimiter::try_acquire_all([limiter.level("ada").cost(units)]).await
}

/// Waits until a limiter has used so many units, for as long as a lease and a bit more.
async fn within_a_lease(limiter: &RateLimiter, expected: u32) -> Duration {
    let began = Instant::now();
    loop {
        let seen = limiter.peek("ada").await.map(|decision| decision.used());
        if seen.as_ref().is_ok_and(|used| *used == expected) {
            return began.elapsed();
        }
        // A busy machine asks late.
        assert!(
            began.elapsed() < LEASE + Duration::from_secs(1),
            "{seen:?}, expected {expected}"
        );
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn a_renewal_charges_what_was_added() {
    let server = RedisServer::start();
    let [one, other] = [(); 2].map(|()| process(&server.url()));
    let mut permit = reserve(&one, 60).await;
    permit.add(25);
    tokio::time::sleep(RENEWAL + Duration::from_millis(300)).await;
    let seen = other.peek("ada").await.unwrap();
    assert_eq!((seen.used(), held(&other).await), (60, 35));
    // Beyond what it holds, too.
    permit.add(50);
    tokio::time::sleep(RENEWAL + Duration::from_millis(300)).await;
    let seen = other.peek("ada").await.unwrap();
    assert_eq!((seen.used(), held(&other).await), (75, 0));
    permit.add(1);
    drop(permit);
    until_used(&other, 76).await;
}

#[tokio::test]
async fn an_entry_of_a_process_that_has_spent_nothing_ends_with_its_lease() {
    let server = RedisServer::start();
    let limiter = process(&server.url());
    let lives = || -> Duration {
        let mut pttl = redis::cmd("PTTL");
        pttl.arg("tollgate:v3:{default,ada}:held");
        Duration::from_millis(pttl.query(&mut server.connect()).unwrap())
    };
    let mut permit = reserve(&limiter, 60).await;
    let longest = 2 * LEASE + Duration::from_secs(1);
    assert!(lives() <= longest, "{:?}", lives());
    permit.add(1);
    drop(permit);
    until_used(&limiter, 1).await;
    // Its sum stays, so that no late message charges it again.
    let hour = Duration::from_secs(3_600);
    assert!(lives() > hour && lives() <= hour + longest, "{:?}", lives());
}

const KILLED: &str = "redis::the_units_of_a_process_that_is_killed_return_within_one_lease";

#[tokio::test]
async fn the_units_of_a_process_that_is_killed_return_within_one_lease() {
    if let Some(url) = argument() {
        let limiter = process(&url);
        let mut permit = reserve(&limiter, 60).await;
        permit.add(10);
        tokio::time::sleep(RENEWAL + Duration::from_millis(500)).await;
        // No message says this before the process dies.
        permit.add(5);
        crate::support::process::print("used");
        return std::future::pending().await;
    }
    let server = RedisServer::start();
    let other = process(&server.url());
    let mut killed = Process::with_pipes(&mut child(KILLED, &server.url()));
    killed.rest_of_line("used");
    assert_eq!(
        (other.peek("ada").await.unwrap().used(), held(&other).await),
        (60, 50)
    );
    killed.kill();
    let took = within_a_lease(&other, 10).await;
    println!("back after {took:?}");
    assert_eq!(held(&other).await, 0);
    drop(reserve(&other, 90).await);
    until_used(&other, 100).await;
}

const STOPPED: &str = "redis::a_process_that_stood_still_charges_what_it_used_when_it_goes_on";

#[tokio::test]
async fn a_process_that_stood_still_charges_what_it_used_when_it_goes_on() {
    if let Some(url) = argument() {
        let limiter = process(&url);
        let mut permit = reserve(&limiter, 60).await;
        permit.add(10);
        crate::support::process::print("used");
        // It is stopped meanwhile.
        permit.lost().await;
        permit.add(20);
        drop(permit);
        crate::support::process::print("lost");
        return std::future::pending().await;
    }
    let server = RedisServer::start();
    let other = process(&server.url());
    let mut stopped = Process::with_pipes(&mut child(STOPPED, &server.url()));
    stopped.rest_of_line("used");
    stopped.signal("STOP");
    let began = Instant::now();
    until_held(&other, 0).await;
    // Others take the units meanwhile.
    let mut permit = reserve(&other, 90).await;
    permit.add(90);
    drop(permit);
    tokio::time::sleep((2 * LEASE).saturating_sub(began.elapsed())).await;
    stopped.signal("CONT");
    stopped.rest_of_line("lost");
    // All that it used is charged, beyond the limit, and once.
    until_used(&other, 120).await;
    tokio::time::sleep(RENEWAL).await;
    let seen = other.peek("ada").await.unwrap();
    assert_eq!((seen.used(), held(&other).await), (120, 0));
}

#[tokio::test]
async fn a_reply_that_is_lost_charges_nothing_twice() {
    let server = RedisServer::start();
    let other = process(&server.url());
    let proxy = Proxy::before(server.port()).await;
    let limiter = behind(&proxy);
    let mut expected = 0;
    for units in 1..=6 {
        let mut permit = eventually(&limiter, 8).await;
        permit.add(units);
        expected += units;
        // The server does what it says, and its reply is lost: of a release, and then of a message that wants more.
        proxy.cut_next_reply();
        if units % 2 == 0 {
            assert!(permit.release().await.is_err());
        } else {
            assert!(try_reserve(&limiter, 8).await.is_err());
            drop(permit);
        }
    }
    within_a_lease(&other, expected).await;
    assert_eq!(held(&other).await, 0);
    tokio::time::sleep(RENEWAL).await;
    assert_eq!(other.peek("ada").await.unwrap().used(), expected);
}

#[tokio::test]
async fn a_message_that_comes_after_a_newer_one_frees_and_charges_nothing() {
    let server = RedisServer::start();
    let other = process(&server.url());
    let proxy = Proxy::before(server.port()).await;
    let limiter = behind(&proxy);
    let mut first = reserve(&limiter, 10).await;
    first.add(4);
    proxy.set(Wire::HoleForOld);
    // It says that nothing is held and 4 units are spent, and is late.
    let failed = first.release().await;
    assert_eq!(failed.unwrap_err().kind(), ErrorKind::Timeout);
    let second = eventually(&limiter, 30).await;
    until_used(&other, 34).await;
    proxy.set(Wire::Whole);
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!(
        (other.peek("ada").await.unwrap().used(), held(&other).await),
        (34, 30)
    );
    second.settle(0);
    until_used(&other, 4).await;
}

#[tokio::test]
async fn what_the_server_has_forgotten_is_held_again_within_a_third_of_a_lease() {
    let server = RedisServer::start();
    let limiter = process(&server.url());
    let mut permit = reserve(&limiter, 60).await;
    permit.add(10);
    tokio::time::sleep(RENEWAL + Duration::from_millis(300)).await;
    run(&mut server.connect(), &["FLUSHALL"]);
    permit.add(7);
    let began = Instant::now();
    // What was charged is gone, as all counts; what was not acknowledged is charged once.
    until_used(&limiter, 50).await;
    let took = began.elapsed();
    println!("held again after {took:?}");
    assert!(took < RENEWAL + Duration::from_millis(500), "{took:?}");
    assert_eq!(held(&limiter).await, 43);
    drop(permit);
    until_used(&limiter, 7).await;
}

#[tokio::test]
async fn what_is_used_while_redis_is_away_is_charged_once_when_it_is_back() {
    let mut node = Node::start(&["--appendonly", "yes", "--appendfsync", "always"]);
    let limiter = process(&node.url()).on_failure(FailurePolicy::fall_back());
    let mut before = reserve(&limiter, 40).await;
    before.add(3);
    node.kill();
    before.add(4);
    let mut meanwhile = reserve(&limiter, 30).await;
    // What is held, what was used of it, and 30.
    assert_eq!(meanwhile.decision().used(), 33 + 7 + 30);
    meanwhile.add(12);
    drop(meanwhile);
    // More than the fallback has room for.
    let refused = try_reserve(&limiter, 60).await.unwrap();
    assert!(matches!(refused, Acquired::Refused(_)));
    node.restart();
    let other = process(&node.url());
    within_a_lease(&other, 52).await;
    assert_eq!(held(&other).await, 33);
    drop(before);
    until_used(&other, 19).await;
}

#[tokio::test]
async fn a_permit_is_lost_when_the_server_stays_away_and_charged_when_it_is_back() {
    let mut node = Node::start(&["--appendonly", "yes", "--appendfsync", "always"]);
    let limiter = process(&node.url());
    let mut permit = reserve(&limiter, 40).await;
    node.kill();
    let began = Instant::now();
    permit.lost().await;
    let took = began.elapsed();
    assert!(took < Duration::from_millis(4_200), "{took:?}");
    permit.add(15);
    node.restart();
    // Lost is final, though it still counts.
    within_a_lease(&limiter, 40).await;
    permit.lost().await;
    drop(permit);
    until_used(&limiter, 15).await;
}

#[tokio::test]
async fn open_admits_anything_and_the_store_learns_it() {
    let mut node = Node::start(&["--appendonly", "yes"]);
    let limiter = process(&node.url()).on_failure(FailurePolicy::open());
    assert!(limiter.peek("ada").await.is_ok());
    node.kill();
    let mut permits = Vec::new();
    for _ in 0..3 {
        permits.push(reserve(&limiter, 60).await);
    }
    for permit in &mut permits {
        permit.add(50);
    }
    node.restart();
    let other = process(&node.url());
    within_a_lease(&other, 180).await;
    drop(permits);
    until_used(&other, 150).await;
}

#[tokio::test]
async fn a_refusal_charges_what_was_spent_before() {
    let server = RedisServer::start();
    let [one, other] = [(); 2].map(|()| process(&server.url()));
    let mut permit = reserve(&one, 60).await;
    permit.add(20);
    let Acquired::Refused(decision) = try_reserve(&one, 50).await.unwrap() else {
        panic!("110 units of 100");
    };
    let level = decision.levels().next().unwrap();
    assert_eq!((decision.used(), level.reserved()), (60, 40));
    assert_eq!(
        (other.peek("ada").await.unwrap().used(), held(&other).await),
        (60, 40)
    );
    drop(permit);
}

#[tokio::test]
async fn a_full_server_charges_and_takes_back_what_it_knows() {
    let server = RedisServer::start();
    let limiter = process(&server.url());
    let mut permit = reserve(&limiter, 60).await;
    permit.add(20);
    let mut connection = server.connect();
    run(&mut connection, &["CONFIG", "SET", "maxmemory", "1"]);
    permit.release().await.unwrap();
    assert_eq!(limiter.peek("ada").await.unwrap().used(), 20);
    let error = try_reserve(&limiter, 5).await;
    println!("{error:?}");
}

#[tokio::test]
async fn a_value_of_another_program_fails_its_key_and_is_not_overwritten() {
    let server = RedisServer::start();
    let limiter = process(&server.url());
    let mut connection = server.connect();
    let name = "tollgate:v3:{default,ada}:held";
    run(&mut connection, &["RPUSH", name, "foreign"]);
    for error in [
        limiter.check("ada").await.unwrap_err(),
        try_reserve(&limiter, 1).await.unwrap_err(),
    ] {
        assert_eq!(error.kind(), ErrorKind::Misconfigured, "{error}");
    }
    run(&mut connection, &["DEL", name]);
    run(
        &mut connection,
        &["SET", name, "hforeign bytes that are no entries"],
    );
    assert!(limiter.check("ada").await.is_err());
    // The count of the key is foreign: what is held is not written either.
    run(&mut connection, &["DEL", name]);
    run(
        &mut connection,
        &["SET", "tollgate:v3:{default,ada}", "foreign"],
    );
    assert!(try_reserve(&limiter, 1).await.is_err());
    let keys: Vec<String> = redis::cmd("KEYS")
        .arg("*held")
        .query(&mut connection)
        .unwrap();
    assert!(keys.is_empty(), "{keys:?}");
}
