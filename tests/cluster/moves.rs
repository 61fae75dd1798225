//! What checks cost, and how they are decided, while slots move from one master to another or a master is down.

use std::num::NonZeroU16;
use std::time::{Duration, Instant};

use tollgate::store::HashTags;
use tollgate::{Error, Quota, RateLimiter, RedisStore};

use crate::support::cluster::{Cluster, Move, hand_over, join_empty};
use crate::support::costs::calls_in;
use crate::support::decided;
use crate::support::node::{Node, wait_until};
use crate::support::reply_proxy::ReplyFault;

/// Its log is read in pages.
const QUOTA: Quota = Quota::per_hour(1_000_000);

/// With the default deadline.
fn store(cluster: &Cluster) -> RedisStore {
    RedisStore::open(&cluster.url()).unwrap()
}

/// A long deadline, for a machine that runs other tests.
fn patient(cluster: &Cluster) -> RedisStore {
    store(cluster).deadline(Duration::from_secs(10))
}

/// Keys on this master at the start, and their slots.
fn keys_on(cluster: &Cluster, master: usize) -> impl Iterator<Item = (String, usize)> {
    let keys = (0..).map(|key| format!("key:{key}"));
    let with_slot = |key: String| {
        let slot = cluster.slot_of(&format!("{{default,{key}}}"));
        (key, slot)
    };
    let slots = cluster.slots_of(master);
    keys.map(with_slot)
        .filter(move |(_, slot)| slots.contains(slot))
}

fn key_on(cluster: &Cluster, master: usize) -> (String, usize) {
    keys_on(cluster, master).next().unwrap()
}

fn stat(node: &Node, section: &str, prefix: &str) -> u64 {
    let info: String = node.ask(&["INFO", section]);
    let line = info.lines().find_map(|line| line.strip_prefix(prefix));
    let number = line.and_then(|line| line.split(',').next());
    number.map_or(0, |number| number.trim().parse().unwrap())
}

/// How many connections a server has accepted.
fn accepted(connection: &mut redis::Connection) -> u64 {
    let info: redis::RedisResult<redis::InfoDict> =
        redis::cmd("INFO").arg("stats").query(connection);
    let accepted = info.unwrap().get("total_connections_received");
    accepted.unwrap()
}

/// How often a node has said that it has only some of the keys of a call.
fn tries_again(node: &Node) -> u64 {
    stat(node, "errorstats", "errorstat_TRYAGAIN:count=")
}

fn map_reads(node: &Node) -> u64 {
    let info: String = node.ask(&["INFO", "commandstats"]);
    let calls = calls_in(&info);
    // Before Redis 7.0, subcommands have no separate lines.
    let reads = ["cluster|slots", "cluster"].map(|name| calls.get(name));
    reads.into_iter().flatten().next().copied().unwrap_or(0)
}

