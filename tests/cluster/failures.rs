//! Nodes of a cluster that fail, with the default deadline: which keys feel it, and for how long.

use std::ops::Range;
use std::time::{Duration, Instant};

use tollgate::{Error, ErrorKind, Quota, RateLimiter, RedisStore};

use crate::support::cluster::Cluster;
use crate::support::node::wait_until;
use crate::support::{decided, runtime};

/// The slots of the first two of three masters at their border. A multiple of 256 lies on either side, but not
/// between.
const AT_BORDER: [Range<u16>; 2] = [5_376..5_461, 5_461..5_632];

/// Slots of each of three masters.
const OF_MASTERS: [Range<u16>; 3] = [0..5_461, 5_462..10_922, 10_923..16_384];

/// How long a test waits for nodes that fail over or start.
const PATIENCE: Duration = Duration::from_secs(20);

/// A master that fails takes no other with it.
const ALONE: [&str; 2] = ["--cluster-require-full-coverage", "no"];

fn limiter_at(url: &str) -> RateLimiter {
    let store = RedisStore::open(url).unwrap();
    RateLimiter::new(store, Quota::per_hour(1_000_000))
}

fn limiter(cluster: &Cluster) -> RateLimiter {
    limiter_at(&cluster.url())
}

/// Returns this many keys for each of these ranges of slots.
pub(crate) fn keys_in<const N: usize>(
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
            let tag = format!("{{default,{key}}}");
            slots.cmd("CLUSTER").arg("KEYSLOT").arg(tag);
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

/// The outcomes of checks.
#[derive(Debug, Default)]
struct Tally {
    decided: usize,
    /// Refused by an open circuit breaker, without asking Redis.
    unasked: usize,
    /// The other errors.
    failed: Vec<String>,
}

impl Tally {
    fn add<T>(&mut self, outcome: Result<T, Error>) {
        match outcome {
            Ok(_) => self.decided += 1,
            Err(error) if is_of_open_breaker(&error) => self.unasked += 1,
            Err(error) => self.failed.push(error.to_string()),
        }
    }

    /// A machine that is busy with other tests may delay some replies beyond the deadline.
    fn assert_decided_by_redis(&self) {
        let checks = self.decided + self.unasked + self.failed.len();
        println!("{} of {checks} decided by Redis", self.decided);
        assert!(self.unasked == 0, "{self:?}");
        assert!(self.decided * 10 >= checks * 9, "{self:?}");
    }
}

fn is_of_open_breaker(error: &Error) -> bool {
    error.to_string().contains("the circuit breaker is open")
}

/// Checks keys of a master that fails and of another one in turn, each of them many times.
async fn check_in_turn(limiter: &RateLimiter, lost: &[String], others: &[String]) -> [Tally; 2] {
    let mut tallies = [Tally::default(), Tally::default()];
    let began = Instant::now();
    while began.elapsed() < Duration::from_secs(2) {
        for keys in lost.iter().zip(others) {
            tallies[0].add(limiter.check(keys.0.as_str()).await);
            tallies[1].add(limiter.check(keys.1.as_str()).await);
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    tallies
}

/// Kills the first master. Asserts that its keys fail and that its neighbours' do not, and returns both.
async fn kill_the_first_master(cluster: &mut Cluster, limiter: &RateLimiter) -> [Vec<String>; 2] {
    let [lost, neighbours] = keys_in(cluster, &AT_BORDER, 20);
    for key in lost.iter().chain(&neighbours) {
        let _ = decided(limiter, key).await;
    }
    cluster.nodes[0].kill();
    let [of_lost, of_neighbours] = check_in_turn(limiter, &lost, &neighbours).await;
    of_neighbours.assert_decided_by_redis();
    assert!(of_lost.decided == 0 && of_lost.unasked > 0, "{of_lost:?}");
    [lost, neighbours]
}

#[tokio::test]
async fn the_neighbours_of_a_dead_master_are_decided_by_redis() {
    let mut cluster = Cluster::of_masters(3, &ALONE);
    let limiter = limiter(&cluster);
    let [lost, neighbours] = kill_the_first_master(&mut cluster, &limiter).await;

    // Levels are asked node by node, each by its own breaker.
    let all = async |keys: [&String; 2]| {
        RateLimiter::check_all(keys.map(|key| limiter.level(key.as_str()))).await
    };
    let (mut together, mut with_lost) = (Tally::default(), Tally::default());
    for (index, neighbour) in neighbours.iter().enumerate().skip(1) {
        together.add(all([&neighbours[0], neighbour]).await);
        with_lost.add(all([neighbour, &lost[index]]).await);
    }
    together.assert_decided_by_redis();
    assert!(
        with_lost.decided == 0 && with_lost.unasked > 0,
        "{with_lost:?}"
    );
}

#[tokio::test]
async fn a_node_that_hangs_costs_five_waits_and_no_answer_of_another_node() {
    let cluster = Cluster::of_masters(3, &ALONE);
    let limiter = limiter(&cluster);
    let [hung, neighbours] = keys_in(&cluster, &AT_BORDER, 20);
    for key in hung.iter().chain(&neighbours) {
        let _ = decided(&limiter, key).await;
    }
    cluster.nodes[0].stop();
    while limiter.check(hung[0].as_str()).await.is_ok() {}
    let [of_hung, of_neighbours] = check_in_turn(&limiter, &hung, &neighbours).await;
    cluster.nodes[0].resume();
    let resumed = Instant::now();
    of_neighbours.assert_decided_by_redis();
    // One breaker for the node: it need not learn for each range of its slots.
    assert_eq!(of_hung.decided, 0, "{of_hung:?}");
    assert!(of_hung.failed.len() <= 5, "{of_hung:?}");
    let _ = decided(&limiter, &hung[0]).await;
    println!("decided {:?} after it went on", resumed.elapsed());
    for key in &hung {
        let outcome = limiter.check(key.as_str()).await;
        assert!(
            !outcome.as_ref().is_err_and(is_of_open_breaker),
            "{outcome:?}"
        );
    }
}

#[tokio::test]
async fn after_a_failover_all_slots_of_a_hung_master_have_the_closed_breaker_of_the_new_one() {
    let cluster = Cluster::start_with(&ALONE);
    let limiter = limiter(&cluster);
    let [keys, _, _] = keys_in(&cluster, &OF_MASTERS, 40);
    for key in &keys {
        let _ = decided(&limiter, key).await;
    }
    cluster.nodes[0].stop();
    let stopped = Instant::now();
    let (mut before, mut after) = (Tally::default(), Tally::default());
    while after.decided == 0 {
        assert!(stopped.elapsed() < PATIENCE, "{before:?}");
        for key in &keys {
            let outcome = limiter.check(key.as_str()).await;
            if outcome.is_ok() || after.decided > 0 {
                after.add(outcome);
            } else {
                before.add(outcome);
            }
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    println!("decided {:?} after it hung", stopped.elapsed());
    assert!(before.unasked > 0, "{before:?}");
    for key in &keys {
        after.add(limiter.check(key.as_str()).await);
    }
    after.assert_decided_by_redis();
    // The former master goes on as a replica.
    cluster.nodes[0].resume();
    wait_until("it has a new role", || {
        let info: String = cluster.nodes[0].ask(&["INFO", "replication"]);
        info.contains("role:slave")
    });
    let mut resumed = Tally::default();
    for key in &keys {
        resumed.add(limiter.check(key.as_str()).await);
    }
    resumed.assert_decided_by_redis();
}

/// The circuit breaker belongs to the node, however many runtimes reach it.
#[test]
fn what_one_runtime_learns_of_a_dead_master_spares_another() {
    let (own, other) = (runtime(), runtime());
    let mut cluster = Cluster::of_masters(3, &ALONE);
    let limiter = limiter(&cluster);
    let [lost, neighbours] = keys_in(&cluster, &AT_BORDER, 20);
    for key in &neighbours {
        let _ = other.block_on(decided(&limiter, key));
    }
    cluster.nodes[0].kill();
    let began = Instant::now();
    let is_open = |key: &String| {
        let error = own.block_on(limiter.check(key.as_str())).unwrap_err();
        is_of_open_breaker(&error)
    };
    while !is_open(&lost[0]) {
        assert!(began.elapsed() < PATIENCE);
    }
    let error = other.block_on(limiter.check(lost[1].as_str())).unwrap_err();
    assert!(is_of_open_breaker(&error), "{error}");
    let _ = other.block_on(decided(&limiter, &neighbours[1]));
}

#[tokio::test]
async fn one_node_or_all_that_restart_decide_again_and_keep_what_they_persisted() {
    let durable = ["--appendonly", "yes", "--appendfsync", "always"];
    let mut cluster = Cluster::of_masters(3, &durable);
    let limiter = limiter(&cluster);
    let keys = keys_in(&cluster, &OF_MASTERS, 10).concat();
    // For each key, the checks that were answered, and those that were tried. Redis may have charged one without
    // replying in time.
    let mut charged = vec![0..=0; keys.len()];
    let mut check = async |index: usize| {
        let [answered, tried] = [*charged[index].start(), *charged[index].end()].map(|n| n + 1);
        let outcome = limiter.check(keys[index].as_str()).await;
        charged[index] = match &outcome {
            Ok(decision) => {
                let used = decision.used();
                assert!((answered..=tried).contains(&used), "{used} of {tried}");
                used..=tried
            }
            Err(_) => answered - 1..=tried,
        };
        outcome.map(drop)
    };
    for lost in [0..0, 1..2, 0..3] {
        for node in &mut cluster.nodes[lost.clone()] {
            node.kill();
        }
        for index in 0..keys.len() {
            let _ = check(index).await;
        }
        for node in &mut cluster.nodes[lost.clone()] {
            node.restart();
        }
        let started = Instant::now();
        for index in 0..keys.len() {
            while let Err(error) = check(index).await {
                assert!(started.elapsed() < PATIENCE, "{error}");
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        }
        println!("{lost:?}: all are decided {:?} later", started.elapsed());
    }
}

#[cfg(feature = "tls")]
#[tokio::test]
async fn with_tls_too_a_dead_master_concerns_its_own_keys_only() {
    use crate::support::redis_server::free_port;
    use crate::support::tls::TlsServer;

    let certificates = TlsServer::start(false);
    let ports = [0; 3].map(|_| free_port());
    let mut cluster = Cluster::of_tls_masters(&ports, |port| certificates.arguments_for(port));
    let ca = certificates.path("ca.pem").display().to_string();
    let addresses = ports.map(|port| format!("127.0.0.1:{port}")).join(",");
    let limiter = limiter_at(&format!("rediss+cluster://{addresses}?ca={ca}"));
    let [lost, _] = kill_the_first_master(&mut cluster, &limiter).await;
    cluster.nodes[0].restart();
    let _ = decided(&limiter, &lost[0]).await;
}

#[tokio::test]
async fn a_password_that_one_node_no_longer_takes_concerns_its_keys_until_it_is_corrected() {
    let cluster = Cluster::of_masters(3, &ALONE);
    let set = |node: usize, password: &str| {
        let user = ["resetpass", password, "~*", "&*", "+@all"];
        let command = [&["ACL", "SETUSER", "limiter", "on"][..], &user].concat();
        let () = cluster.nodes[node].ask(&command);
    };
    // The password of a connection that is open counts no more.
    let hang_up = |node: usize| {
        let _: u64 = cluster.nodes[node].ask(&["CLIENT", "KILL", "USER", "limiter"]);
    };
    (0..3).for_each(|node| set(node, ">old"));
    let url = cluster.url().replace("//", "//limiter:old@");
    let limiter = limiter_at(&url);
    let [keys, others] = keys_in(&cluster, &AT_BORDER, 20);
    for key in keys.iter().chain(&others) {
        let _ = decided(&limiter, key).await;
    }
    set(0, ">new");
    hang_up(0);
    let patience = Instant::now() + PATIENCE;
    while let Err(error) = limiter.check(keys[0].as_str()).await
        && error.kind() != ErrorKind::Misconfigured
    {
        assert!(Instant::now() < patience, "{error}");
    }
    let [of_node, of_others] = check_in_turn(&limiter, &keys, &others).await;
    of_others.assert_decided_by_redis();
    // Redis answers: no breaker opens.
    assert!(of_node.decided == 0 && of_node.unasked == 0, "{of_node:?}");
    let is_named = |error: &String| error.contains("WRONGPASS");
    assert!(of_node.failed.iter().any(is_named), "{of_node:?}");

    set(0, ">old");
    let _ = decided(&limiter, &keys[0]).await;

    // A rotation: each node takes both for a while.
    let rotated = limiter_at(&url.replace(":old@", ":new@"));
    for node in 0..3 {
        let () = cluster.nodes[node].ask(&["ACL", "SETUSER", "limiter", ">new"]);
        hang_up(node);
    }
    for (key, other) in keys.iter().zip(&others) {
        let _ = decided(&limiter, key).await;
        let _ = decided(&rotated, other).await;
    }
    for node in 0..3 {
        set(node, ">new");
        hang_up(node);
    }
    for key in keys.iter().chain(&others) {
        let _ = decided(&rotated, key).await;
    }
}
