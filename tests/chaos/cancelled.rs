//! Requests are cancelled at random points.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::task::JoinSet;
use tollgate::{DecisionView, Quota, RateLimitLayer, RateLimiter, RedisStore};

use crate::drive::{ask, by_path, key_of};
use crate::suite::{beside_others, closed, report, short_or_long, until};
use crate::support::redis_server::RedisServer;

const TASKS: u32 = 128;
const KEYS: u32 = 16;

/// The decisions of the requests that were not cancelled: the units used, for each key.
type Told = BTreeMap<u32, Vec<u32>>;

/// Numbers without a pattern that is worth the name.
pub(crate) struct Dice(pub(crate) u64);

impl Dice {
    pub(crate) fn roll(&mut self, sides: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % sides
    }
}

/// How many futures are left, and how many checks had no decision.
struct Turns {
    left: AtomicU32,
    undecided: AtomicU32,
}

/// Asks until `left` is used up, and gives most of it up: before it is sent, on its way, or when
/// the answer is about to be there.
async fn storm(layer: RateLimitLayer, seed: u32, turns: Arc<Turns>) -> Told {
    let (mut dice, mut told) = (Dice(u64::from(seed)), Told::new());
    let one_less = |left: u32| left.checked_sub(1);
    while turns
        .left
        .fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_less)
        .is_ok()
    {
        let key = u32::try_from(dice.roll(u64::from(KEYS))).expect("few");
        let path = format!("/{key}");
        let asked = ask(&layer, &path);
        let (kind, long) = (dice.roll(3), dice.roll(40));
        let patience = async {
            match kind {
                0 => {
                    for _ in 0..long {
                        tokio::task::yield_now().await;
                    }
                }
                1 => tokio::time::sleep(Duration::from_micros(long * 50)).await,
                _ => {
                    for _ in 0..long / 10 {
                        tokio::task::yield_now().await;
                    }
                }
            }
        };
        tokio::select! {
            biased;
            () = patience => {}
            response = asked => {
                if response.status() == 503 {
                    // Its deadline has passed, or that of those before it.
                    turns.undecided.fetch_add(1, Ordering::Relaxed);
                    turns.left.fetch_add(1, Ordering::Relaxed);
                    tokio::time::sleep(Duration::from_millis(1)).await;
                    continue;
                }
                assert_eq!(response.status(), 200);
                let decision = response.extensions().get::<DecisionView>().expect("admitted");
                told.entry(key).or_default().push(decision.used());
            }
        }
    }
    told
}

/// Runs the load on a store. Reports the decisions, the units of each key on the server, and the checks that had no
/// decision.
async fn counts_after_a_storm(
    server: &RedisServer,
    store: RedisStore,
    futures: u32,
) -> (Told, BTreeMap<u32, u32>, u32) {
    let quota = Quota::per_hour(10_000_000);
    let layer = closed(by_path(store.clone(), quota.clone()));
    // The same connection, for calls that the test counts.
    let store = store.fork().deadline(Duration::from_secs(10));
    let patient = closed(by_path(store.clone(), quota.clone()));
    let limiter = RateLimiter::new(store, quota);
    assert_eq!(ask(&patient, "/warm").await.status(), 200);
    let turns = Arc::new(Turns {
        left: AtomicU32::new(futures),
        undecided: AtomicU32::new(0),
    });
    while ask(&layer, "/warm").await.status() != 200 {
        turns.undecided.fetch_add(1, Ordering::Relaxed);
    }
    let clients = || -> String {
        let list = redis::cmd("CLIENT")
            .arg("LIST")
            .query(&mut server.connect());
        let list: String = list.expect("CLIENT LIST answers");
        // The test itself speaks RESP2.
        let ours = list.lines().filter(|line| line.contains(" resp=3"));
        ours.filter_map(|line| line.split(' ').next())
            .collect::<Vec<_>>()
            .join(" ")
    };
    let tasks = || Handle::current().metrics().num_alive_tasks();
    // A second after its first check, the limiter is compared with those of other services.
    tokio::time::sleep(Duration::from_millis(1_500)).await;
    let (clients_before, tasks_before) = (clients(), tasks());
    let undecided = || turns.undecided.load(Ordering::Relaxed);
    let undecided_before = undecided();

    let mut storms = JoinSet::new();
    for seed in 0..TASKS {
        storms.spawn(storm(layer.clone(), seed, Arc::clone(&turns)));
    }
    let mut told = Told::new();
    for of_task in storms.join_all().await {
        for (key, used) in of_task {
            told.entry(key).or_default().extend(used);
        }
    }
    // No task is left, and the connection is the one it was: nothing leaks, nothing is poisoned.
    until(Duration::from_secs(5), "no task is left", async || {
        tasks() == tasks_before
    })
    .await;
    // A connection on which checks reach their deadline may be replaced.
    if undecided() == undecided_before {
        assert_eq!(clients(), clients_before);
    } else {
        assert_eq!(clients().matches("id=").count(), 1);
    }

    let mut counted = BTreeMap::new();
    for key in 0..KEYS {
        let peeked = limiter.peek(key_of(&format!("/{key}"))).await;
        let used = peeked.expect("it answers as ever").used();
        assert_eq!(ask(&patient, &format!("/{key}")).await.status(), 200);
        counted.insert(key, used);
    }
    (told, counted, undecided())
}

/// Each reported unit is unique and is on the server.
fn assert_told_once(told: &Told, counted: &BTreeMap<u32, u32>) {
    for (key, used) in told {
        let mut distinct = used.clone();
        distinct.sort_unstable();
        distinct.dedup();
        assert_eq!(
            distinct.len(),
            used.len(),
            "two were told the same of key {key}"
        );
        assert!(distinct.last() <= counted.get(key), "key {key} lost units");
    }
}

#[test]
fn futures_that_are_dropped_at_any_point_disturb_no_neighbour() {
    beside_others(async {
        let futures = short_or_long(30_000, 100_000);
        let server = RedisServer::start();
        let store = RedisStore::open(&server.url()).expect("a URL");
        let (told, counted, undecided) = counts_after_a_storm(&server, store, futures).await;
        assert_told_once(&told, &counted);
        let counted: u32 = counted.values().sum();
        let told: usize = told.values().map(Vec::len).sum();
        assert!(told > 0 && counted > u32::try_from(told).expect("few") && counted < futures);
        report(
            12,
            "futures dropped at random points",
            &format!(
                "{futures} futures: {told} lived, each with a count of its own; {counted} are counted; {undecided} had no decision; tasks and connection as before"
            ),
            "told once, counted once; no leak, no poisoned connection, no deadlock",
        );
    });
}
