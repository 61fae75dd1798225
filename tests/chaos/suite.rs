//! The environment of a fault test: its turn, size, runtime, and row in the table.

use std::fs::OpenOptions;
use std::io::Write;
use std::sync::{Mutex, Once, PoisonError};
use std::time::Duration;
use std::{env, panic};

use tokio::sync::Semaphore;
use tollgate::{FailurePolicy, RateLimitLayer, RedisStore};

use crate::support::log;
use crate::support::process;
pub(crate) use crate::support::process::{Process, argument as told, child};

/// Says `long` where the suite is to take its time.
const SIZE: &str = "TOLLGATE_CHAOS";

/// Where the lines of the table are added, if anywhere.
const TABLE: &str = "TOLLGATE_CHAOS_TABLE";

/// How many tests run at a time: most of them send requests all the time, on two cores.
const PLACES: u32 = 3;

static FREE_PLACES: Semaphore = Semaphore::const_new(PLACES as usize);

/// Runs a test while no other one does: it keeps all cores busy, or its figures are times.
pub(crate) fn alone<T>(test: impl Future<Output = T>) -> T {
    run_in(PLACES, test)
}

/// Runs a test, perhaps beside others.
pub(crate) fn beside_others<T>(test: impl Future<Output = T>) -> T {
    run_in(1, test)
}

fn run_in<T>(places: u32, test: impl Future<Output = T>) -> T {
    run(async move {
        let _places = FREE_PLACES.acquire_many(places).await;
        test.await
    })
}

/// On two threads, which write to the log of the test.
pub(crate) fn run<T>(test: impl Future<Output = T>) -> T {
    watch_panics();
    log::keep();
    let log = log::of_thread();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .on_thread_start(move || log.adopt())
        .enable_all()
        .build();
    runtime.expect("a runtime").block_on(test)
}

/// One of two sizes of a test.
pub(crate) fn short_or_long<T>(short: T, long: T) -> T {
    if env::var_os(SIZE).is_some_and(|size| size == "long") {
        long
    } else {
        short
    }
}

/// A line of the table: what was done, what came of it, and what had to hold.
pub(crate) fn report(line: u32, fault: &str, figure: &str, bound: &str) {
    let line = format!("| {line} | {fault} | {figure} | {bound} |\n");
    print!("{line}");
    let Some(path) = env::var_os(TABLE) else {
        return;
    };
    let table = OpenOptions::new().create(true).append(true).open(path);
    let written = table.and_then(|mut table| table.write_all(line.as_bytes()));
    written.expect("the table can be written");
}

/// How long a slow machine may take for a step.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// Waits until something holds, which it must within a time.
pub(crate) async fn until(within: Duration, what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let all = async {
        while !holds().await {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let in_time = tokio::time::timeout(within, all).await;
    assert!(in_time.is_ok(), "not within {within:?}: {what}");
}

/// A store with which a test looks at counts, with a deadline that a slow machine meets. The store under test has the
/// default.
pub(crate) fn patient(url: &str) -> RedisStore {
    let store = RedisStore::open(url).expect("a URL");
    store.deadline(Duration::from_secs(10))
}

/// Sets the policy that rejects every request that the store does not admit.
pub(crate) fn closed(layer: RateLimitLayer) -> RateLimitLayer {
    layer.on_failure(FailurePolicy::closed())
}

/// Answers the parent.
pub(crate) fn answer_parent(result: &str) {
    process::report(result);
}

/// Where something has panicked so far, but for assertions of tests.
pub(crate) fn panics() -> Vec<String> {
    PANICS
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .clone()
}

static PANICS: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// Notes panics from here on.
fn watch_panics() {
    static WATCHED: Once = Once::new();
    WATCHED.call_once(|| {
        let shown = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            let place = info.location().map(ToString::to_string).unwrap_or_default();
            if !place.starts_with("tests/") {
                let mut panics = PANICS.lock().unwrap_or_else(PoisonError::into_inner);
                panics.push(format!("{place}: {info}"));
            }
            shown(info);
        }));
    });
}
