//! A cluster runs a call only if all its keys are in one slot.

use std::num::NonZeroU16;

use tollgate::store::HashTags;
use tollgate::{Quota, RateLimiter, RedisStore};

use crate::support::costs::{calls, forget_calls};
use crate::support::redis_server::RedisServer;
use crate::support::store_on;

/// Checks one unit of each of a hundred keys, concurrently.
async fn check_all(limiter: &RateLimiter) -> Vec<u32> {
    let checks = (0..100).map(|key| {
        let limiter = limiter.clone();
        tokio::spawn(async move { limiter.check(format!("key:{key}")).await.unwrap().used() })
    });
    let mut used = Vec::new();
    for check in checks.collect::<Vec<_>>() {
        used.push(check.await.unwrap());
    }
    used
}

/// The calls that a hundred checks take, once the store knows that the server is in a cluster.
async fn calls_on_a_cluster(configure: impl FnOnce(RedisStore) -> RedisStore) -> u64 {
    let server = RedisServer::start_cluster();
    let limiter = RateLimiter::new(configure(store_on(&server)), Quota::per_hour(9));
    // The call fails as a whole and is sent again slot by slot: nothing is charged twice.
    assert_eq!(check_all(&limiter).await, [1; 100]);
    let mut connection = server.connect();
    forget_calls(&mut connection);
    assert_eq!(check_all(&limiter).await, [2; 100]);
    calls(&mut connection).get("evalsha").copied().unwrap_or(0)
}

#[tokio::test]
async fn checks_of_keys_in_several_slots_are_sent_slot_by_slot() {
    let calls = calls_on_a_cluster(|store| store).await;
    assert!((99..=100).contains(&calls), "{calls} calls");
}

/// The calls that a server has refused because their keys are in several slots.
fn refused_calls(server: &RedisServer) -> u64 {
    let info = redis::cmd("INFO").arg("errorstats").to_owned();
    let info: String = info.query(&mut server.connect()).unwrap();
    let mut lines = info.lines();
    let line = lines.find_map(|line| line.strip_prefix("errorstat_CROSSSLOT:count="));
    line.map_or(0, |count| count.parse().unwrap())
}

#[tokio::test]
async fn a_store_learns_of_slots_from_few_refused_calls_or_is_told_and_needs_none() {
    for is_told in [false, true] {
        let server = RedisServer::start_cluster();
        let store = match is_told {
            false => store_on(&server),
            true => store_on(&server).by_slot(),
        };
        // A fork begins anew.
        for (store, used) in [(store.fork(), 1), (store, 2)] {
            let limiter = RateLimiter::new(store, Quota::per_hour(9));
            assert_eq!(check_all(&limiter).await, [used; 100]);
            let levels = [limiter.level("key:0"), limiter.level("key:1")];
            assert!(RateLimiter::check_all(levels).await.unwrap().is_allowed());
            for key in ["key:0", "key:1"] {
                limiter.admin().reset(key).await.unwrap();
                let _ = limiter.check_n(key, used).await.unwrap();
            }
        }
        let refused = refused_calls(&server);
        let expected = if is_told { 0..=0 } else { 2..=4 };
        assert!(
            expected.contains(&refused),
            "told: {is_told}, {refused} refused calls"
        );
    }
}

#[tokio::test]
async fn keys_that_share_hash_tags_share_calls() {
    let tags = NonZeroU16::new(4).unwrap();
    let calls = calls_on_a_cluster(|store| store.hash_tags(HashTags::Shared(tags))).await;
    // One for each tag.
    assert_eq!(calls, 4);
}

#[tokio::test]
async fn checks_of_one_key_share_calls_on_a_cluster_too() {
    let server = RedisServer::start_cluster();
    let limiter = RateLimiter::new(store_on(&server), Quota::per_hour(100));
    let _ = check_all(&limiter).await;
    let mut connection = server.connect();
    forget_calls(&mut connection);
    let checks: Vec<_> = (0..90)
        .map(|_| {
            let limiter = limiter.clone();
            tokio::spawn(async move { limiter.check("ada").await.unwrap().used() })
        })
        .collect();
    for (used, check) in (1..).zip(checks) {
        assert_eq!(check.await.unwrap(), used);
    }
    assert_eq!(calls(&mut connection).get("evalsha"), Some(&1));
}

#[cfg(feature = "cluster")]
mod that_loses_replies {
    //! One master. The connection to it is cut in place of a reply.

    use std::time::Duration;

