//! The findings about a whole layer, each of which is logged once.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::level_diagnostics::FailedChecks;
use crate::error::warning;
use crate::limiter::DecisionView;
use crate::middleware::rejection::Rejection;
use crate::telemetry::{LineInterval, OnceFlag};

/// The diagnostics of one layer: flags and logs that limit the number of log lines. Each level has its own for
/// its key and its settlements.
#[derive(Debug)]
pub(in crate::middleware) struct Diagnostics {
    charged_twice: OnceFlag,
    /// The limiters of the layer cannot be checked as they are.
    pub(in crate::middleware) limiters_misconfigured: FailedChecks,
    unknown_level: OnceFlag,
    /// The number of requests that a dry run would have rejected since the last line.
    dry_run_count: AtomicU64,
    dry_run_lines: LineInterval,
}

impl Default for Diagnostics {
    fn default() -> Self {
        Self {
            charged_twice: OnceFlag::new(),
            limiters_misconfigured: FailedChecks::new("failed to check the limits of a layer"),
            unknown_level: OnceFlag::new(),
            dry_run_count: AtomicU64::new(0),
            dry_run_lines: LineInterval::new(Duration::from_secs(10)),
        }
    }
}

impl Diagnostics {
    /// Logs that a handler settles a level that the layer does not have.
    pub(in crate::middleware) fn unknown_level(&self, limiter: &str, settled: &str) {
        if self.unknown_level.first_time() {
            tracing::warn!(target: "tollgate::diagnostics",
                code = warning::UNKNOWN_LEVEL,
                limiter,
                "cannot settle the level {settled:?}: no limiter of this layer has that name; the charge stays"
            );
        }
    }

    pub(in crate::middleware) fn observe_nested(
        &self,
        limiter: &str,
        decision: &DecisionView,
        outer: &DecisionView,
    ) {
        let is_charged_twice = std::iter::successors(Some(outer), |outer| outer.outer())
            .any(|outer| outer.charges_same_count(decision));
        if is_charged_twice && self.charged_twice.first_time() {
            tracing::warn!(target: "tollgate::diagnostics",
                code = warning::CHARGED_TWICE,
                limiter,
                "a request was charged twice: two of its layers share name, key and store; give each \
                 layer its own name, or remove one"
            );
        }
    }

    /// Counts a request that a dry run would have rejected, and logs the count if a line is due.
    pub(in crate::middleware) fn count_dry_run(&self, rejection: &Rejection) {
        self.dry_run_count.fetch_add(1, Ordering::Relaxed);
        if self.dry_run_lines.is_due() {
            let count = self.dry_run_count.swap(0, Ordering::Relaxed);
            let limiter = rejection.limiter();
            tracing::info!(target: "tollgate::diagnostics", limiter, count, "dry run: requests would have been rejected");
        }
    }
}
