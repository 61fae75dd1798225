//! Limiters of one name and store in one process.

use std::time::Duration;

use tollgate::{Quota, RateLimiter, RedisStore};

use crate::support::log;
use crate::support::redis_server::RedisServer;

fn open(url: &str) -> RedisStore {
    let store = RedisStore::open(url).expect("a URL");
    store.deadline(Duration::from_secs(10))
}

fn limiter(store: &RedisStore, limit: u32) -> RateLimiter {
    RateLimiter::new(store.clone(), Quota::per_minute(limit))
}

async fn check(limiter: &RateLimiter) {
    let _ = limiter.check("ada").await.expect("Redis answers");
}

/// What is logged about limiters of one name.
fn told() -> Vec<String> {
    let mut lines = log::all_kept();
    lines.retain(|line| line.contains("of this name"));
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

#[tokio::test]
async fn two_limiters_of_one_store_with_other_quotas_are_one_line() {
    log::keep();
    let server = RedisServer::start();
    let store = open(&server.url());
    let limiters = [limiter(&store, 100), limiter(&store, 5)];
    for limiter in &limiters {
        check(limiter).await;
    }
    is_one_line(
        &told(),
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
        assert_eq!(told(), [""; 0], "{limit}");
    }
}