    use tollgate::{Algorithm, Error, ErrorKind, RedisStore};

    use crate::support::costs::{algorithms, calls, forget_calls, limiter};
    use crate::support::proxy::Proxy;
    use crate::support::redis_server::{RedisServer, run};
    use crate::support::store_on;

    /// A cluster that announces the port of the proxy to clients, and a store that uses it.
    async fn start() -> (RedisServer, Proxy, RedisStore) {
        let server = RedisServer::start_cluster();
        let proxy = Proxy::before(server.port()).await;
        let port = proxy.port().to_string();
        let announce = ["CONFIG", "SET", "cluster-announce-port", &port];
        run(&mut server.connect(), &announce);
        let url = proxy.url().replace("redis://", "redis+cluster://");
        let store = RedisStore::open(&url).unwrap();
        let store = store
            .deadline(Duration::from_secs(5))
            .block_list_refresh(Duration::ZERO);
        (server, proxy, store)
    }

    /// The step of a test whose reply is lost.
    #[derive(Clone, Copy, Debug)]
    enum Step {
        Check,
        Refund,
        Settle,
        Credit,
        Reset,
    }

    /// Charges 64 units, runs a step whose reply is lost, and returns the outcome, the calls that the
    /// server has run, and the units used afterwards.
    async fn lose_the_reply(
        (server, proxy, store): &(RedisServer, Proxy, RedisStore),
        algorithm: Algorithm,
        step: Step,
    ) -> (Result<(), Error>, u64, u32) {
        let key = format!("{step:?}");
        let behind = limiter(store.clone(), algorithm, 1_000).await;
        let direct = limiter(store_on(server), algorithm, 1_000).await;
        let mut decision = behind.check_n(key.as_str(), 64).await.unwrap();
        let mut connection = server.connect();
        // The server knows the scripts: one call each.
        decision.refund(0).await.unwrap();
        let _ = behind.admin().credit("nobody", 1).await;
        let mut of_nobody = behind.check("nobody").await.unwrap();
        of_nobody.refund(1).await.unwrap();
        forget_calls(&mut connection);
        proxy.cut_next_reply();
        let outcome = match step {
            Step::Check => behind.check_n(key.as_str(), 4).await.map(drop),
            Step::Refund => decision.refund(4).await,
            Step::Settle => decision.settle(60).await,
            Step::Credit => behind.admin().credit(key.as_str(), 4).await,
            Step::Reset => behind.admin().reset(key.as_str()).await,
        };
        let calls = calls(&mut connection);
        let called = ["evalsha", "eval"].map(|name| calls.get(name).copied().unwrap_or(0));
        let called: u64 = match step {
            Step::Reset => calls.get("unlink").copied().unwrap_or(0),
            _ => called.iter().sum(),
        };
        let used = direct.peek(key.as_str()).await.unwrap().used();
        (outcome, called, used)
    }

    #[tokio::test]
    async fn nothing_is_sent_again_that_was_executed() {
        let cluster = start().await;
        let mut wrong = Vec::new();
        for (name, algorithm) in algorithms() {
            for (step, expected) in [
                (Step::Check, 68),
                (Step::Refund, 60),
                (Step::Settle, 60),
                (Step::Credit, 60),
                (Step::Reset, 0),
            ] {
                let (outcome, called, used) = lose_the_reply(&cluster, algorithm, step).await;
                let kind = outcome.err().map(|error| error.kind());
                let expected = (Some(ErrorKind::Unavailable), 1, expected);
                if (kind, called, used) != expected {
                    wrong.push(format!(
                        "{name} {step:?}: {kind:?}, {called} calls, {used} used"
                    ));
                }
            }
        }
        assert!(wrong.is_empty(), "{wrong:#?}");
    }
}

#[cfg(feature = "cluster")]
mod of_six {
    //! Three masters, a replica each.

    use std::time::{Duration, Instant};

    use tollgate::{Acquired, Error, ErrorKind, Quota, RateLimiter, RedisStore, Share};

    use crate::support::cluster::Cluster;
    use crate::support::decided;
    use crate::support::node::{Node, wait_until};
    use crate::support::redis_server::{DeadPort, RedisServer};

    /// A long deadline, for a machine that runs other tests.
    fn limiter(url: &str) -> RateLimiter {
        within(url, Duration::from_secs(10))
    }

    fn within(url: &str, deadline: Duration) -> RateLimiter {
        let store = RedisStore::open(url).unwrap().deadline(deadline);
        RateLimiter::new(store, Quota::per_hour(1_000_000))
    }

