//! The log of outages and of wrong set-ups, with real servers: each has a beginning and an end.

use std::time::{Duration, Instant};

use tollgate::{FailurePolicy, Quota, RateLimiter, RedisStore, Source};

use crate::support::log;
use crate::support::node::Node;
use crate::support::redis_server::{RedisServer, run};

fn limiter(url: &str) -> RateLimiter {
    // A slow machine is no outage.
    let store = RedisStore::open(url).unwrap();
    let store = store.deadline(Duration::from_secs(10));
    RateLimiter::new(store, Quota::per_hour(1_000_000))
        .name("search")
        .on_failure(FailurePolicy::open())
}

/// The lines of the log of outages so far.
#[derive(Default)]
struct Lines(Vec<String>);

impl Lines {
    /// Checks these keys in turn until there are this many lines.
    async fn grow_to(&mut self, count: usize, limiter: &RateLimiter, keys: &[&str]) {
        // A wrong set-up of some keys is over after a minute without a failure.
        let patience = Instant::now() + Duration::from_secs(90);
        while self.0.len() < count {
            assert!(Instant::now() < patience, "{:#?}", self.0);
            for key in keys {
                let _ = limiter.check(*key).await;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
            self.take_in();
        }
    }

    /// Waits until there are this many lines, without a check.
    async fn grow_alone_to(&mut self, count: usize) {
        let patience = Instant::now() + Duration::from_secs(20);
        while self.0.len() < count {
            assert!(Instant::now() < patience, "{:#?}", self.0);
            tokio::time::sleep(Duration::from_millis(10)).await;
            self.take_in();
        }
    }

    fn take_in(&mut self) {
        let lines = log::kept().into_iter();
        self.0
            .extend(lines.filter(|line| line.contains("tollgate::outage")));
    }

    fn assert_say(&self, expected: &[[&str; 3]]) {
        let Self(lines) = self;
        assert_eq!(lines.len(), expected.len(), "{lines:#?}");
        for (line, expected) in lines.iter().zip(expected) {
            for text in expected {
                assert!(line.contains(text), "{text}: {lines:#?}");
            }
        }
    }
}

#[tokio::test]
async fn an_outage_beside_a_key_of_another_type_begins_and_ends_and_so_does_the_wrong_setup() {
    log::keep();
    let mut server = Node::start(&[]);
    let limiter = limiter(&server.url());
    let spoil = |server: &Node| {
        let () = server.ask(&["SET", "tollgate:v3:{search,wrong}:log", "somebody else's"]);
    };
    spoil(&server);
    let (mut lines, keys) = (Lines::default(), ["ada", "wrong"]);
    lines.grow_to(1, &limiter, &keys).await;
    server.kill();
    lines.grow_to(2, &limiter, &keys).await;
    server.restart();
    spoil(&server);
    lines.grow_to(3, &limiter, &keys).await;
    let _: u64 = server.ask(&["DEL", "tollgate:v3:{search,wrong}:log"]);
    lines.grow_to(4, &limiter, &keys).await;
    lines.assert_say(&[
        ["ERROR", "the store is misconfigured", "WRONGTYPE"],
        ["WARN", "the store failed", "failed to reach Redis"],
        ["INFO", "the store works again", "search"],
        ["INFO", "the store is no longer misconfigured", "search"],
    ]);
}

#[tokio::test]
async fn a_password_that_is_wrong_or_missing_is_logged_and_so_is_its_repair() {
    log::keep();
    for (user, right, reply) in [(":hunter2@", "hunter2", "WRONGPASS"), ("", "", "NOAUTH")] {
        let server = RedisServer::start();
        let mut connection = server.connect();
        run(&mut connection, &["CONFIG", "SET", "requirepass", "other"]);
        let limiter = limiter(&server.url().replace("//", &format!("//{user}")));
        let mut lines = Lines::default();
        let begin = Instant::now();
        // All checks fail for more than a second: the wrong set-up does not concern some keys only.
        while begin.elapsed() < Duration::from_millis(1_500) {
            let _ = limiter.check("ada").await;
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        lines.grow_to(1, &limiter, &["ada"]).await;
        run(&mut connection, &["CONFIG", "SET", "requirepass", right]);
        let repaired = Instant::now();
        lines.grow_to(2, &limiter, &["ada"]).await;
        // A second without a failure, not a minute.
        let took = repaired.elapsed();
        assert!(took < Duration::from_secs(20), "{took:?}");
        lines.assert_say(&[
            ["ERROR", "the store is misconfigured", reply],
            ["INFO", "the store is no longer misconfigured", "search"],
        ]);
    }
}

#[tokio::test]
async fn the_outage_of_an_idle_process_ends_when_the_server_is_back() {
    log::keep();
    // One failure begins an outage, and five open the circuit breaker.
    for failures in [1, 10] {
        let mut server = Node::start(&[]);
        let limiter = limiter(&server.url());
        let _ = limiter.check("ada").await;
        server.kill();
        let mut lines = Lines::default();
        for _ in 0..failures {
            let _ = limiter.check("ada").await;
        }
        lines.grow_alone_to(1).await;
        // Longer than an outage lasts without a failure.
        tokio::time::sleep(Duration::from_millis(1_500)).await;
        server.restart();
        lines.grow_alone_to(2).await;
        lines.assert_say(&[
            ["WARN", "the store failed", "failed to reach Redis"],
            ["INFO", "the store works again", "search"],
        ]);
        let decision = limiter.check("ada").await.unwrap();
        assert_eq!(decision.source(), Source::Redis);
    }
}

#[tokio::test]
async fn an_outage_by_a_reply_ends_with_a_check_and_not_when_the_server_answers_a_ping() {
    log::keep();
    let (master, replica) = (RedisServer::start(), RedisServer::start());
    replica.replicate(master.port());
    let limiter = limiter(&replica.url());
    let mut lines = Lines::default();
    for _ in 0..10 {
        let _ = limiter.check("ada").await;
    }
    lines.grow_alone_to(1).await;
    tokio::time::sleep(Duration::from_secs(3)).await;
    lines.take_in();
    run(&mut replica.connect(), &["REPLICAOF", "NO", "ONE"]);
    let before = lines.0.len();
    lines.grow_to(2, &limiter, &["ada"]).await;
    assert_eq!(before, 1);
    lines.assert_say(&[
        ["WARN", "the store failed", "READONLY"],
        ["INFO", "the store works again", "search"],
    ]);
}
