//! The log of a dry run: how many requests would have been rejected.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::middleware::rejection::Rejection;
use crate::telemetry::LineInterval;

/// The number of requests that a dry run would have rejected since the last line.
#[derive(Debug)]
pub(super) struct DryRunLog {
    count: AtomicU64,
    lines: LineInterval,
}

impl Default for DryRunLog {
    fn default() -> Self {
        Self {
            count: AtomicU64::new(0),
            lines: LineInterval::new(Duration::from_secs(10)),
        }
    }
}

impl DryRunLog {
    /// Counts a request, and logs the count if a line is due.
    pub(super) fn count(&self, rejection: &Rejection) {
        self.count.fetch_add(1, Ordering::Relaxed);
        if self.lines.is_due() {
            let (limiter, count) = (rejection.limiter(), self.count.swap(0, Ordering::Relaxed));
            tracing::info!(target: "tollgate::diagnostics", limiter, count, "dry run: requests would have been rejected");
        }
    }
}
