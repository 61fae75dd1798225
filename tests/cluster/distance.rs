//! Redis at a distance: replies take long, and many checks are in flight.

use std::time::Duration;

use tollgate::{Error, ErrorKind, Quota, Quotas, RateLimiter, RedisStore};

use crate::support::decided;
use crate::support::node::Node;
use crate::support::redis_server::RedisServer;
use crate::support::relay::Relay;

const QUOTA: Quota = Quota::per_hour(1_000_000);

fn limiter(url: &str, deadline: Duration) -> RateLimiter {
    limiter_of(url, deadline, QUOTA)
}

/// A limiter of so many quotas that two or three of its checks fit into a call.
fn limiter_of_large_checks(url: &str, deadline: Duration) -> RateLimiter {
    let quotas = (3_600..3_628).map(|seconds| Quota::new(1_000_000, Duration::from_secs(seconds)));
    limiter_of(url, deadline, quotas.collect::<Quotas>())
}

fn limiter_of(url: &str, deadline: Duration, quotas: impl Into<Quotas>) -> RateLimiter {
    let store = RedisStore::open(url).unwrap().deadline(deadline);
    RateLimiter::new(store.block_list_refresh(Duration::ZERO), quotas.into())
}

/// Checks this many keys at once, and returns the errors.
async fn check_at_once(
    limiter: &RateLimiter,
    keys: impl IntoIterator<Item = String>,
) -> Vec<Error> {
    let checks = keys.into_iter().map(|key| {
        let limiter = limiter.clone();
        tokio::spawn(async move { limiter.check(key).await })
    });
    let mut errors = Vec::new();
    for check in checks.collect::<Vec<_>>() {
        errors.extend(check.await.unwrap().err());
    }
    errors
}

fn keys(count: usize) -> impl Iterator<Item = String> {
    (0..count).map(|key| format!("key:{key}"))
}

#[track_caller]
fn assert_kind(errors: &[Error], kind: ErrorKind) {
    let others = errors.iter().filter(|error| error.kind() != kind);
    let others: Vec<_> = others.collect();
    let of = errors.len();
    assert!(others.is_empty(), "{} of {of}: {}", others.len(), others[0]);
}

/// Makes more checks at once than are answered before the deadline.
async fn overload(limiter: &RateLimiter, checks: usize, carried: usize, remedy: &str) {
    let errors = check_at_once(limiter, keys(checks)).await;
    assert!(errors.len() >= checks - carried, "{} errors", errors.len());
    assert_kind(&errors, ErrorKind::QueueTimeout);
    let text = errors[0].to_string();
    for part in [
        "for its turn in this process",
        "answers other calls",
        remedy,
    ] {
        assert!(text.contains(part), "{text}");
    }
    // The circuit breaker is closed, and the queue is empty again.
    assert!(check_at_once(limiter, keys(1)).await.is_empty());
}

#[tokio::test]
async fn checks_that_wait_for_their_turn_say_so_and_do_not_open_the_circuit_breaker() {
    let server = RedisServer::start();
    let relay = Relay::to(server.port()).await;
    // Few of these checks fit into a call, and two calls are in flight at once.
    let limiter = limiter_of_large_checks(&relay.url(), Duration::from_secs(3));
    let _ = decided(&limiter, "first").await;
    relay.set_round_trip(Duration::from_millis(800));
    overload(
        &limiter,
        100,
        30,
        "divide the keys by `RedisStore::by_slot` and `RedisStore::hash_tags`",
    )
    .await;
}

