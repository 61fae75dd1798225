//! What the doctor finds on clusters, and how it names their nodes.

use std::num::NonZeroU16;
use std::time::Duration;

use tollgate::store::HashTags;
use tollgate::{Key, Quota, RateLimiter, RedisStore};
use tollgate_doctor::{Severity, examine};

use crate::support::cluster::Cluster;
use crate::support::redis_server::{RedisServer, run};
use crate::support::{assert_finding, finding, store_at, store_on};

#[tokio::test]
async fn each_master_that_shares_a_finding_is_named() {
    let cluster = Cluster::start();
    let url = cluster.url();
    let doctor = || async {
        let store = RedisStore::open(&url).unwrap();
        examine(&store.deadline(Duration::from_secs(10))).await
    };
    let evicting: Vec<_> = [0, 2].map(|index| &cluster.nodes[index]).into();
    for node in &evicting {
        let () = node.ask(&["CONFIG", "SET", "maxmemory-policy", "allkeys-lru"]);
    }
    let report = doctor().await;
    let found: Vec<_> = report
        .findings()
        .iter()
        .filter(|finding| finding.topic == "eviction")
        .collect();
    assert_eq!(found.len(), 2, "{report}");
    let warning = found
        .iter()
        .find(|finding| finding.severity == Severity::Warning);
    let warning = warning.expect("a warning").text.clone();
    let (named, _) = warning.split_once(": maxmemory-policy is").unwrap();
    let mut named: Vec<_> = named.split(", ").map(ToOwned::to_owned).collect();
    named.sort();
    let mut expected: Vec<_> = evicting.iter().map(|node| node.address()).collect();
    expected.sort();
    assert_eq!(named, expected, "{report}");
    // All masters share the policy: none is named.
    let () = cluster.nodes[1].ask(&["CONFIG", "SET", "maxmemory-policy", "allkeys-lru"]);
    let report = doctor().await;
    assert!(
        finding(&report, "eviction")
            .text
            .starts_with("maxmemory-policy is allkeys-lru"),
        "{report}"
    );
}

#[tokio::test]
async fn a_cluster_that_lacks_slots_is_a_problem() {
    let whole = RedisServer::start_cluster();
    let report = examine(&store_on(&whole)).await;
    assert_finding(&report, "cluster", Severity::Ok, &["all 16384 slots"]);
    assert_eq!(report.worst(), Severity::Ok, "{report}");

    let mut connection = whole.connect();
    let mut command = redis::cmd("CLUSTER");
    command.arg("DELSLOTS").arg((0..8_192).collect::<Vec<_>>());
    command.exec(&mut connection).unwrap();
    let report = examine(&store_on(&whole)).await;
    let words = [
        "8192 of 16384 slots are served by no master",
        "all checks fail",
        "slots 0-8191",
    ];
    assert_finding(&report, "cluster", Severity::Problem, &words);
}

#[tokio::test]
async fn a_few_unserved_slots_are_counted() {
    let server = RedisServer::start_cluster();
    let mut connection = server.connect();
    let no = ["CONFIG", "SET", "cluster-require-full-coverage", "no"];
    run(&mut connection, &no);
    let few = ["100", "101", "5000", "16382", "16383"];
    run(
        &mut connection,
        &[&["CLUSTER", "DELSLOTS"][..], &few].concat(),
    );
    let report = examine(&store_on(&server)).await;
    let at = format!("127.0.0.1:{}", server.port());
    let words = [
        "5 of 16384 slots are served by no master",
        "slots 100-101, 5000, 16382-16383",
        "checks of their keys fail",
        "CLUSTER ADDSLOTS",
        &at,
    ];
    assert_finding(&report, "cluster", Severity::Problem, &words);
}

#[tokio::test]
async fn a_cluster_that_stops_as_a_whole_is_a_warning() {
    let cluster = Cluster::start();
    let doctor = || async {
        let store = RedisStore::open(&cluster.url()).unwrap();
        examine(&store.deadline(Duration::from_secs(10))).await
    };
    let words = [
        "cluster-require-full-coverage is yes",
        "all checks fail",
        "CONFIG SET cluster-require-full-coverage no",
    ];
    assert_finding(&doctor().await, "cluster", Severity::Warning, &words);
    for node in &cluster.nodes {
        let () = node.ask(&["CONFIG", "SET", "cluster-require-full-coverage", "no"]);
    }
    let words = [
        "all 16384 slots are served",
        "cluster-require-full-coverage is no",
    ];
    assert_finding(&doctor().await, "cluster", Severity::Ok, &words);
}

#[tokio::test]
async fn a_store_of_a_single_cluster_node_is_a_problem() {
    let cluster = Cluster::start();
    let one = RedisStore::open(&cluster.nodes[1].url()).unwrap();
    let report = examine(&one.deadline(Duration::from_secs(10))).await;
    let words = ["one node of a cluster", "use redis+cluster://"];
    assert_finding(&report, "cluster", Severity::Problem, &words);
    // Said once, not by each topic that runs the script.
    for topic in ["time", "script", "round trip"] {
        let words = ["the URL names one node of a cluster"];
        assert_finding(&report, topic, Severity::Unknown, &words);
    }
}

/// Asserts that a text names a node, and no other.
#[track_caller]
fn assert_names(text: &str, cluster: &Cluster, node: usize) {
    for (index, other) in cluster.nodes.iter().enumerate() {
        let is_named = text.contains(&other.address());
        assert_eq!(is_named, index == node, "{}: {text}", other.address());
    }
}

#[tokio::test]
async fn a_node_that_hangs_or_is_down_is_named() {
    let mut cluster = Cluster::start_with(&["--cluster-require-full-coverage", "no"]);
    let store = RedisStore::open(&cluster.url()).unwrap();
    let store = store.deadline(Duration::from_secs(1));
    store_at(&cluster.url()).ping().await.unwrap();
    let patient = store.fork().deadline(Duration::from_secs(10));
    patient.ping().await.unwrap();
    // No replica takes its place.
    cluster.nodes[4].kill();
    cluster.nodes[1].stop();
    let report = examine(&store).await.to_string();
    cluster.nodes[1].resume();
    assert_names(&report, &cluster, 1);
    assert!(report.contains("did not answer"), "{report}");
    cluster.nodes[1].kill();
    assert_names(&examine(&patient).await.to_string(), &cluster, 1);
}

#[tokio::test]
async fn the_capacity_says_how_many_checks_a_process_can_send() {
    let cluster = Cluster::start();
    for (settings, expected) in [("", "no hash tags"), ("?hash_tags=48", "48 hash tags")] {
        let report = examine(&store_at(&format!("{}{settings}", cluster.url()))).await;
        let text = &finding(&report, "capacity").text;
        for part in ["checks of different keys per second", "3 masters", expected] {
            assert!(text.contains(part), "{text}");
        }
    }
}

#[tokio::test]
async fn a_store_whose_keys_share_tags_has_no_problem() {
    const TAGS: NonZeroU16 = NonZeroU16::new(48).unwrap();
    let server = RedisServer::start_cluster();
    let store = store_on(&server).hash_tags(HashTags::ByPrefix(TAGS));
    let limiter = |name: &str| RateLimiter::new(store.clone(), Quota::per_hour(9)).name(name);
    let (user, service) = (limiter("user"), limiter("service"));
    // A call with keys of several slots tells the store that this is a cluster.
    let levels = [user.level("ada"), service.level(Key::global())];
    assert!(RateLimiter::check_all(levels).await.unwrap().is_allowed());
    let report = examine(&store).await;
    assert!(report.worst() < Severity::Problem, "{report}");
}
