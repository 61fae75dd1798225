//! Two processes on a cluster, whose levels are on three masters.

use std::time::Duration;

use tollgate::Quota;

use super::crowd::Crowd;
use super::hammer::{Load, Pace, TASKS, hammer};
use super::notes::Notes;
use super::tree::{Level, Tree, algorithm, lasting};
use crate::suite::{beside_others, report, told};
use crate::support::cluster::Cluster;

const NAMES: [&str; 3] = ["user", "tenant", "service"];
const KEYS: [usize; 3] = [4, 2, 1];
const LIMITS: [u32; 3] = [8, 14, 24];
const PROCESSES: u64 = 2;

/// A master that is restarted has all charges that it has acknowledged. No replica takes its place.
const DURABLE: [&str; 10] = [
    "--appendonly",
    "yes",
    "--appendfsync",
    "always",
    "--cluster-require-full-coverage",
    "no",
    "--cluster-replica-no-failover",
    "yes",
    // A node that is back serves its slots after this time, at the latest.
    "--cluster-node-timeout",
    "3000",
];

/// No node counts as down because the machine is slow.
const PATIENT: [&str; 2] = ["--cluster-node-timeout", "20000"];

/// Trees that have all algorithms. The keys of each level are on a master of their own.
fn trees(cluster: &Cluster) -> Vec<Tree> {
    let tree = |number: usize| {
        let level = |level: usize| {
            let name = format!("{}{number}", NAMES[level]);
            let is_there = |key: &String| cluster.master_of(&format!("{{{name},{key}}}")) == level;
            let keys = (0..).map(|key: u32| key.to_string()).filter(is_there);
            let keys = keys.take(KEYS[level]).collect();
            let short = Quota::new(LIMITS[level], Duration::from_millis(200));
            let index = level + 2 * number;
            let quotas = [
                short.with_algorithm(algorithm(index)),
                lasting(100_000, algorithm(index + 3)),
            ];
            Level::new(name, keys, quotas)
        };
        Tree((0..3).map(level).collect())
    };
    (0..3).map(tree).collect()
}

fn load(cluster: &Cluster) -> Load {
    Load {
        url: cluster.url(),
        trees: trees(cluster),
        max_cost: 3,
        cancelled: 0,
        pace: Pace::default(),
        // A level whose charge is late would be charged without the others.
        deadline: Some(Duration::from_secs(10)),
    }
}

#[test]
fn levels_in_three_slots_keep_their_limits_and_refund_refused_and_cancelled_checks() {
    if let Some(told) = told() {
        return hammer(&told);
    }
    beside_others(async {
        let cluster = Cluster::start_with(&PATIENT);
        let load = Load {
            cancelled: 4,
            ..load(&cluster)
        };
        let test = "levels::cluster::levels_in_three_slots_keep_their_limits_and_refund_refused_and_cancelled_checks";
        let crowd = Crowd::start(test, load, PROCESSES);
        crowd.admits(12 * LIMITS[2]).await;
        crowd
            .until("charges are returned", |all| {
                let is_returned = |notes: &Notes| notes.passing.1 > 0 && notes.cancelled > 0;
                all.iter().all(is_returned)
            })
            .await;
        for (number, (notes, counted)) in crowd.end().await.into_iter().enumerate() {
            let (checks, units) = notes.passing;
            let stranded = notes.stranded(&counted);
            report(
                15,
                "several keys in three slots of a cluster",
                &format!(
                    "tree {number}: {} units admitted, refused by {:?} of {NAMES:?}; {checks} refused checks charged {units} units in passing and returned them; {} checks cancelled, of which {} units are counted",
                    notes.total(),
                    notes.refused,
                    notes.cancelled,
                    stranded[0],
                ),
                "no level above its limit in any window; all levels count the same checks",
            );
            notes.assert_no_span_exceeds_a_limit();
            notes.assert_levels_count_the_same(&counted);
            assert_eq!(notes.failed, 0);
            assert!(stranded[0] <= notes.unknown);
        }
    });
}

#[test]
fn a_lost_master_strands_only_charges_whose_replies_it_lost() {
    if let Some(told) = told() {
        return hammer(&told);
    }
    beside_others(async {
        let mut cluster = Cluster::start_with(&DURABLE);
        let load = load(&cluster);
        let test = "levels::cluster::a_lost_master_strands_only_charges_whose_replies_it_lost";
        let crowd = Crowd::start(test, load, PROCESSES);
        crowd.admits(4 * LIMITS[2]).await;
        cluster.nodes[1].kill();
        crowd.fails().await;
        cluster.nodes[1].restart();
        crowd.admits(4 * LIMITS[2]).await;
        for (number, (notes, counted)) in crowd.end().await.into_iter().enumerate() {
            let (checks, units) = notes.passing;
            let stranded = notes.stranded(&counted);
            report(
                15,
                "several keys in three slots: the master of the tenants killed and restarted",
                &format!(
                    "tree {number}: {} units admitted, {} checks failed; {checks} refused checks charged {units} units in passing; {stranded:?} units of {NAMES:?} are charged for lost replies",
                    notes.total(),
                    notes.failed,
                ),
                "no level above its limit in any window; at most the units in flight are lost, on the lost master only",
            );
            notes.assert_no_span_exceeds_a_limit();
            let [user, tenant, service] = stranded[..] else {
                panic!("three levels");
            };
            assert_eq!([user, service], [0, 0]);
            assert!(tenant <= 2 * TASKS * 3);
        }
    });
}
