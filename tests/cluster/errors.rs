//! Errors of a cluster name the node that failed.

use std::time::{Duration, Instant};

use tollgate::{ErrorKind, Quota, RateLimiter, RedisStore};

use crate::failures::keys_in;
use crate::support::cluster::Cluster;
use crate::support::decided;

/// A master that fails takes no other with it.
fn start() -> Cluster {
    Cluster::start_with(&["--cluster-require-full-coverage", "no"])
}

/// A limiter on a store with a long deadline, for a machine that runs other tests.
fn limiter(cluster: &Cluster) -> RateLimiter {
    let store = RedisStore::open(&cluster.url()).unwrap();
    RateLimiter::new(
        store.deadline(Duration::from_secs(5)),
        Quota::per_hour(1_000_000),
    )
}

/// Asserts that a text names a node, and no other.
#[track_caller]
fn assert_names(text: &str, cluster: &Cluster, node: usize) {
    for (index, other) in cluster.nodes.iter().enumerate() {
        let is_named = text.contains(&other.address());
        assert_eq!(is_named, index == node, "{}: {text}", other.address());
    }
}

/// The keys of a limiter on each master.
fn key_of_each(cluster: &Cluster) -> [String; 3] {
    keys_in(cluster, &[0..5_000, 6_000..10_000, 11_000..16_000], 1)
        .map(|keys| keys.into_iter().next().unwrap())
}

#[tokio::test]
async fn an_error_reply_is_told_with_the_node_that_sent_it() {
    let cluster = start();
    let limiter = limiter(&cluster);
    let keys = key_of_each(&cluster);
    for (node, key) in keys.iter().enumerate() {
        let _ = decided(&limiter, key).await;
        let () = cluster.nodes[node].ask(&["CONFIG", "SET", "maxmemory", "1"]);
        let error = limiter.check(key.as_str()).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Full, "{error}");
        assert_names(&error.to_string(), &cluster, node);
        let error = limiter.admin().credit(key.as_str(), 1).await;
        if let Err(error) = error {
            assert_names(&error.to_string(), &cluster, node);
        }
    }
}

#[tokio::test]
async fn a_node_that_hangs_is_named_by_checks_refunds_and_ping() {
    let mut cluster = start();
    // No replica takes its place.
    cluster.nodes[4].kill();
    let store = RedisStore::open(&cluster.url()).unwrap();
    let store = store.deadline(Duration::from_secs(1));
    let limiter = RateLimiter::new(store.clone(), Quota::per_hour(1_000_000));
    let keys = key_of_each(&cluster);
    let mut decisions = Vec::new();
    for key in &keys {
        decisions.push(decided(&limiter, key).await);
    }
    store.ping().await.unwrap();
    cluster.nodes[1].stop();
    let refund = decisions[1].refund(1).await.unwrap_err();
    let check = limiter.check(keys[1].as_str()).await.unwrap_err();
    let ping = store.ping().await.unwrap_err();
    cluster.nodes[1].resume();
    for text in [refund, check, ping].map(|error| error.to_string()) {
        assert!(text.contains("did not answer"), "{text}");
        assert_names(&text, &cluster, 1);
    }
}

#[tokio::test]
async fn a_node_that_is_down_is_named_by_checks_refunds_and_ping() {
    let mut cluster = start();
    let store = RedisStore::open(&cluster.url()).unwrap();
    let store = store.deadline(Duration::from_secs(5));
    let limiter = RateLimiter::new(store.clone(), Quota::per_hour(1_000_000));
    let keys = key_of_each(&cluster);
    let mut decisions = Vec::new();
    for key in &keys {
        decisions.push(decided(&limiter, key).await);
    }
    cluster.nodes[4].kill();
    cluster.nodes[1].kill();
    // The first command may find its connection cut.
    let _ = limiter.check(keys[1].as_str()).await;
    let refund = decisions[1].refund(1).await.unwrap_err();
    let check = limiter.check(keys[1].as_str()).await.unwrap_err();
    let ping = store.ping().await.unwrap_err();
    for text in [refund, check, ping].map(|error| error.to_string()) {
        assert!(text.contains("refused"), "{text}");
        assert_names(&text, &cluster, 1);
    }
}

#[tokio::test]
async fn a_password_that_changes_fails_by_name_and_heals() {
    let cluster = start();
    let with_password = |password: &str| {
        for node in &cluster.nodes {
            let user = [
                "ACL",
                "SETUSER",
                "limiter",
                "on",
                "resetpass",
                "+@all",
                "~*",
            ];
            let password = format!(">{password}");
            let () = node.ask(&[&user[..], &[&password]].concat());
            // Their connections end.
            let _: u64 = node.ask(&["CLIENT", "KILL", "USER", "limiter"]);
        }
    };
    with_password("hunter2");
    let url = cluster.url().replace("://", "://limiter:hunter2@");
    let store = RedisStore::open(&url).unwrap();
    let store = store.deadline(Duration::from_secs(5));
    let limiter = RateLimiter::new(store, Quota::per_hour(1_000_000));
    let keys = key_of_each(&cluster);
    for key in &keys {
        let _ = decided(&limiter, key).await;
    }
    with_password("other");
    for (node, key) in keys.iter().enumerate() {
        let patience = Instant::now() + Duration::from_secs(10);
        let error = loop {
            match limiter.check(key.as_str()).await {
                Err(error) if error.kind() == ErrorKind::Misconfigured => break error,
                outcome => assert!(Instant::now() < patience, "{outcome:?}"),
            }
        };
        let text = error.to_string();
        assert!(
            text.contains("WRONGPASS") || text.contains("the password"),
            "{text}"
        );
        assert!(!text.contains("hunter2"), "{text}");
        assert_names(&text, &cluster, node);
    }
    with_password("hunter2");
    for key in &keys {
        let _ = decided(&limiter, key).await;
    }
}
