//! Limits of log lines: one line at all, one in an interval, one of several failures in a row.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// A flag that makes a log line appear only once.
#[derive(Debug, Default)]
pub(crate) struct OnceFlag(AtomicBool);

impl OnceFlag {
    pub(crate) const fn new() -> Self {
        Self(AtomicBool::new(false))
    }

    /// Sets the flag, and returns `true` only for the first call.
    pub(crate) fn first_time(&self) -> bool {
        // Reads first: each write would move the cache line between cores.
        !self.is_set() && !self.0.swap(true, Ordering::Relaxed)
    }

    pub(crate) fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// Decides when a log line is due: at once, and then at most once in an interval of whole seconds.
#[derive(Debug)]
pub(crate) struct LineInterval {
    created: Instant,
    interval: Duration,
    /// In seconds since `created`.
    next_line: AtomicU64,
}

impl LineInterval {
    pub(crate) fn new(interval: Duration) -> Self {
        Self {
            created: Instant::now(),
            interval,
            next_line: AtomicU64::new(0),
        }
    }

    /// Returns whether a line is due. Then the next one is due after the interval.
    pub(crate) fn is_due(&self) -> bool {
        self.is_due_at(self.created.elapsed().as_secs())
    }

    fn is_due_at(&self, now: u64) -> bool {
        let due = self.next_line.load(Ordering::Relaxed);
        let following = now.saturating_add(self.interval.as_secs());
        now >= due
            && self
                .next_line
                .compare_exchange(due, following, Ordering::Relaxed, Ordering::Relaxed)
                .is_ok()
    }
}

/// The failure in a row that is logged: a single one may pass unnoticed.
const LOGGED: u32 = 3;

/// The failures in a row of a task in the background.
#[derive(Debug, Default)]
pub(crate) struct FailureStreak(AtomicU32);

impl FailureStreak {
    /// Counts a failure. Returns whether it is to be logged: the first one if it is `lasting`, else the third.
    pub(crate) fn fail(&self, is_lasting: bool) -> bool {
        let failures = self.0.fetch_add(1, Ordering::Relaxed).saturating_add(1);
        failures == if is_lasting { 1 } else { LOGGED }
    }

    /// Ends the failures. Returns whether that is to be logged.
    pub(crate) fn end(&self) -> bool {
        self.0.swap(0, Ordering::Relaxed) >= LOGGED
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_due_at_once_and_after_each_interval() {
        let interval = LineInterval::new(Duration::from_secs(10));
        let due =
            (0..25).filter(|second| interval.is_due_at(*second) | interval.is_due_at(*second));
        assert_eq!(due.collect::<Vec<_>>(), [0, 10, 20]);
    }
}
