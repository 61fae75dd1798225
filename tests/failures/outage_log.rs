//! The log of outages and of wrong set-ups, with real servers: each has a beginning and an end.

use std::time::{Duration, Instant};

use tollgate::{FailurePolicy, Quota, RateLimiter, RedisStore};

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
            let lines = log::kept().into_iter();
            self.0
                .extend(lines.filter(|line| line.contains("tollgate::outage")));
        }
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