/// Checks a key so many times, one after the other, and returns how many were decided.
async fn decided_of(limiter: &RateLimiter, key: &str, checks: usize) -> usize {
    let mut decided = 0;
    for _ in 0..checks {
        decided += usize::from(limiter.check(key).await.is_ok());
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    decided
}

#[tokio::test(start_paused = true)]
async fn checks_are_decided_while_the_clock_of_tokio_is_paused() {
    let cluster = Cluster::of_masters(2, &[]);
    let limiter = RateLimiter::new(patient(&cluster), QUOTA);
    for (key, _) in [key_on(&cluster, 0), key_on(&cluster, 1)] {
        for used in 1..=20 {
            assert_eq!(limiter.check(&*key).await.unwrap().used(), used);
            tokio::time::sleep(Duration::from_secs(60)).await;
        }
    }
}

#[tokio::test]
async fn checks_are_decided_within_the_default_deadline_while_their_slot_moves() {
    const CHECKS: usize = 36;
    let cluster = Cluster::of_masters(2, &[]);
    let limiter = RateLimiter::new(store(&cluster), QUOTA);
    let (key, slot) = key_on(&cluster, 0);
    let _ = decided(&limiter, &key).await;
    let [from, to] = [&cluster.nodes[0], &cluster.nodes[1]];
    let all_tries_again = || tries_again(from) + tries_again(to);
    let slot = Move::begin(from, to, slot);
    let before = decided_of(&limiter, &key, CHECKS).await;
    let tried_before = all_tries_again();
    let keys = slot.keys();
    slot.take(&[&keys[0]]);
    let after = decided_of(&limiter, &key, CHECKS).await;
    let tried_after = all_tries_again() - tried_before;
    slot.end(&[]);
    let found = format!(
        "before the key moved: {before} of {CHECKS} decided, TRYAGAIN {tried_before} times; \
         after it: {after} of {CHECKS}, TRYAGAIN {tried_after} times"
    );
    println!("{found}");
    // A check has one key.
    assert_eq!((tried_before, tried_after), (0, 0), "{found}");
    // A machine that runs other tests may miss a deadline.
    assert!(before >= CHECKS - 6 && after >= CHECKS - 6, "{found}");
}

#[tokio::test]
async fn a_long_log_is_counted_exactly_while_its_slot_moves() {
    let cluster = Cluster::of_masters(2, &[]);
    let limiter = RateLimiter::new(patient(&cluster), QUOTA);
    let (key, slot) = key_on(&cluster, 0);
    let mut last = limiter.check(key.as_str()).await.unwrap();
    for _ in 1..400 {
        last = limiter.check(key.as_str()).await.unwrap();
    }
    assert_eq!(last.used(), 400);
    let [from, to] = [&cluster.nodes[0], &cluster.nodes[1]];
    let slot = Move::begin(from, to, slot);
    let keys = slot.keys();
    assert_eq!(keys.len(), 1, "{keys:?}");
    assert_eq!(limiter.check(key.as_str()).await.unwrap().used(), 401);
    last.refund(1).await.unwrap();
    slot.take(&[&keys[0]]);
    last = limiter.check(key.as_str()).await.unwrap();
    assert_eq!(last.used(), 401);
    last.refund(1).await.unwrap();
    limiter.admin().credit(key.as_str(), 100).await.unwrap();
    assert_eq!(limiter.check(key.as_str()).await.unwrap().used(), 301);
    slot.end(&[]);
    assert_eq!(limiter.check(key.as_str()).await.unwrap().used(), 302);
    limiter.admin().reset(key.as_str()).await.unwrap();
    assert_eq!(limiter.peek(key.as_str()).await.unwrap().used(), 0);
}

#[tokio::test]
async fn keys_that_share_a_slot_are_decided_together_and_counted_while_some_of_them_have_moved() {
    const KEYS: usize = 30;
    let cluster = Cluster::of_masters(2, &[]);
    let store = patient(&cluster).hash_tags(HashTags::Shared(NonZeroU16::MIN));
    let limiter = RateLimiter::new(store, QUOTA);
    let check_all = async |keys: std::ops::Range<usize>| {
        let checks = keys.map(|key| {
            let limiter = limiter.clone();
            tokio::spawn(async move { limiter.check(format!("key:{key}")).await })
        });
        let mut outcomes: Vec<Result<u32, Error>> = Vec::new();
        for check in checks.collect::<Vec<_>>() {
            outcomes.push(check.await.unwrap().map(|decision| decision.used()));
        }
        outcomes.into_iter().collect::<Result<Vec<_>, _>>()
    };
    assert_eq!(check_all(0..KEYS).await.unwrap(), [1; KEYS]);
    let holder = cluster.nodes.iter().enumerate().find_map(|(index, node)| {
        let keys: Vec<String> = node.ask(&["KEYS", "*default,key:*"]);
        Some((index, keys.first()?.clone()))
    });
    let (index, name) = holder.unwrap();
    let slot = cluster.slot_of(&name);
    let slot = Move::begin(&cluster.nodes[index], &cluster.nodes[1 - index], slot);
    let keys = slot.keys();
    let half: Vec<_> = keys.iter().take(KEYS / 2).map(String::as_str).collect();
    slot.take(&half);
    // Those that have moved, those that have not, and new ones.
    let used = check_all(0..KEYS + 10).await.unwrap();
    assert_eq!(used[..KEYS], [2; KEYS]);
    assert_eq!(used[KEYS..], [1; 10]);
    slot.end(&[]);
    assert_eq!(check_all(0..KEYS).await.unwrap(), [3; KEYS]);
}

#[tokio::test]
async fn a_check_that_is_asked_to_go_elsewhere_fails_if_it_gets_the_reply_to_another() {
    let cluster = Cluster::of_masters(2, &[]);
    let (proxies, url) = cluster.behind_reply_proxies().await;
    let store = RedisStore::open(&url).unwrap();
    let limiter = RateLimiter::new(store.deadline(Duration::from_secs(10)), QUOTA);
    let (key, slot) = key_on(&cluster, 0);
    let _ = decided(&limiter, &key).await;
    let [from, to] = [&cluster.nodes[0], &cluster.nodes[1]];
    let slot = Move::begin(from, to, slot);
    slot.take_all();
    let _ = decided(&limiter, &key).await;
    for _ in 0..10 {
        let before = limiter.check(&*key).await.unwrap().used();
        // In front of the replies to ASKING and to the check.
        proxies[1].next(ReplyFault::Stray);
        let error = limiter.check(&*key).await.unwrap_err();
        assert_eq!(error.code(), "tollgate::E127", "{error}");
        // It was executed, once.
        assert_eq!(limiter.check(&*key).await.unwrap().used(), before + 2);
    }
    slot.end(&[]);
    let _ = decided(&limiter, &key).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn checks_that_are_asked_to_go_elsewhere_read_no_map_and_share_a_connection_that_stays() {
    const AT_ONCE: u32 = 64;
    let cluster = Cluster::of_masters(2, &[]);
    let [from, other] = [0, 1].map(|node| &cluster.nodes[node]);
    let new = join_empty(&cluster.nodes);
    let limiter = RateLimiter::new(patient(&cluster), QUOTA);
    let (key, slot) = key_on(&cluster, 0);
    let _ = decided(&limiter, &key).await;
    let slot = Move::begin(from, &new, slot);
    slot.take_all();
    // The node has no slot, so it is in no map.
    let mut on_new = new.connect();
    let reads = || map_reads(from) + map_reads(other);
    let (reads_before, accepted_before) = (reads(), accepted(&mut on_new));
    let checks: Vec<_> = (0..AT_ONCE)
        .map(|_| {
            let (limiter, key) = (limiter.clone(), key.clone());
            tokio::spawn(async move { limiter.check(key.as_str()).await })
        })
        .collect();
    for check in checks {
        let _ = check.await.unwrap().unwrap();
    }
    let (began, mut checks) = (Instant::now(), AT_ONCE);
    while began.elapsed() < Duration::from_secs(1) {
        let _ = limiter.check(key.as_str()).await.unwrap();
        checks += 1;
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let made = accepted(&mut on_new) - accepted_before;
    let read = reads() - reads_before;
    let found = format!("{checks} checks, {made} connections, {read} reads of the map");
    println!("{found}");
    assert!(made == 1 && read == 0, "{found}");

    // Another slot moves, so the map is read.
    let (moved, other_slot) = key_on(&cluster, 1);
    let _ = limiter.check(moved.as_str()).await.unwrap();
    let reads_before = reads();
    Move::begin(other, from, other_slot).end(&[]);
    assert_eq!(limiter.check(moved.as_str()).await.unwrap().used(), 2);
    wait_until("the map is read", || reads() > reads_before);
    let asked = limiter.check(key.as_str()).await.unwrap().used();
    assert_eq!(asked, checks + 2);
    assert_eq!(accepted(&mut on_new) - accepted_before, 1);
    slot.end(&[other]);
    assert_eq!(limiter.check(key.as_str()).await.unwrap().used(), asked + 1);
}

#[tokio::test]
async fn the_map_is_read_ever_more_rarely_while_a_master_is_down() {
    let no_coverage = ["--cluster-require-full-coverage", "no"];
    let mut cluster = Cluster::of_masters(3, &no_coverage);
    let store = store(&cluster);
    let limiter = RateLimiter::new(store.clone(), QUOTA);
    let [(lost, _), (kept, _)] = [0, 1].map(|master| key_on(&cluster, master));
    let _ = decided(&limiter, &lost).await;
    let _ = decided(&limiter, &kept).await;
    cluster.nodes[0].kill();
    let reads = || map_reads(&cluster.nodes[1]);
    let mut each_second = Vec::new();
    for _ in 0..4 {
        let (began, before) = (Instant::now(), reads());
        while began.elapsed() < Duration::from_secs(1) {
            // Asks each master, also while the circuit breaker is open.
            assert!(store.ping().await.is_err());
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        each_second.push(reads() - before);
    }
    println!("reads of the map in each second: {each_second:?}");
    // A twentieth of a second at first, half a second or a quarter of it at last.
    assert!(each_second.iter().sum::<u64>() <= 20, "{each_second:?}");
    assert!(each_second[3] <= 4, "{each_second:?}");
    cluster.nodes[0].restart();
    let _ = decided(&limiter, &lost).await;
}

#[tokio::test]
async fn a_slot_whose_former_master_was_reset_is_found_through_another_one() {
    let cluster = Cluster::of_masters(3, &[]);
    let [first, second, third] = [0, 1, 2].map(|node| &cluster.nodes[node]);
    let limiter = RateLimiter::new(patient(&cluster), QUOTA);
    let (key, _) = key_on(&cluster, 0);
    let _ = decided(&limiter, &key).await;
    // Slots move for a while, so the map is read rarely.
    let began = Instant::now();
    for (other, slot) in keys_on(&cluster, 1) {
        let _ = limiter.check(other.as_str()).await.unwrap();
        Move::begin(second, third, slot).end(&[first]);
        let _ = limiter.check(other.as_str()).await.unwrap();
        if began.elapsed() > Duration::from_secs(1) {
            break;
        }
    }
    hand_over(first, second, cluster.slots_of(0), &[third]);
    let () = first.ask(&["CLUSTER", "RESET"]);
    assert_eq!(limiter.check(key.as_str()).await.unwrap().used(), 2);
}

/// How nodes name each other to clients, if the server can.
fn name_as(cluster: &Cluster, endpoint: &str) -> bool {
    let set = ["CONFIG", "SET", "cluster-preferred-endpoint-type", endpoint];
    let mut nodes = cluster.nodes.iter();
    // Before Redis 7.0, all nodes are named by their address.
    nodes.all(|node| node.try_ask::<()>(&set).is_ok())
}

#[tokio::test]
async fn an_endpoint_without_a_host_is_at_the_host_of_the_node_that_was_asked() {
    let cluster = Cluster::of_masters(2, &[]);
    let ((key, slot), (other, _)) = (key_on(&cluster, 0), key_on(&cluster, 1));
    let mut used = 0;
    // The first names no host in CLUSTER SLOTS and in redirects, the second one has `?` in both.
    for endpoint in ["unknown-endpoint", "hostname"] {
        if !name_as(&cluster, endpoint) {
            return;
        }
        let limiter = RateLimiter::new(patient(&cluster), QUOTA);
        let mut check = async |step: &str| {
            used += 1;
            let decision = limiter.check(key.as_str()).await;
            let found = decision.map(|decision| decision.used());
            let found = found.map_err(|error| error.to_string());
            assert_eq!(found, Ok(used), "{endpoint}, {step}");
        };
        check("from the map").await;
        let _ = limiter.check(other.as_str()).await.unwrap();
        for [from, to] in [[0, 1], [1, 0]] {
            let [from, to] = [from, to].map(|node| &cluster.nodes[node]);
            let slot = Move::begin(from, to, slot);
            slot.take_all();
            check("after ASK").await;
            slot.end(&[]);
            check("after MOVED").await;
        }
    }
}
