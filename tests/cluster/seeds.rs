//! A cluster is found through each node that knows it, wherever its nodes are.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tollgate::{Quota, RateLimiter, RedisStore};

use crate::support::cluster::{Cluster, hand_over, join_empty};
use crate::support::decided;
use crate::support::node::{Node, wait_until};
use crate::support::proxy::{Proxy, Wire};
use crate::support::redis_server::{DeadPort, RedisServer};
use crate::support::relay::Relay;

const KEYS: usize = 40;

/// A long deadline, for a machine that runs other tests.
fn limiter(addresses: &[String]) -> RateLimiter {
    let url = format!("redis+cluster://{}", addresses.join(","));
    let store = RedisStore::open(&url).unwrap();
    RateLimiter::new(
        store.deadline(Duration::from_secs(10)),
        Quota::per_hour(1_000_000),
    )
}

fn blank() -> Node {
    Node::start(&["--cluster-enabled", "yes"])
}

/// Checks each of some keys, which are in slots of all masters, and returns the first error.
async fn check_all(limiter: &RateLimiter) -> Result<Vec<u32>, String> {
    let mut used = Vec::new();
    for key in 0..KEYS {
        let decision = limiter.check(format!("key:{key}")).await;
        used.push(decision.map_err(|error| error.to_string())?.used());
    }
    Ok(used)
}

