//! Nodes of a cluster that fail: three masters, a replica each.

use std::ops::Range;
use std::time::{Duration, Instant};

use tollgate::{Error, ErrorKind, Quota, RateLimiter, RedisStore};

use crate::support::cluster::Cluster;
use crate::support::decided;
use crate::support::node::wait_until;

/// The slots of the first two masters at their border. A multiple of 256 lies on either side, but not between.
const AT_BORDER: [Range<u16>; 2] = [5_376..5_461, 5_461..5_632];

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

/// Returns this many keys for each of these ranges of slots.
fn keys_in<const N: usize>(
    cluster: &Cluster,
    ranges: &[Range<u16>; N],
    count: usize,
) -> [Vec<String>; N] {
    let mut found = [const { Vec::new() }; N];
    let mut connection = cluster.nodes[2].connect();
    for thousand in 0.. {
        let keys: Vec<_> = (0..1_000)
            .map(|key| format!("key:{thousand}:{key}"))
            .collect();
        let mut slots = redis::pipe();
        for key in &keys {
            slots
                .cmd("CLUSTER")
                .arg("KEYSLOT")
                .arg(format!("{{default,{key}}}"));
        }
        let slots: Vec<u16> = slots.query(&mut connection).unwrap();
        for (key, slot) in keys.into_iter().zip(slots) {
            let at = ranges.iter().position(|range| range.contains(&slot));
            if let Some(of_range) = at.map(|at| &mut found[at])
                && of_range.len() < count
            {
                of_range.push(key);
            }
        }
        if found.iter().all(|keys| keys.len() == count) {
            break;
        }
    }
    found
}

fn is_of_open_breaker(error: &Error) -> bool {
    error.to_string().contains("the circuit breaker is open")
}

/// Checks a key until its circuit breaker is open.
async fn until_open(limiter: &RateLimiter, key: &str) {
    let patience = Instant::now() + Duration::from_secs(20);
    loop {
        match limiter.check(key).await {
            Err(error) if is_of_open_breaker(&error) => return,
            outcome => assert!(Instant::now() < patience, "{outcome:?}"),
        }
    }
}

#[tokio::test]
async fn the_neighbours_of_a_dead_master_are_decided_by_redis() {
    let mut cluster = start();
    let limiter = limiter(&cluster);
    let [lost, neighbours] = keys_in(&cluster, &AT_BORDER, 20);
    for key in &neighbours {
        let _ = decided(&limiter, key).await;
    }
    // No replica takes its place.
    cluster.nodes[3].kill();
    cluster.nodes[0].kill();
    until_open(&limiter, &lost[0]).await;
    let (mut checks, mut failures) = (0, Vec::new());
    let begin = Instant::now();
    while begin.elapsed() < Duration::from_secs(2) {
        for (lost, neighbour) in lost.iter().zip(&neighbours) {
            assert!(limiter.check(lost.as_str()).await.is_err());
            checks += 1;
            failures.extend(limiter.check(neighbour.as_str()).await.err());
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let (failed, first) = (failures.len(), failures.first());
    assert!(failed == 0, "{failed} of {checks} failed: {first:?}");
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
async fn a_node_that_hangs_is_named_by_checks_refunds_ping_and_the_doctor() {
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
    let refund = limiter.refund(&mut decisions[1], 1).await.unwrap_err();
    let check = limiter.check(keys[1].as_str()).await.unwrap_err();
    let ping = store.ping().await.unwrap_err();
    let report = store.doctor().await.to_string();
    cluster.nodes[1].resume();
    for text in [refund, check, ping].map(|error| error.to_string()) {
        assert!(text.contains("did not answer"), "{text}");
        assert_names(&text, &cluster, 1);
    }
    assert_names(&report, &cluster, 1);
}

#[tokio::test]
async fn a_node_that_is_down_is_named_by_checks_refunds_ping_and_the_doctor() {
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
    let refund = limiter.refund(&mut decisions[1], 1).await.unwrap_err();
    let check = limiter.check(keys[1].as_str()).await.unwrap_err();
    let ping = store.ping().await.unwrap_err();
    for text in [refund, check, ping].map(|error| error.to_string()) {
        assert!(text.contains("refused"), "{text}");
        assert_names(&text, &cluster, 1);
    }
    assert_names(&store.doctor().await.to_string(), &cluster, 1);
}

#[tokio::test]
async fn checks_are_decided_again_after_all_nodes_were_restarted() {
    let mut cluster = start();
    let limiter = limiter(&cluster);
    let keys = key_of_each(&cluster);
    for key in &keys {
        let _ = decided(&limiter, key).await;
    }
    for node in &mut cluster.nodes {
        node.kill();
    }
    for key in &keys {
        until_open(&limiter, key).await;
    }
    for node in &mut cluster.nodes {
        node.restart();
    }
    for node in &cluster.nodes {
        wait_until("the cluster is up", || {
            let info: String = node.ask(&["CLUSTER", "INFO"]);
            info.contains("cluster_state:ok")
        });
    }
    for key in &keys {
        let _ = decided(&limiter, key).await;
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
