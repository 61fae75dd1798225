//! How a store recovers from a broken connection.

use std::time::{Duration, Instant};

use tollgate::{Decision, Error, ErrorKind, Quota, RateLimiter, RedisStore};

use crate::lateness::with_lateness;
use crate::support::costs::{calls, forget_calls};
use crate::support::node::Node;
use crate::support::redis_server::{RedisServer, run, signal};
use crate::support::relay::Relay;
use crate::support::{decided, runtime};

/// The default deadline.
const DEADLINE: Duration = Duration::from_millis(100);

fn limiter(url: &str) -> RateLimiter {
    RateLimiter::new(RedisStore::open(url).unwrap(), Quota::per_hour(1_000_000))
}

/// Checks a new key about a thousand times a second, for this time.
async fn drive(limiter: &RateLimiter, time: Duration) -> Vec<(Duration, Result<Decision, Error>)> {
    let (begin, mut checks) = (Instant::now(), Vec::new());
    let mut key = 0;
    while begin.elapsed() < time {
        for _ in 0..5 {
            let (limiter, key) = (limiter.clone(), {
                key += 1;
                key
            });
            checks.push(tokio::spawn(async move {
                let begin = Instant::now();
                let decision = limiter.check(format!("driven:{key}")).await;
                (begin.elapsed(), decision)
            }));
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let mut decisions = Vec::new();
    for check in checks {
        decisions.push(check.await.unwrap());
    }
    decisions
}

fn assert_soon_after(begin: Instant) {
    let passed = begin.elapsed();
    assert!(passed < Duration::from_secs(1), "{passed:?}");
}

/// Whether a check timed out, or failed by the open breaker.
fn is_of_outage(decision: &Result<Decision, Error>) -> bool {
    let kind = decision.as_ref().err().map(Error::kind);
    matches!(kind, Some(ErrorKind::Timeout | ErrorKind::Unavailable))
}

/// The calls of the script that the server has run, once no more arrive. A new connection tries EVALSHA with a script that
/// no server knows: that is none of them.
async fn calls_at_last(server: &RedisServer) -> u64 {
    let mut connection = server.connect();
    let mut count = || {
        let calls = calls(&mut connection).get("evalsha").copied().unwrap_or(0);
        let errors = redis::cmd("INFO").arg("errorstats").query(&mut connection);
        let errors: String = errors.expect("INFO answers");
        let unknown = errors.split("errorstat_NOSCRIPT:count=").nth(1);
        let unknown = unknown.and_then(|rest| rest.lines().next()?.parse::<u64>().ok());
        calls - unknown.unwrap_or(0)
    };
    let mut last = count();
    loop {
        tokio::time::sleep(Duration::from_millis(100)).await;
        let now = count();
        if now == last {
            return now;
        }
        last = now;
    }
}

#[tokio::test]
async fn a_server_that_wakes_runs_no_more_than_two_stale_calls() {
    let server = RedisServer::start();
    let limiter = limiter(&server.url());
    let _ = decided(&limiter, "ada").await;
    forget_calls(&mut server.connect());
    signal(&server, "STOP");
    let (decisions, late) = with_lateness(drive(&limiter, Duration::from_millis(1_500))).await;
    // Until no probe is in flight, which would not be stale.
    tokio::time::sleep(DEADLINE * 2).await;
    signal(&server, "CONT");
    assert!(decisions.len() >= 500, "{} checks", decisions.len());
    for (_, decision) in &decisions {
        assert!(is_of_outage(decision), "{decision:?}");
    }
    let slowest = decisions.iter().map(|(time, _)| *time).max().unwrap();
    assert!(
        slowest < DEADLINE + Duration::from_millis(100) + late,
        "{slowest:?}, {late:?} late"
    );
    let stale = calls_at_last(&server).await;
    assert!((1..=2).contains(&stale), "{stale} calls");
    let begin = Instant::now();
    let _ = decided(&limiter, "ada").await;
    assert_soon_after(begin);
}

/// The ids of the clients of a server but this one.
fn others(connection: &mut redis::Connection) -> Vec<u64> {
    let id = redis::cmd("CLIENT").arg("ID").query(connection);
    let id: u64 = id.expect("CLIENT ID answers");
    let list = redis::cmd("CLIENT").arg("LIST").query(connection);
    let list: String = list.expect("CLIENT LIST answers");
    let ids = list.lines().map(|client| {
        let rest = client.strip_prefix("id=").expect("an id");
        let id = rest.split(' ').next().and_then(|id| id.parse().ok());
        id.expect("a number")
    });
    ids.filter(|other| *other != id).collect()
}

#[tokio::test]
async fn an_idle_connection_that_is_cut_is_replaced_before_the_next_check() {
    for protocol in ["resp2", "resp3"] {
        let server = RedisServer::start();
        let mut connection = server.connect();
        let store = RedisStore::open(&format!("{}?protocol={protocol}", server.url())).unwrap();
        let store = store.deadline(Duration::from_secs(10));
        let limiter = RateLimiter::new(store, Quota::per_hour(1_000_000));
        for round in 1..=20 {
            let decision = limiter.check("ada").await;
            assert_eq!(decision.unwrap().used(), round, "{protocol}");
            let [before] = others(&mut connection)[..] else {
                panic!("several connections");
            };
            run(
                &mut connection,
                &["CLIENT", "KILL", "ID", &before.to_string()],
            );
            let patience = Instant::now() + Duration::from_secs(5);
            while !others(&mut connection).iter().any(|id| *id > before) {
                assert!(Instant::now() < patience, "no new one of {protocol}");
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        }
    }
}

#[tokio::test]
async fn the_first_check_after_an_idle_server_was_restarted_is_decided() {
    for protocol in ["resp2", "resp3"] {
        let mut server = Node::start(&[]);
        let store = RedisStore::open(&format!("{}?protocol={protocol}", server.url())).unwrap();
        let store = store.deadline(Duration::from_secs(10));
        let limiter = RateLimiter::new(store, Quota::per_hour(1_000_000));
        for _ in 0..8 {
            let _ = limiter.check("ada").await.expect(protocol);
            server.kill();
            server.restart();
            // The runtime reads what has arrived at the connection.
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let _ = limiter.check("ada").await.expect(protocol);
    }
}

#[tokio::test]
async fn a_silent_connection_is_replaced() {
    let server = RedisServer::start();
    let relay = Relay::to(server.port()).await;
    let limiter = limiter(&relay.url());
    let _ = decided(&limiter, "ada").await;
    relay.block();
    let begin = Instant::now();
    let _ = decided(&limiter, "ada").await;
    assert_soon_after(begin);
    assert_eq!(relay.accepted(), 2);
}

#[tokio::test]
async fn callers_that_give_up_early_do_not_hide_a_silent_connection() {
    let server = RedisServer::start();
    let relay = Relay::to(server.port()).await;
    let limiter = limiter(&relay.url());
    let _ = decided(&limiter, "ada").await;
    relay.block();
    let (begin, impatience) = (Instant::now(), Duration::from_millis(5));
    while tokio::time::timeout(impatience, limiter.check("ada"))
        .await
        .is_err()
    {
        assert!(begin.elapsed() < Duration::from_secs(5), "never recovers");
    }
    assert_soon_after(begin);
}

#[tokio::test]
async fn callers_that_give_up_do_not_close_a_connection_that_answers() {
    let server = RedisServer::start();
    let relay = Relay::to(server.port()).await;
    let limiter = limiter(&relay.url());
    let _ = decided(&limiter, "ada").await;
    for _ in 0..200 {
        let check = limiter.check("ada");
        let _ = tokio::time::timeout(Duration::from_micros(50), check).await;
    }
    let _ = decided(&limiter, "ada").await;
    assert_eq!(relay.accepted(), 1);
}

#[tokio::test]
async fn a_server_that_pauses_for_longer_than_the_deadline_keeps_its_connection() {
    let server = RedisServer::start();
    let relay = Relay::to(server.port()).await;
    let limiter = limiter(&relay.url());
    let _ = decided(&limiter, "ada").await;
    signal(&server, "STOP");
    let error = limiter.check("ada").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Timeout);
    signal(&server, "CONT");
    let resumed = Instant::now();
    let _ = decided(&limiter, "ada").await;
    // The PING has at least 300 ms. A machine that stands still for as long is as a lost connection.
    let stood_still = resumed.elapsed() >= Duration::from_millis(300);
    assert!(relay.accepted() == 1 || stood_still, "{}", relay.accepted());
}

#[test]
fn a_check_dropped_in_another_runtime_does_not_close_the_connection() {
    let server = RedisServer::start();
    let limiter = limiter(&server.url());
    let (own, other) = (runtime(), runtime());
    let _ = own.block_on(decided(&limiter, "ada"));
    signal(&server, "STOP");
    let mut check = Box::pin(limiter.check("ada"));
    own.block_on(async {
        let impatience = DEADLINE * 7 / 10;
        let given_up = tokio::time::timeout(impatience, check.as_mut()).await;
        assert!(given_up.is_err());
    });
    other.block_on(async { drop(check) });
    // The task of the connection ends with its runtime.
    drop(other);
    signal(&server, "CONT");
    let _ = own.block_on(decided(&limiter, "ada"));
}

#[tokio::test]
async fn a_demoted_master_is_left_for_the_new_one_at_the_address() {
    let (old, new) = (RedisServer::start(), RedisServer::start());
    let relay = Relay::to(old.port()).await;
    let limiter = limiter(&relay.url());
    let _ = decided(&limiter, "ada").await;
    old.replicate(new.port());
    relay.lead_to(new.port());
    let begin = Instant::now();
    // The replica fails the entry, not the call.
    let error = limiter.check("ada").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
    let _ = decided(&limiter, "ada").await;
    assert!(
        begin.elapsed() < Duration::from_secs(2),
        "{:?}",
        begin.elapsed()
    );
}

#[tokio::test]
async fn reconnecting_to_a_replica_backs_off() {
    let (master, replica) = (RedisServer::start(), RedisServer::start());
    replica.replicate(master.port());
    let relay = Relay::to(replica.port()).await;
    let limiter = limiter(&relay.url());
    let _ = drive(&limiter, Duration::from_millis(1_200)).await;
    assert!((2..=4).contains(&relay.accepted()), "{}", relay.accepted());
}

#[tokio::test]
async fn many_waiters_share_one_connection_attempt() {
    // A listener that accepts connections and never answers.
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let limiter = limiter(&format!("redis://{}", listener.local_addr().unwrap()));
    let accepted = tokio::spawn(async move {
        let mut all = Vec::new();
        let window = tokio::time::sleep(Duration::from_millis(400));
        tokio::pin!(window);
        loop {
            tokio::select! {
                connection = listener.accept() => all.push(connection),
                () = &mut window => return all.len(),
            }
        }
    });
    let (decisions, late) = with_lateness(drive(&limiter, Duration::from_millis(300))).await;
    for (time, decision) in decisions {
        assert!(is_of_outage(&decision), "{decision:?}");
        let bound = DEADLINE + Duration::from_millis(100) + late;
        assert!(time < bound, "{time:?}, {late:?} late");
    }
    assert_eq!(accepted.await.unwrap(), 1);
}

#[tokio::test]
async fn a_server_without_hello_is_used_with_resp2() {
    let server = Node::start(&["--rename-command", "HELLO", ""]);
    let limiter = limiter(&server.url());
    assert_eq!(limiter.check("ada").await.unwrap().used(), 1);
}