#[tokio::test]
async fn a_seed_that_does_not_know_the_cluster_is_passed_over() {
    let cluster = Cluster::of_masters(3, &[]);
    let addresses = cluster.nodes.iter().map(Node::address);
    let addresses: Vec<_> = addresses.collect();
    let (blank, standalone, dead) = (blank(), RedisServer::start(), DeadPort::new());
    // It serves a few slots and knows of no other node.
    let alone = self::blank();
    let () = alone.ask(&["CLUSTER", "ADDSLOTS", "0", "1", "2"]);
    let of_port = |port: u16| format!("127.0.0.1:{port}");
    let useless = [
        ("blank", blank.address()),
        ("alone", alone.address()),
        ("standalone", of_port(standalone.port())),
        ("dead", of_port(dead.port())),
    ];
    let mut wrong = Vec::new();
    let mut expected = 0;
    for (name, seed) in &useless {
        let outcome = check_all(&limiter(
            &[std::slice::from_ref(seed), &addresses[1..]].concat(),
        ))
        .await;
        expected += 1;
        if outcome != Ok(vec![expected; KEYS]) {
            wrong.push(format!("{name} first: {outcome:?}"));
            expected -= 1;
        }
    }
    let seeds = useless.map(|(_, seed)| seed);
    let outcome = check_all(&limiter(&[&seeds[..], &addresses[2..]].concat())).await;
    if outcome != Ok(vec![expected + 1; KEYS]) {
        wrong.push(format!("all of them first: {outcome:?}"));
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

#[tokio::test]
async fn the_first_check_waits_for_a_slow_seed_until_the_deadline_but_not_for_one_of_several() {
    let cluster = Cluster::of_masters(1, &[]);
    let slow = Proxy::before(cluster.nodes[0].port()).await;
    slow.set(Wire::SlowStart(Duration::from_millis(800)));
    let silent = Proxy::before(cluster.nodes[0].port()).await;
    silent.set(Wire::Hole);
    let [slow, silent] = [slow.port(), silent.port()].map(|port| format!("127.0.0.1:{port}"));
    let patient = |seeds: &[String]| {
        let url = format!("redis+cluster://{}", seeds.join(","));
        let store = RedisStore::open(&url).unwrap();
        RateLimiter::new(store.deadline(Duration::from_secs(2)), Quota::per_hour(9))
    };
    let used = async |limiter: RateLimiter| limiter.check("ada").await.unwrap().used();
    assert_eq!(used(patient(std::slice::from_ref(&slow))).await, 1);
    assert_eq!(used(patient(&[silent, slow])).await, 2);
}

#[tokio::test]
async fn a_process_whose_masters_were_all_replaced_finds_the_others_through_any_seed() {
    let cluster = Cluster::of_masters(2, &[]);
    let former: Vec<&Node> = cluster.nodes.iter().collect();
    let third = join_empty(&cluster.nodes);
    let seeds = [former[0], former[1], &third].map(Node::address);
    let limiter = limiter(&seeds);
    assert_eq!(check_all(&limiter).await, Ok(vec![1; KEYS]));
    for (index, from) in former.iter().enumerate() {
        hand_over(
            from,
            &third,
            cluster.slots_of(index),
            &former[1 - index..=1 - index],
        );
    }
    let ids = former.iter().map(|node| node.ask(&["CLUSTER", "MYID"]));
    let ids: Vec<String> = ids.collect();
    for node in &former {
        let () = node.ask(&["CLUSTER", "RESET"]);
    }
    for id in &ids {
        let () = third.ask(&["CLUSTER", "FORGET", id]);
    }
    wait_until("one node has all slots", || {
        let info: String = third.ask(&["CLUSTER", "INFO"]);
        info.contains("cluster_state:ok") && info.contains("cluster_known_nodes:1\r\n")
    });
    // Both nodes that this process knows answer, and serve nothing.
    assert_eq!(decided(&limiter, "key:0").await.used(), 2);
    assert_eq!(
        check_all(&limiter).await.map(|used| used[1..].to_vec()),
        Ok(vec![2; KEYS - 1])
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn six_masters_reduced_to_three_under_load_answer_every_check_and_lose_no_count() {
    let cluster = Cluster::of_masters(6, &[]);
    let addresses = cluster.nodes.iter().map(Node::address);
    let addresses: Vec<_> = addresses.collect();
    let limiter = limiter(&addresses);
    assert_eq!(check_all(&limiter).await, Ok(vec![1; KEYS]));
    let has_ended = Arc::new(AtomicBool::new(false));
    let load = {
        let (limiter, has_ended) = (limiter.clone(), Arc::clone(&has_ended));
        tokio::spawn(async move {
            let mut rounds = 1;
            while !has_ended.load(Ordering::Relaxed) {
                rounds += 1;
                let used = check_all(&limiter).await;
                assert_eq!(used, Ok(vec![rounds; KEYS]));
            }
            rounds
        })
    };
    let (removed, left) = cluster.nodes.split_at(3);
    for (index, (from, to)) in removed.iter().zip(left).enumerate() {
        let is_other = |node: &&Node| ![from.port(), to.port()].contains(&node.port());
        let others: Vec<_> = cluster.nodes.iter().filter(is_other).collect();
        hand_over(from, to, cluster.slots_of(index), &others);
    }
    for node in removed {
        let id: String = node.ask(&["CLUSTER", "MYID"]);
        let () = node.ask(&["CLUSTER", "RESET"]);
        for other in left {
            let () = other.ask(&["CLUSTER", "FORGET", &id]);
        }
    }
    for node in left {
        wait_until("three masters have all slots", || {
            let info: String = node.ask(&["CLUSTER", "INFO"]);
            info.contains("cluster_state:ok") && info.contains("cluster_known_nodes:3\r\n")
        });
    }
    has_ended.store(true, Ordering::Relaxed);
    let rounds = load.await.unwrap();
    // The nodes that were removed come first in the URL of processes that start now.
    let limiter = self::limiter(&addresses);
    assert_eq!(check_all(&limiter).await, Ok(vec![rounds + 1; KEYS]));
}

#[tokio::test]
async fn nodes_at_new_addresses_are_found_through_the_others_and_through_the_seeds() {
    let mut cluster = Cluster::of_masters(3, &[]);
    let relay = Relay::to(cluster.nodes[0].port()).await;
    let limiter = limiter(&[format!("127.0.0.1:{}", relay.port())]);
    assert_eq!(check_all(&limiter).await, Ok(vec![1; KEYS]));

    cluster.nodes[1].kill();
    cluster.nodes[1].restart_elsewhere();
    all_know(&cluster);
    for key in 0..KEYS {
        let _ = decided(&limiter, &format!("key:{key}")).await;
    }

    for node in &mut cluster.nodes {
        node.kill();
    }
    for node in &mut cluster.nodes {
        node.restart_elsewhere();
    }
    // Each finds nobody at the addresses that it knows.
    for node in &cluster.nodes {
        for other in &cluster.nodes {
            let port = other.port().to_string();
            let () = node.ask(&["CLUSTER", "MEET", "127.0.0.1", &port]);
        }
    }
    all_know(&cluster);
    relay.lead_to(cluster.nodes[0].port());
    for key in 0..KEYS {
        let _ = decided(&limiter, &format!("key:{key}")).await;
    }
}

/// Waits until each node knows the address of each.
fn all_know(cluster: &Cluster) {
    let ports = cluster
        .nodes
        .iter()
        .map(|node| format!(":{}@", node.port()));
    let ports: Vec<_> = ports.collect();
    for node in &cluster.nodes {
        wait_until("all nodes know the new addresses", || {
            let nodes: String = node.ask(&["CLUSTER", "NODES"]);
            let info: String = node.ask(&["CLUSTER", "INFO"]);
            ports.iter().all(|port| nodes.contains(port)) && info.contains("cluster_state:ok")
        });
    }
}