/// The queue stays full. If it were sent in order until each deadline, all of it would be answered too late.
#[tokio::test]
async fn a_process_that_checks_more_than_the_connections_carry_gets_as_many_answers_as_they_carry()
{
    let server = RedisServer::start();
    let relay = Relay::to(server.port()).await;
    let limiter = limiter_of_large_checks(&relay.url(), Duration::from_secs(1));
    let _ = decided(&limiter, "first").await;
    relay.set_round_trip(Duration::from_millis(200));
    let mut checks = Vec::new();
    for key in keys(480) {
        let limiter = limiter.clone();
        checks.push(tokio::spawn(async move { limiter.check(key).await }));
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    // About 20 a second, of 100.
    let mut decided = 0;
    for check in checks.split_off(240) {
        decided += usize::from(check.await.unwrap().is_ok());
    }
    assert!(decided >= 12, "{decided}");
}

#[tokio::test]
async fn a_hung_server_opens_the_circuit_breaker_however_many_checks_wait_for_their_turn() {
    // With slots, each key is in a call of its own.
    for settings in ["", "?slots=on"] {
        let server = Node::start(&[]);
        let url = format!("{}{settings}", server.url());
        let limiter = limiter(&url, Duration::from_secs(1));
        let _ = decided(&limiter, "first").await;
        server.stop();
        let errors = check_at_once(&limiter, keys(300)).await;
        assert_eq!(errors.len(), 300);
        assert_kind(&errors, ErrorKind::Timeout);
        // It counts calls of the server. The checks share two of them, unless each key is in a call of its own.
        let max_later = if settings.is_empty() { 3 } else { 0 };
        let mut later = 0;
        loop {
            let error = limiter.check("next").await.unwrap_err().to_string();
            if error.contains("circuit breaker is open") {
                break;
            }
            later += 1;
            assert!(later <= max_later, "{error}");
        }
    }
}

/// A sharded server behind one address takes each key in a call of its own.
#[tokio::test]
async fn checks_by_slot_that_wait_for_their_turn_say_so_and_do_not_open_the_circuit_breaker() {
    let server = RedisServer::start_cluster();
    let relay = Relay::to(server.port()).await;
    let url = format!("{}?slots=on", relay.url());
    let limiter = limiter(&url, Duration::from_millis(4_200));
    let _ = decided(&limiter, "first").await;
    relay.set_round_trip(Duration::from_millis(1_200));
    // 256 at once, three times before the deadline.
    overload(
        &limiter,
        1_000,
        768,
        "divide the keys by `RedisStore::by_slot` and `RedisStore::hash_tags`",
    )
    .await;
}

#[cfg(feature = "cluster")]
mod of_a_cluster {
    use super::*;
    use crate::support::cluster::Cluster;
    use crate::support::redis_server::run;

    /// A cluster at this distance, to whose masters the limiter is connected.
    async fn start(round_trip: Duration, deadline: Duration) -> (Cluster, Vec<Relay>, RateLimiter) {
        let cluster = Cluster::start();
        let (relays, url) = cluster.behind_relays().await;
        let limiter = limiter(&url, deadline);
        for key in keys(30) {
            let _ = decided(&limiter, &key).await;
        }
        for relay in &relays {
            relay.set_round_trip(round_trip);
        }
        (cluster, relays, limiter)
    }

    /// With 8 calls in flight to each master, no more than 240 are decided before the deadline.
    #[tokio::test]
    async fn many_keys_without_hash_tags_are_all_decided() {
        let (round_trip, deadline) = (Duration::from_millis(500), Duration::from_secs(5));
        let (_cluster, _relays, limiter) = start(round_trip, deadline).await;
        let errors = check_at_once(&limiter, keys(600)).await;
        assert!(errors.len() <= 6, "{}: {}", errors.len(), errors[0]);
    }

    #[tokio::test]
    async fn checks_that_wait_for_their_turn_say_so_and_do_not_open_the_circuit_breaker() {
        let server = RedisServer::start_cluster();
        let relay = Relay::to(server.port()).await;
        let port = relay.port().to_string();
        let announce = ["CONFIG", "SET", "cluster-announce-port", &port];
        run(&mut server.connect(), &announce);
        let url = relay.url().replace("redis://", "redis+cluster://");
        let limiter = limiter(&url, Duration::from_millis(4_200));
        let _ = decided(&limiter, "first").await;
        relay.set_round_trip(Duration::from_millis(1_200));
        // 256 at once, three times before the deadline.
        overload(&limiter, 1_000, 768, "set `RedisStore::hash_tags`").await;
    }

    #[tokio::test]
    async fn a_master_that_hangs_delays_no_check_of_the_others() {
        let deadline = Duration::from_secs(3);
        let (cluster, relays, limiter) = start(Duration::ZERO, deadline).await;
        relays[0].block();
        let mut connection = cluster.nodes[0].connect();
        let (of_hung, of_others): (Vec<_>, Vec<_>) = keys(900).partition(|key| {
            let mut command = redis::cmd("CLUSTER");
            command.arg("KEYSLOT").arg(format!("{{default,{key}}}"));
            let slot: u16 = command.query(&mut connection).unwrap();
            slot < 16_384 / 3
        });
        // More than may be in flight to the master that hangs.
        assert!(of_hung.len() > 260, "{}", of_hung.len());
        let hung = {
            let limiter = limiter.clone();
            tokio::spawn(async move { check_at_once(&limiter, of_hung).await })
        };
        tokio::task::yield_now().await;
        assert!(check_at_once(&limiter, of_others).await.is_empty());
        assert!(!hung.is_finished());
        let failed = hung.await.unwrap();
        assert!(failed.len() > 260, "{}", failed.len());
        assert_kind(&failed, ErrorKind::Timeout);
    }

    /// Two masters send a check to each other, as they do for a moment at the end of a move.
    #[tokio::test]
    async fn a_check_is_asked_again_until_the_masters_agree_who_has_the_slot() {
        let cluster = Cluster::start();
        let limiter = limiter(&cluster.url(), Duration::from_secs(10));
        let key = keys(1_000)
            .find(|key| cluster.master_of(&format!("{{default,{key}}}")) == 0)
            .unwrap();
        let _ = decided(&limiter, "first").await;
        let (from, to) = (&cluster.nodes[0], &cluster.nodes[1]);
        let slot: u16 = from.ask(&["CLUSTER", "KEYSLOT", &format!("{{default,{key}}}")]);
        let slot = slot.to_string();
        let id: String = to.ask(&["CLUSTER", "MYID"]);
        let ends_move = ["CLUSTER", "SETSLOT", &slot, "NODE", &id];
        let () = from.ask(&ends_move);
        let check = tokio::spawn(async move { limiter.check(key).await });
        tokio::time::sleep(Duration::from_millis(60)).await;
        let () = to.ask(&ends_move);
        assert_eq!(check.await.unwrap().unwrap().used(), 1);
        let moved: String = from.ask(&["INFO", "errorstats"]);
        assert!(moved.contains("errorstat_MOVED"), "{moved}");
    }
}
