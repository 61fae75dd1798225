//! A log line that appears at most once in a time.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

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
