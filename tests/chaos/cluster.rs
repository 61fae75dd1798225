//! A cluster loses a master, or moves slots under load.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use tollgate::{FailurePolicy, Quota, RateLimitLayer, RateLimiter, RedisStore};

use crate::drive::{Answer, Answers, Drive, by_path, key_of};
use crate::suite::{alone, patient, report, short_or_long};
use crate::support::cluster::{Cluster, Move};
use crate::support::node::Node;

const KEYS: usize = 60;
const QUOTA: Quota = Quota::per_hour(1_000_000);

fn path(turn: usize) -> String {
    format!("/{}", turn % KEYS)
}

/// The hash tag under which a path is counted.
fn tag(turn: usize) -> String {
    format!("{{default,{}}}", path(turn))
}

fn start(layer: &RateLimitLayer) -> Drive {
    Drive::start(layer, |turn| path(usize::try_from(turn).expect("few")))
}

fn closed(cluster: &Cluster) -> RateLimitLayer {
    closed_within(cluster, Duration::from_millis(100))
}

fn closed_within(cluster: &Cluster, deadline: Duration) -> RateLimitLayer {
    let store = RedisStore::open(&cluster.url()).expect("a URL");
    by_path(store.deadline(deadline), QUOTA).on_failure(FailurePolicy::closed())
}

/// Whether the units of a key are counted that were reported as admitted. A check that failed may be counted too.
async fn is_counted_exactly(cluster: &Cluster, answers: &Answers, key: usize) -> bool {
    let of_key: Vec<_> = answers.0.iter().skip(key).step_by(KEYS).collect();
    let told = of_key.iter().filter(|answer| answer.status == 200).count();
    let direct = RateLimiter::new(patient(&cluster.url()), QUOTA);
    let counted = direct.peek(key_of(&path(key))).await.expect("an answer");
    let counted = usize::try_from(counted.used()).expect("few");
    (told..=of_key.len()).contains(&counted)
}

/// After half of the deadline, a call is not sent again: the rest is for the reply. A machine that stands still for as
/// long, in a call and once more in its reply, lets checks fail.
const STILL: Duration = Duration::from_millis(25);

/// Watches how long servers or this process stand still, beside the load.
struct Stalls {
    has_ended: Arc<AtomicBool>,
    longest: JoinHandle<Duration>,
}

impl Stalls {
    fn watch(nodes: &[Node]) -> Self {
        let has_ended = Arc::new(AtomicBool::new(false));
        let (ended, mut nodes): (_, Vec<_>) = (
            Arc::clone(&has_ended),
            nodes.iter().map(Node::connect).collect(),
        );
        let longest = thread::spawn(move || {
            let (mut longest, mut began) = (Duration::ZERO, Instant::now());
            while !ended.load(Ordering::Relaxed) {
                thread::sleep(Duration::from_millis(2));
                for node in &mut nodes {
                    redis::cmd("PING").exec(node).expect("it is up");
                }
                longest = longest.max(began.elapsed());
                began = Instant::now();
            }
            longest
        });
        Self { has_ended, longest }
    }

    fn end(self) -> Duration {
        self.has_ended.store(true, Ordering::Relaxed);
        self.longest.join().expect("it ends")
    }
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
        let stalls = Stalls::watch(&cluster.nodes[1..3]);
        let drive = start(&layer);
        drive.goes_on_for(Duration::from_secs(2)).await;
        let killed = drive.now();
        cluster.nodes[lost].kill();
        drive
            .goes_on_for(Duration::from_secs(short_or_long(5, 15)))
            .await;
        let answers = drive.end().await;
        let still = stalls.end().max(answers.late().most);

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
            exact += usize::from(is_counted_exactly(&cluster, &answers, key).await);
        }
        let kept = is_lost.iter().filter(|lost| !**lost).count();
        report(
            9,
            "Cluster: master killed",
            &format!(
                "{failed} of {} requests for other shards failed, they took {:.1?} at p99.9; {exact} of their {kept} keys are counted exactly; its own keys again after {:.1?}; the machine stood still for {still:.1?}",
                others.len(),
                others.took().p999,
                back - killed
            ),
            "other shards' success at least 99.9 %; exact counts for keys not on the lost master",
        );
        assert!(
            failed * 1_000 <= others.len() || still > STILL,
            "{failed} of {}, {still:?} still",
            others.len()
        );
        assert_eq!(exact, kept);
    });
}

/// How long a slot is on two masters, before its keys move and after that: with many keys it takes long.
const HALF_MOVED: Duration = Duration::from_millis(100);

#[test]
fn slots_that_move_under_load_cost_no_answer_and_no_count() {
    alone(async {
        let cluster = Cluster::start();
        // A busy machine alone may need more than the default deadline.
        let layer = closed_within(&cluster, Duration::from_secs(1));
        let stalls = Stalls::watch(&cluster.nodes[..3]);
        let drive = start(&layer);
        drive.goes_on_for(Duration::from_secs(1)).await;
        // From one master to the next, as an operator does.
        let mut moved = 0;
        for round in 0..short_or_long(1, 3) {
            let [from, to] = [round, round + 1].map(|master| &cluster.nodes[master % 3]);
            let other = &cluster.nodes[(round + 2) % 3];
            for key in (0..KEYS).filter(|key| cluster.master_of(&tag(*key)) == 0) {
                let slot = Move::begin(from, to, cluster.slot_of(&tag(key)));
                drive.goes_on_for(HALF_MOVED).await;
                slot.take_all();
                drive.goes_on_for(HALF_MOVED).await;
                slot.end(&[other]);
                moved += 1;
            }
            drive.goes_on_for(Duration::from_secs(2)).await;
        }
        let answers = drive.end().await;
        let still = stalls.end().max(answers.late().most);

        let failed = answers.count(|answer: &Answer| !answer.is_exact());
        let mut exact = 0;
        for key in 0..KEYS {
            exact += usize::from(is_counted_exactly(&cluster, &answers, key).await);
        }
        let took = answers.took().p999;
        report(
            9,
            "Cluster: slots moved under load",
            &format!(
                "{moved} slots moved, {failed} of {} requests failed; {exact} of {KEYS} keys are counted exactly; they took {took:.1?} at p99.9; the machine stood still for {still:.1?}",
                answers.len()
            ),
            "no error from the move; exact counts",
        );
        let failures: Vec<_> = answers
            .0
            .iter()
            .filter(|answer| !answer.is_exact())
            .collect();
        assert!(
            failed == 0 || still > STILL,
            "{failures:?}, {still:?} still"
        );
        assert_eq!(exact, KEYS);
    });
}
