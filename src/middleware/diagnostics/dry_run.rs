//! The log of a dry run: how many requests would have been rejected.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use crate::middleware::rejection::Rejection;

/// The minimum time between two log lines, in seconds.
const INTERVAL_SECONDS: u64 = 10;

/// The number of requests that a dry run would have rejected, and the time of the next log line.
#[derive(Debug)]
pub(super) struct DryRunLog {
    created: Instant,
    /// The requests since the last line.
    count: AtomicU64,
    /// In seconds since `created`.
    next_line: AtomicU64,
}

impl Default for DryRunLog {
    fn default() -> Self {
        Self {
            created: Instant::now(),
            count: AtomicU64::default(),
            next_line: AtomicU64::default(),
        }
    }
}

impl DryRunLog {
    /// Counts a request, and logs the count if a line is due.
    pub(super) fn count(&self, rejection: &Rejection) {
        self.count_at(self.created.elapsed().as_secs(), rejection);
    }

    fn count_at(&self, now: u64, rejection: &Rejection) {
        let limiter = rejection.limiter();
        self.count.fetch_add(1, Ordering::Relaxed);
        let due = self.next_line.load(Ordering::Relaxed);
        let following = now.saturating_add(INTERVAL_SECONDS);
        let is_due = now >= due
            && self
                .next_line
                .compare_exchange(due, following, Ordering::Relaxed, Ordering::Relaxed)
                .is_ok();
        if is_due {
            let count = self.count.swap(0, Ordering::Relaxed);
            tracing::info!(target: "tollgate::diagnostics", limiter, count, "dry run: requests would have been rejected");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::key::{KeyError, KeyErrorKind};
    use crate::middleware::rejection::RejectionReason;
    use crate::telemetry::log_of;

    #[test]
    fn a_line_with_the_count_appears_every_ten_seconds() {
        let reason = RejectionReason::NoKey(KeyError::new(KeyErrorKind::Missing, "none"));
        let rejection = Rejection::new(&Arc::from("search"), reason);
        let dry_run = DryRunLog::default();
        let log = log_of(|| {
            for second in 0..25 {
                for _ in 0..3 {
                    dry_run.count_at(second, &rejection);
                }
            }
        });
        let lines: Vec<_> = log.iter().filter(|line| line.contains("INFO")).collect();
        assert_eq!(lines.len(), 3, "{log:?}");
        for (line, count) in lines.iter().zip(["count=1", "count=30", "count=30"]) {
            assert!(line.contains(count) && line.contains("search"), "{line}");
        }
    }
}