    /// Keys that are stored on this master.
    fn keys_on(cluster: &Cluster, master: usize) -> impl Iterator<Item = String> {
        let on = move |key: &String| cluster.master_of(&format!("{{default,{key}}}")) == master;
        (0..).map(|key| format!("key:{key}")).filter(on)
    }

    fn key_on(cluster: &Cluster, master: usize) -> String {
        keys_on(cluster, master).next().unwrap()
    }

    /// Checks a key repeatedly, and returns the number of checks and the errors.
    async fn drive(limiter: RateLimiter, key: String, time: Duration) -> (usize, Vec<Error>) {
        let (begin, mut checks, mut failures) = (Instant::now(), 0, Vec::new());
        while begin.elapsed() < time {
            checks += 1;
            failures.extend(limiter.check(key.as_str()).await.err());
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        (checks, failures)
    }

    /// Checks a key until a check succeeds, as rarely as the breaker probes, and returns the time taken.
    async fn until_decided(limiter: &RateLimiter, key: &str, patience: Duration) -> Duration {
        let begin = Instant::now();
        while let Err(error) = limiter.check(key).await {
            assert!(begin.elapsed() < patience, "{error}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        begin.elapsed()
    }

    fn evalshas(node: &Node) -> u64 {
        let stats: String = node.ask(&["INFO", "commandstats"]);
        let line = stats
            .lines()
            .find_map(|line| line.strip_prefix("cmdstat_evalsha:calls="));
        line.map_or(0, |line| line.split(',').next().unwrap().parse().unwrap())
    }

    #[tokio::test]
    async fn keys_of_all_masters_are_counted_slot_by_slot_from_the_first_check_on() {
        let cluster = Cluster::start();
        let limiter = limiter(&cluster.url());
        let _ = decided(&limiter, "first").await;
        for used in 1..=3 {
            assert_eq!(super::check_all(&limiter).await, [used; 100]);
        }
        // At most one call per check; a call with keys of several slots would fail.
        let calls: u64 = cluster.nodes.iter().map(evalshas).sum();
        assert!((290..=310).contains(&calls), "{calls} calls");
        for master in &cluster.nodes[..3] {
            assert!(evalshas(master) > 50);
            let errors: String = master.ask(&["INFO", "errorstats"]);
            assert!(!errors.contains("CROSSSLOT"), "{errors}");
        }
    }

    #[tokio::test]
    async fn a_soft_quota_is_in_the_slot_of_its_key() {
        let cluster = Cluster::start();
        let store = RedisStore::open(&cluster.url())
            .unwrap()
            .deadline(Duration::from_secs(10));
        let quotas = [Quota::per_hour(3), Quota::per_hour(1).soft()];
        let limiter = RateLimiter::new(store, quotas);
        for master in 0..3 {
            let key = key_on(&cluster, master);
            let _ = decided(&limiter, &key).await;
            limiter.admin().reset(key.as_str()).await.unwrap();
            for (allowed, exceeded) in [(true, false), (true, true), (true, true), (false, true)] {
                let decision = decided(&limiter, &key).await;
                let marks = (decision.is_allowed(), decision.is_exceeded());
                assert_eq!(marks, (allowed, exceeded), "{master}");
            }
        }
    }

    #[tokio::test]
    async fn shares_of_units_and_of_slots_are_kept_on_each_master() {
        let cluster = Cluster::start();
        let shares = [Share::of("critical").reserve(2)];
        let quotas =
            [Quota::per_hour(5), Quota::in_flight(4)].map(|quota| quota.shares(shares.clone()));
        let store = RedisStore::open(&cluster.url()).unwrap();
        let store = store.deadline(Duration::from_secs(10));
        let [rate, slots] = quotas.map(|quota| RateLimiter::new(store.clone(), quota));
        for master in 0..3 {
            let key = key_on(&cluster, master);
            let checked = async |share: &str| {
                let level = rate.level(key.as_str()).share(share);
                RateLimiter::check_all([level]).await.unwrap().is_allowed()
            };
            let mut permits = Vec::new();
            for (share, expected) in [("", 3), ("critical", 2)] {
                let mut admitted = 0;
                while checked(share).await {
                    admitted += 1;
                }
                assert_eq!(admitted, expected, "{share:?} on master {master}");
            }
            for expected in [2, 4] {
                let share = if expected == 2 { "" } else { "critical" };
                while let Acquired::Permit(permit) =
                    RateLimiter::try_acquire_all([slots.level(key.as_str()).share(share)])
                        .await
                        .unwrap()
                {
                    permits.push(permit);
                }
                assert_eq!(
                    permits.len(),
                    expected,
                    "slots of {share:?} on master {master}"
                );
            }
        }
    }

    #[tokio::test]
    async fn a_credit_goes_to_the_master_of_the_key() {
        let cluster = Cluster::start();
        let limiter = limiter(&cluster.url());
        for master in 0..3 {
            let key = key_on(&cluster, master);
            let _ = decided(&limiter, &key).await;
            let _ = limiter.check_n(key.as_str(), 4).await.unwrap();
            let asked = || -> Vec<u64> { cluster.nodes.iter().map(evalshas).collect() };
            let before = asked();
            limiter.admin().credit(key.as_str(), 2).await.unwrap();
            let asked: Vec<u64> = asked().iter().zip(before).map(|(n, m)| n - m).collect();
            let others = asked.iter().enumerate().filter(|(at, _)| *at != master);
            assert!(asked[master] > 0 && others.map(|(_, asked)| asked).sum::<u64>() == 0);
            assert_eq!(limiter.peek(key.as_str()).await.unwrap().used(), 3);
        }
    }

    /// One master fails by `fail` while checks go on. Checks on the other masters must not fail; those on
    /// this one must succeed again soon after its replica was promoted.
    async fn survives(fail: impl FnOnce(&mut Node)) {
        let mut cluster = Cluster::start_with(&["--cluster-require-full-coverage", "no"]);
        let limiter = within(&cluster.url(), Duration::from_millis(250));
        let key = key_on(&cluster, 0);
        let others = [1, 2].map(|master| keys_on(&cluster, master).take(5).collect::<Vec<_>>());
        let others = others.into_iter().flatten();
        for key in others.clone().chain([key.clone()]) {
            let _ = decided(&limiter, &key).await;
        }
        fail(&mut cluster.nodes[0]);
        let others =
            others.map(|key| tokio::spawn(drive(limiter.clone(), key, Duration::from_secs(4))));
        let others: Vec<_> = others.collect();
        let lost = {
            let limiter = limiter.clone();
            tokio::spawn(async move {
                let patience = Duration::from_secs(10);
                until_decided(&limiter, &key, patience).await;
                Instant::now()
            })
        };
        let promoted = loop {
            let info: String = cluster.nodes[3].ask(&["INFO", "replication"]);
            if info.contains("role:master") {
                break Instant::now();
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        };
        let took = lost.await.unwrap().saturating_duration_since(promoted);
        let (mut checks, mut failures) = (0, Vec::new());
        for other in others {
            let (more, failed) = other.await.unwrap();
            checks += more;
            failures.extend(failed);
        }
        // An attempt to connect that began before the promotion may wait 2 s for the node that hangs. The next one
        // finds the replica.
        assert!(
            took < Duration::from_secs(3),
            "{took:?} after the promotion"
        );
        let failed = failures.len();
        assert!(
            failed * 1_000 <= checks,
            "{failed} of {checks}: {:?}",
            failures.first()
        );
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn the_checks_of_a_master_that_dies_go_to_its_replica_and_others_go_on() {
        survives(Node::kill).await;
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn the_checks_of_a_master_that_hangs_go_to_its_replica_and_others_go_on() {
        survives(|node| node.stop()).await;
    }

    #[tokio::test]
    async fn a_slot_that_moves_is_followed_without_an_error_and_counted_exactly() {
        let cluster = Cluster::start();
        let limiter = limiter(&cluster.url());
        let key = key_on(&cluster, 0);
        assert_eq!(decided(&limiter, &key).await.used(), 1);
        let (from, to) = (&cluster.nodes[0], &cluster.nodes[1]);
        let tag = format!("{{default,{key}}}");
        let slot: u16 = from.ask(&["CLUSTER", "KEYSLOT", &tag]);
        let slot = slot.to_string();
        let ids: Vec<String> = [from, to].map(|node| node.ask(&["CLUSTER", "MYID"])).into();
        let () = to.ask(&["CLUSTER", "SETSLOT", &slot, "IMPORTING", &ids[0]]);
        let () = from.ask(&["CLUSTER", "SETSLOT", &slot, "MIGRATING", &ids[1]]);
        assert_eq!(limiter.check(key.as_str()).await.unwrap().used(), 2);
        let keys: Vec<String> = from.ask(&["CLUSTER", "GETKEYSINSLOT", &slot, "100"]);
        let port = to.port().to_string();
        let migrate = ["MIGRATE", "127.0.0.1", &port, "", "0", "1000", "KEYS"];
        let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
        let () = from.ask(&[&migrate[..], &keys].concat());
        // The key has moved, the slot has not.
        assert_eq!(limiter.check(key.as_str()).await.unwrap().used(), 3);
        for node in [to, from] {
            let () = node.ask(&["CLUSTER", "SETSLOT", &slot, "NODE", &ids[1]]);
        }
        for used in 4..=9 {
            assert_eq!(limiter.check(key.as_str()).await.unwrap().used(), used);
        }
    }

    /// Adds a master without slots, unknown to clients.
    fn join_empty(cluster: &Cluster) -> Node {
        let node = Node::start(&["--cluster-enabled", "yes"]);
        let port = cluster.nodes[0].port().to_string();
        let () = node.ask(&["CLUSTER", "MEET", "127.0.0.1", &port]);
        for known in cluster.nodes.iter().chain([&node]) {
            wait_until("all nodes know each other", || {
                let info: String = known.ask(&["CLUSTER", "INFO"]);
                info.contains("cluster_known_nodes:7\r\n") && info.contains("cluster_state:ok")
            });
        }
        node
    }

    #[tokio::test]
    async fn a_refund_follows_a_slot_that_moves_to_a_new_master() {
        let cluster = Cluster::start();
        let new = join_empty(&cluster);
        let rights = [
            &crate::support::permissions::documented()[..],
            &crate::support::permissions::OF_CLUSTER,
        ]
        .concat();
        for node in cluster.nodes.iter().chain([&new]) {
            let () = node.ask(&rights);
        }
        let url = cluster.url().replace("://", "://limiter:password@");
        let limiter = limiter(&url);
        let key = key_on(&cluster, 0);
        let used = async || limiter.peek(key.as_str()).await.unwrap().used();
        let mut decision = limiter.check_n(key.as_str(), 64).await.unwrap();
        let from = &cluster.nodes[0];
        let tag = format!("{{default,{key}}}");
        let slot: u16 = from.ask(&["CLUSTER", "KEYSLOT", &tag]);
        let slot = slot.to_string();
        let ids: Vec<String> = [from, &new]
            .map(|node| node.ask(&["CLUSTER", "MYID"]))
            .into();
        let () = new.ask(&["CLUSTER", "SETSLOT", &slot, "IMPORTING", &ids[0]]);
        let () = from.ask(&["CLUSTER", "SETSLOT", &slot, "MIGRATING", &ids[1]]);
        let keys: Vec<String> = from.ask(&["CLUSTER", "GETKEYSINSLOT", &slot, "100"]);
        let port = new.port().to_string();
        let () = from.ask(&["MIGRATE", "127.0.0.1", &port, &keys[0], "0", "1000"]);
        // The old master answers ASK, and the new one is in no slot map.
        decision.refund(4).await.unwrap();
        assert_eq!(used().await, 60);
        limiter.admin().credit(key.as_str(), 10).await.unwrap();
        assert_eq!(used().await, 50);
        for node in [&new, from] {
            let () = node.ask(&["CLUSTER", "SETSLOT", &slot, "NODE", &ids[1]]);
        }
        // The old master answers MOVED.
        decision.refund(10).await.unwrap();
        assert_eq!(used().await, 40);
        limiter.admin().reset(key.as_str()).await.unwrap();
        assert_eq!(used().await, 0);
    }

    #[tokio::test]
    async fn a_cluster_that_cannot_be_reached_fails_with_the_reason() {
        let nowhere = DeadPort::new();
        let url = nowhere.url().replace("redis://", "redis+cluster://");
        let error = limiter(&url).check("ada").await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        assert!(
            error.to_string().to_lowercase().contains("refused"),
            "{error}"
        );

        let server = RedisServer::start();
        let url = server.url().replace("redis://", "redis+cluster://");
        let error = limiter(&url).check("ada").await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Misconfigured, "{error}");
        assert!(
            error.to_string().contains("cluster support disabled"),
            "{error}"
        );

        let cluster = RedisServer::start_cluster();
        let url = format!(
            "redis+cluster://nobody:hunter2@127.0.0.1:{}",
            cluster.port()
        );
        let error = limiter(&url).check("ada").await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Misconfigured, "{error}");
        assert!(!error.to_string().contains("hunter2"), "{error}");
    }
}
