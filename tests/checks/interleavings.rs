//! The lock of the memory store, in every order in which threads can take it: its time never goes backwards,
//! and no span has more than the limit.
//!
//! The test includes the file of the store, with loom's mutex instead of the standard one.

#![allow(dead_code, reason = "the file has more than the model needs")]

use loom::sync::atomic::{AtomicU64, Ordering};
use loom::sync::{Arc, MutexGuard};

#[path = "../../src/store/memory/locked.rs"]
mod locked;

use locked::Locked;

/// loom's mutex, with the methods of `src/lock.rs`.
#[derive(Debug)]
struct Mutex<T>(loom::sync::Mutex<T>);

impl<T> Mutex<T> {
    fn new(value: T) -> Self {
        Self(loom::sync::Mutex::new(value))
    }

    fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock().expect("no thread has panicked")
    }
}

/// The time that all threads share. It passes with every look.
#[derive(Clone)]
struct Time(Arc<AtomicU64>);

impl Time {
    fn new() -> Self {
        Self(Arc::new(AtomicU64::new(100)))
    }

    fn pass(&self) -> u64 {
        self.0.fetch_add(1, Ordering::SeqCst)
    }
}

/// The clock that a thread reads. Its core may lag behind the others.
struct Clock {
    time: Time,
    lag: u64,
}

impl Clock {
    fn now(&self) -> u64 {
        self.time.pass() - self.lag
    }

    fn steps_back(&self) -> bool {
        false
    }
}

const LIMIT: usize = 1;
const WINDOW: u64 = 4;

/// One check: from before it to after it, and whether it was admitted.
struct Checked {
    start: u64,
    end: u64,
    admitted: bool,
}

/// Admits by a log of times, as the store does.
fn check(log: &Locked<Vec<u64>>, clock: &Clock) -> Checked {
    let start = clock.time.pass();
    let admitted = {
        let (mut times, now) = log.lock_now(clock);
        assert!(
            times.last().is_none_or(|last| *last <= now),
            "time ran back"
        );
        let counting = times.iter().filter(|time| now < *time + WINDOW).count();
        if counting < LIMIT {
            times.push(now);
        }
        counting < LIMIT
    };
    let end = clock.time.pass();
    Checked {
        start,
        end,
        admitted,
    }
}

fn with_lags(lags: &'static [u64], checks: usize) -> Vec<Checked> {
    let log = Arc::new(Locked::new(Vec::new()));
    let time = Time::new();
    let threads: Vec<_> = lags
        .iter()
        .map(|lag| {
            let (log, time) = (log.clone(), time.clone());
            loom::thread::spawn(move || {
                let clock = Clock { time, lag: *lag };
                let checked = (0..checks).map(|_| check(&log, &clock));
                checked.collect::<Vec<_>>()
            })
        })
        .collect();
    let checked = threads.into_iter().map(|thread| thread.join().unwrap());
    checked.flatten().collect()
}

/// The most admissions in a span that holds all of them.
fn most_in_a_window(checked: &[Checked]) -> usize {
    let admitted = || checked.iter().filter(|check| check.admitted);
    let within = |start: u64| {
        let inside = admitted().filter(|check| start <= check.start && check.end < start + WINDOW);
        inside.count()
    };
    admitted()
        .map(|first| within(first.start))
        .max()
        .unwrap_or(0)
}

/// Runs a model in every order with at most three switches of threads that neither waits for.
fn in_every_order(model: impl Fn() + Send + Sync + 'static) {
    let mut orders = loom::model::Builder::new();
    orders.preemption_bound = Some(3);
    orders.check(model);
}

#[test]
fn no_order_of_threads_admits_more_than_the_limit_in_a_window() {
    in_every_order(|| {
        let checked = with_lags(&[0, 0], 2);
        assert!(checked.iter().any(|check| check.admitted));
        assert!(most_in_a_window(&checked) <= LIMIT);
    });
}

#[test]
fn time_never_runs_back_though_the_counters_of_cores_differ() {
    in_every_order(|| {
        with_lags(&[0, 7], 2);
    });
}
