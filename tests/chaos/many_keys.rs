//! A million new keys, and then the same keys again.

use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tokio::runtime::Handle;
use tokio::task::JoinSet;
use tollgate::{MemoryStore, Quota, RateLimitLayer, RedisStore};

use crate::drive::{ask, by_path};
use crate::suite::{
    Process, answer_parent, beside_others, closed, report, run, short_or_long, told, until,
};
use crate::support::redis_server::{DeadPort, RedisServer};

const WINDOW: Duration = Duration::from_secs(1);
const TASKS: u64 = 128;

/// After this many keys, the buffers of the process have reached their size.
const WARM: u64 = 5_000;

/// A figure of this process, in KiB.
fn memory(name: &str) -> u64 {
    let status = fs::read_to_string("/proc/self/status").expect("Linux");
    let line = status.lines().find_map(|line| line.strip_prefix(name));
    let number = line.and_then(|line| line.split_whitespace().next());
    number
        .and_then(|number| number.parse().ok())
        .expect("a number")
}

fn tasks() -> usize {
    Handle::current().metrics().num_alive_tasks()
}

/// Asks twice for each of the keys, and says how many of the answers were no decision.
async fn ask_all(layer: &RateLimitLayer, keys: std::ops::Range<u64>) -> u64 {
    let next = Arc::new(AtomicU64::new(keys.start));
    let mut asking = JoinSet::new();
    for _ in 0..TASKS {
        let (layer, next, end) = (layer.clone(), Arc::clone(&next), keys.end);
        asking.spawn(async move {
            let mut undecided = 0;
            loop {
                let key = next.fetch_add(1, Ordering::Relaxed);
                if key >= end {
                    return undecided;
                }
                for _ in 0..2 {
                    let status = ask(&layer, &format!("/{key}")).await.status().as_u16();
                    undecided += u64::from(![200, 429].contains(&status));
                }
            }
        });
    }
    asking.join_all().await.into_iter().sum()
}

/// What a process took for the keys.
struct Taken {
    /// The growth of its memory at its highest, in KiB.
    grown: u64,
    more_tasks: usize,
    undecided: u64,
}

impl Taken {
    async fn by(layer: &RateLimitLayer, keys: u64) -> Self {
        let _ = ask_all(layer, 0..WARM).await;
        let (before, tasks_before) = (memory("VmRSS:"), tasks());
        let mut undecided = 0;
        for _ in 0..2 {
            undecided += ask_all(layer, WARM..WARM + keys).await;
        }
        let grown = memory("VmHWM:").saturating_sub(before);
        // The task that sent the last call may be about to end.
        let patience = Instant::now() + Duration::from_secs(1);
        while tasks() > tasks_before && Instant::now() < patience {
            tokio::task::yield_now().await;
        }
        Self {
            grown,
            more_tasks: tasks().saturating_sub(tasks_before),
            undecided,
        }
    }

    fn write(&self) -> String {
        format!("{} {} {}", self.grown, self.more_tasks, self.undecided)
    }

    fn read(text: &str) -> Self {
        let mut numbers = text
            .split(' ')
            .map(|number| number.parse().expect("a number"));
        let mut next = || numbers.next().expect("three numbers");
        Self {
            grown: next(),
            more_tasks: usize::try_from(next()).expect("few"),
            undecided: next(),
        }
    }
}

/// On Redis, the second check of a key is refused, and remembered.
const ON_REDIS: Quota = Quota::new(1, WINDOW);

/// In memory, a key that has used half of it makes room for another: no more is asked of any key, however
/// fast the machine is.
const IN_MEMORY: Quota = Quota::new(8, WINDOW);

#[test]
fn a_million_keys_on_redis_leave_nothing_behind() {
    const TEST: &str = "many_keys::a_million_keys_on_redis_leave_nothing_behind";
    let keys = short_or_long(30_000, 1_000_000);
    if let Some(url) = told() {
        // A slow machine is not what is tested.
        let store = RedisStore::open(&url)
            .expect("a URL")
            .deadline(Duration::from_secs(10));
        let taken = run(async { Taken::by(&closed(by_path(store, ON_REDIS)), keys).await });
        return answer_parent(&taken.write());
    }
    beside_others(async {
        let server = RedisServer::start();
        let process = Process::of(TEST, &server.url());
        let reported = tokio::task::spawn_blocking(move || process.report());
        let taken = Taken::read(&reported.await.expect("it ends"));
        let ended = Instant::now();
        assert_eq!((taken.more_tasks, taken.undecided), (0, 0));
        assert!(taken.grown < 20 * 1_024, "{} KiB", taken.grown);
        // The counts of a key matter for a window, and live for two and a second.
        let mut connection = server.connect();
        let mut held = async || -> u64 {
            redis::cmd("DBSIZE")
                .query(&mut connection)
                .expect("an answer")
        };
        assert!(held().await > 0, "the keys were counted");
        let at_most = 2 * WINDOW + Duration::from_secs(1);
        until(
            at_most + Duration::from_secs(2),
            "every key is gone",
            async || held().await == 0,
        )
        .await;
        report(
            11,
            &format!("{keys} distinct keys, then the same again, on Redis"),
            &format!(
                "memory of the process grows by {} KiB, tasks by {}; the last key is gone after {:.1?} (window {WINDOW:?}, time to live {at_most:?})",
                taken.grown,
                taken.more_tasks,
                ended.elapsed(),
            ),
            "under 20 MB; number of tasks constant; every key gone one window after its units",
        );
    });
}

/// The most keys that are counted in memory here.
const MAX_KEYS: usize = 10_000;

/// Runs a test as a child that counts in memory, and reports what that takes.
fn taken_in_memory(test: &str, fault: &str, layer: impl FnOnce() -> RateLimitLayer) {
    let keys = short_or_long(20_000, 1_000_000);
    if told().is_some() {
        let taken = run(async { Taken::by(&layer(), keys).await });
        return answer_parent(&taken.write());
    }
    beside_others(async {
        let taken = Taken::read(&Process::of(test, "memory").report());
        report(
            11,
            &format!("the same {keys} keys, {fault}"),
            &format!(
                "memory grows by {} KiB, tasks by {}",
                taken.grown, taken.more_tasks
            ),
            "bounded by the set maximum",
        );
        assert_eq!((taken.more_tasks, taken.undecided), (0, 0));
        // What is said of a full store: a kilobyte a key at its limit of 100 units.
        assert!(
            taken.grown < u64::try_from(MAX_KEYS).expect("few"),
            "{} KiB",
            taken.grown
        );
    });
}

#[test]
fn a_million_keys_in_memory_take_what_the_set_maximum_takes() {
    let test = "many_keys::a_million_keys_in_memory_take_what_the_set_maximum_takes";
    let store = MemoryStore::with_max_keys(MAX_KEYS);
    taken_in_memory(test, "in memory of at most 10000", || {
        by_path(store.clone(), IN_MEMORY)
    });
    assert!(store.len() <= MAX_KEYS, "{} keys", store.len());
}

#[test]
fn a_million_keys_to_fall_back_on_take_what_the_set_maximum_takes() {
    let test = "many_keys::a_million_keys_to_fall_back_on_take_what_the_set_maximum_takes";
    let nowhere = DeadPort::new();
    taken_in_memory(
        test,
        "while Redis is down, falling back on at most 10000",
        || {
            let store = RedisStore::open(&nowhere.url()).expect("a URL");
            by_path(store.fallback_keys(MAX_KEYS), IN_MEMORY)
        },
    );
}
