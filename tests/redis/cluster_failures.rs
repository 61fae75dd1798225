//! Nodes of a cluster that fail: three masters, a replica each.

use std::ops::Range;
use std::time::{Duration, Instant};

use tollgate::{Error, ErrorKind, Quota, RateLimiter, RedisStore};

use crate::support::cluster::Cluster;
use crate::support::decided;
use crate::support::node::{Node, wait_until};

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
    ranges: [Range<u16>; N],
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
    let [lost, neighbours] = keys_in(&cluster, AT_BORDER, 20);
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
