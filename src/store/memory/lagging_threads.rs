//! The promise under contention, with threads whose readings of the clock are older than others'.
//!
//! A monotonic clock allows that: a thread may read it and be delayed before it takes the lock of the shard.

#[path = "../../../tests/checks/contention/adversary.rs"]
mod adversary;

use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use super::MemoryStore;
use crate::clock::{LAG, micros};
use crate::quota::Algorithm;
use adversary::{Traffic, Wait, is_kept};

fn promised(algorithm: Algorithm, limit: u32) -> u64 {
    algorithm.max_units(limit)
}

const THREADS: u32 = 8;

const TRAFFIC: Traffic = Traffic {
    threads: THREADS as usize,
    limits: &[50],
    window: Duration::from_millis(20),
    duration: Duration::from_millis(300),
    work: Duration::ZERO,
    rest: Duration::ZERO,
    refunds: false,
};

/// A thread whose readings lag. A store in memory answers at once.
struct Lagging(Duration);

impl Lagging {
    /// The first thread's readings do not lag; the last thread's lag by nearly a window.
    fn new(thread: usize) -> Self {
        Self(TRAFFIC.window * u32::try_from(thread).unwrap() / THREADS)
    }
}

impl Wait for Lagging {
    fn wait<T>(&self, future: impl Future<Output = T>) -> T {
        LAG.set(micros(self.0));
        match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(output) => output,
            Poll::Pending => panic!("a store in memory answers at once"),
        }
    }

    fn lag(&self) -> Duration {
        self.0
    }
}

#[test]
fn no_window_exceeds_the_limit_though_the_readings_of_threads_lag() {
    let broken = Algorithm::ALL.iter().filter_map(|algorithm| {
        let algorithm = algorithm.with_buckets(10);
        let outcome = TRAFFIC.run(algorithm, &MemoryStore::new(), Lagging::new);
        is_kept(algorithm, &TRAFFIC, &outcome).err()
    });
    let broken: Vec<_> = broken.collect();
    assert!(broken.is_empty(), "{broken:#?}");
}
