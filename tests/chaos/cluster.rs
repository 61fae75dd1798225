//! A cluster loses a master, or moves slots under load.

use std::time::Duration;

use tollgate::{FailurePolicy, Quota, RateLimitLayer, RateLimiter, RedisStore};

use crate::drive::{Answer, Answers, Drive, by_path, key_of};
use crate::suite::{alone, patient, report, short_or_long};
use crate::support::cluster::Cluster;
use crate::support::node::Node;

const KEYS: usize = 60;
const QUOTA: Quota = Quota::per_hour(1_000_000);

fn path(turn: usize) -> String {
    format!("/{}", turn % KEYS)
}

/// What a slow machine keeps, where it is not the deadline that is looked at.
const DEADLINE: Duration = Duration::from_secs(1);

/// The hash tag under which a path is counted.
fn tag(turn: usize) -> String {
    format!("{{default,{}}}", path(turn))
}

fn start(layer: &RateLimitLayer) -> Drive {
    Drive::start(layer, |turn| path(usize::try_from(turn).expect("few")))
}

fn closed(cluster: &Cluster) -> RateLimitLayer {
    let store = RedisStore::open(&cluster.url()).expect("a URL");
    by_path(store.deadline(DEADLINE), QUOTA).on_failure(FailurePolicy::closed())
}

/// How many units of a key were reported as admitted, and how many are counted.
async fn told_and_counted(cluster: &Cluster, answers: &Answers, key: usize) -> (u32, u32) {
    let of_key = answers.0.iter().skip(key).step_by(KEYS);
    let told = of_key.filter(|answer| answer.status == 200).count();
    let direct = RateLimiter::new(patient(&cluster.url()), QUOTA);
    let counted = direct
        .peek(key_of(&path(key)))
        .await
        .expect("an answer")
        .used();
    (u32::try_from(told).expect("few"), counted)
}

#[test]
fn a_lost_master_concerns_its_own_keys_only() {
    alone(async {
        let mut cluster = Cluster::start_with(&["--cluster-require-full-coverage", "no"]);
        let layer = closed(&cluster);
        let lost = 0;
        let is_lost: Vec<bool> = (0..KEYS)
            .map(|key| cluster.master_of(&tag(key)) == lost)
            .collect();
        let drive = start(&layer);
        drive.goes_on_for(Duration::from_secs(2)).await;
        let killed = drive.now();
        cluster.nodes[lost].kill();
        drive
            .goes_on_for(Duration::from_secs(short_or_long(5, 15)))
            .await;
        let answers = drive.end().await;

        let (own, others): (Vec<_>, Vec<_>) = answers
            .0
            .iter()
            .enumerate()
            .filter(|(_, answer)| answer.due >= killed)
            .partition(|(turn, _)| is_lost[turn % KEYS]);
        let [own, others] = [own, others]
            .map(|part| Answers(part.into_iter().map(|(_, answer)| *answer).collect()));
        let failed = others.count(|answer| !answer.is_exact());
        let back = own.last(|answer| !answer.is_exact()).unwrap_or(killed);
        let mut exact = 0;
        for key in (0..KEYS).filter(|key| !is_lost[*key]) {
            let (told, counted) = told_and_counted(&cluster, &answers, key).await;
            exact += usize::from(told == counted);
        }
        let kept = is_lost.iter().filter(|lost| !**lost).count();
        report(
            9,
            "Cluster: master killed",
            &format!(
                "{failed} of {} requests for other shards failed, they took {:.1?} at p99.9; {exact} of their {kept} keys are counted exactly; its own keys again after {:.1?}",
                others.len(),
                others.took().p999,
                back - killed
            ),
            "other shards' success at least 99.9 %; exact counts for keys not on the lost master",
        );
        assert!(
            failed * 1_000 <= others.len(),
            "{failed} of {}",
            others.len()
        );
        assert_eq!(exact, kept);
    });
}

/// Moves one slot with all its keys, as redis-cli does.
fn move_slot(from: &Node, to: &Node, all: &[Node], slot: &str) {
    let [from_id, to_id]: [String; 2] = [from, to].map(|node| node.ask(&["CLUSTER", "MYID"]));
    let () = to.ask(&["CLUSTER", "SETSLOT", slot, "IMPORTING", &from_id]);
    let () = from.ask(&["CLUSTER", "SETSLOT", slot, "MIGRATING", &to_id]);
    loop {
        let keys: Vec<String> = from.ask(&["CLUSTER", "GETKEYSINSLOT", slot, "100"]);
        if keys.is_empty() {
            break;
        }
        let port = to.port().to_string();
        let mut command = vec!["MIGRATE", "127.0.0.1", &port, "", "0", "5000", "KEYS"];
        command.extend(keys.iter().map(String::as_str));
        let () = from.ask(&command);
    }
    let others = all[..3]
        .iter()
        .filter(|node| ![from.port(), to.port()].contains(&node.port()));
    for node in [to, from].into_iter().chain(others) {
        let () = node.ask(&["CLUSTER", "SETSLOT", slot, "NODE", &to_id]);
    }
}

#[test]
fn slots_that_move_under_load_cost_no_answer_and_no_count() {
    alone(async {
        let cluster = Cluster::start();
        let layer = closed(&cluster);
        let drive = start(&layer);
        drive.goes_on_for(Duration::from_secs(1)).await;
        // From one master to the next, as an operator does.
        let mut moved = 0;
        for round in 0..short_or_long(1, 3) {
            let [from, to] = [round, round + 1].map(|master| &cluster.nodes[master % 3]);
            for key in (0..KEYS).filter(|key| cluster.master_of(&tag(*key)) == 0) {
                let slot: u32 = from.ask(&["CLUSTER", "KEYSLOT", &tag(key)]);
                move_slot(from, to, &cluster.nodes, &slot.to_string());
                moved += 1;
            }
            drive.goes_on_for(Duration::from_secs(2)).await;
        }
        let answers = drive.end().await;

        let failed = answers.count(|answer: &Answer| !answer.is_exact());
        let mut exact = 0;
        for key in 0..KEYS {
            let (told, counted) = told_and_counted(&cluster, &answers, key).await;
            exact += usize::from(told == counted);
        }
        let took = answers.took().p999;
        report(
            9,
            "Cluster: slots moved under load",
            &format!(
                "{moved} slots moved, {failed} of {} requests failed; {exact} of {KEYS} keys are counted exactly; they took {took:.1?} at p99.9",
                answers.len()
            ),
            "no error from the move; exact counts",
        );
        assert_eq!((failed, exact), (0, KEYS));
    });
}
