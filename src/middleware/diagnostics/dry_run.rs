//! What a dry run would have refused: counted, and told now and then.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use crate::middleware::rejection::Rejection;

/// How often it is told at most, in seconds.
const EVERY_SECONDS: u64 = 10;

/// How many requests a dry run has let through that would have been refused.
#[derive(Debug)]
pub(crate) struct DryRunLog {
    begin: Instant,
    /// Since it was told last.
    count: AtomicU64,
    /// When it is told next, in seconds from `begin`.
    next: AtomicU64,
}

impl Default for DryRunLog {
    fn default() -> Self {
        Self {
            begin: Instant::now(),
            count: AtomicU64::default(),
            next: AtomicU64::default(),
        }
    }
}

impl DryRunLog {
    pub(super) fn note(&self, rejection: &Rejection) {
        self.note_at(self.begin.elapsed().as_secs(), rejection);
    }

    fn note_at(&self, seconds: u64, rejection: &Rejection) {
        let limiter = rejection.limiter();
        self.count.fetch_add(1, Ordering::Relaxed);
        let next = self.next.load(Ordering::Relaxed);
        let then = seconds.saturating_add(EVERY_SECONDS);
        let is_due = seconds >= next
            && self
                .next
                .compare_exchange(next, then, Ordering::Relaxed, Ordering::Relaxed)
                .is_ok();
        if is_due {
            let count = self.count.swap(0, Ordering::Relaxed);
            tracing::info!(target: "tollgate::diagnostics", limiter, count, "dry run: requests would have been refused");
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
    fn what_would_be_refused_is_told_every_ten_seconds_with_its_number() {
        let reason = RejectionReason::NoKey(KeyError::new(KeyErrorKind::Missing, "none"));
        let rejection = Rejection::new(&Arc::from("search"), reason);
        let spared = DryRunLog::default();
        let log = log_of(|| {
            for second in 0..25 {
                for _ in 0..3 {
                    spared.note_at(second, &rejection);
                }
            }
        });
        let told: Vec<_> = log.iter().filter(|line| line.contains("INFO")).collect();
        assert_eq!(told.len(), 3, "{log:?}");
        for (line, count) in told.iter().zip(["count=1", "count=30", "count=30"]) {
            assert!(line.contains(count) && line.contains("search"), "{line}");
        }
    }
}
