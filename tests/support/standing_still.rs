//! A process that stands still again and again, as one at its limit of CPU does, while its store is healthy.
#![allow(dead_code, reason = "each test uses a part")]

use std::thread;
use std::time::Duration;

use tollgate::{RateLimiter, Source};

use super::process::{Process, print};

pub(crate) const LIMIT: u32 = 3_000;

const TASKS: u32 = 20;
const CHECKS: u32 = 200;

/// About the time between two checks of a task.
const PACE: Duration = Duration::from_millis(20);

const READY: &str = "it has checked once";

/// How long a process stands still, of how long a time.
pub(crate) struct Pauses {
    pub(crate) of: Duration,
    pub(crate) every: Duration,
}

/// As the limits of CPU do that are common: one that takes less than the default deadline of 100 ms, and longer ones.
pub(crate) const PAUSES: [Pauses; 3] = [
    Pauses::new(90, 250),
    Pauses::new(150, 250),
    Pauses::new(300, 600),
];

impl Pauses {
    pub(crate) const fn new(of: u64, every: u64) -> Self {
        Self {
            of: Duration::from_millis(of),
            every: Duration::from_millis(every),
        }
    }

    /// Stops a process again and again once it has checked, until it ends. Returns its report.
    pub(crate) fn stop(&self, mut process: Process) -> String {
        process.rest_of_line(READY);
        while process.is_running() {
            process.signal("STOP");
            thread::sleep(self.of);
            process.signal("CONT");
            thread::sleep(self.every.saturating_sub(self.of));
        }
        process.report()
    }
}

/// Checks a key more often than its limit admits. Returns how many checks were admitted, and how many were not decided by the
/// store.
pub(crate) async fn use_up(limiter: &RateLimiter) -> [u32; 2] {
    ready(limiter).await;
    let tasks = (0..TASKS).map(|task| {
        let limiter = limiter.clone();
        tokio::spawn(async move {
            let (mut admitted, mut undecided) = (0, 0);
            for check in 0..CHECKS {
                let decision = limiter.check("ada").await.expect("a decision");
                admitted += u32::from(decision.is_allowed());
                undecided += u32::from(decision.source() == Source::Fallback);
                // At all times, one of the tasks waits for its reply.
                let millis = (task * 7 + check * 3) % 11;
                tokio::time::sleep(PACE + Duration::from_millis(millis.into())).await;
            }
            [admitted, undecided]
        })
    });
    let mut sums = [0; 2];
    for task in tasks.collect::<Vec<_>>() {
        for (sum, of_task) in sums.iter_mut().zip(task.await.expect("a task")) {
            *sum += of_task;
        }
    }
    sums
}

/// Connects, and tells the parent.
pub(crate) async fn ready(limiter: &RateLimiter) {
    let _ = limiter.peek("ada").await.expect("a decision");
    print(READY);
}
