//! When a shared list is refreshed in the background, and how that goes.

use std::mem;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::watch;

use crate::clock::micros_rounded_up;
use crate::error::{Error, warning};
use crate::telemetry::FailureStreak;

/// The refreshes of a list in the background, while there are checks.
pub(super) struct Refreshes {
    /// The shortest time between two refreshes, in microseconds; 0 for none.
    pub(super) interval: u64,
    /// The time at which the next refresh is due.
    pub(super) next_at: AtomicU64,
    /// The time at which the last refresh that has succeeded is as old as the interval.
    pub(super) fresh_until: AtomicU64,
    /// Whether a refresh is running.
    pub(super) is_running: watch::Sender<bool>,
    failures: FailureStreak,
}

impl Refreshes {
    pub(super) fn every(interval: Duration) -> Self {
        Self {
            interval: micros_rounded_up(interval),
            next_at: AtomicU64::new(0),
            fresh_until: AtomicU64::new(0),
            is_running: watch::Sender::default(),
            failures: FailureStreak::default(),
        }
    }

    /// Begins a refresh, which ends when the guard is dropped. `None` if one is running.
    pub(super) fn begin(self: &Arc<Self>) -> Option<Running> {
        let begin = |is_running: &mut bool| !mem::replace(is_running, true);
        let has_begun = self.is_running.send_if_modified(begin);
        has_begun.then(|| Running(Arc::clone(self)))
    }

    #[inline]
    pub(super) fn are_due(&self, now: u64) -> bool {
        self.interval > 0 && now >= self.next_at.load(Ordering::Relaxed)
    }

    /// Records the outcome of a refresh. Logs once when refreshing keeps failing, and once when it works again. If the
    /// store fails as a whole, the checks log that first, and nothing is refreshed.
    pub(super) fn record(&self, outcome: &Result<(), Error>, fresh_until: u64) {
        match outcome {
            Ok(()) => {
                self.fresh_until.store(fresh_until, Ordering::Relaxed);
                if self.failures.end() {
                    tracing::info!(
                        target: "tollgate::diagnostics",
                        "the block list is refreshed again"
                    );
                }
            }
            Err(error) if self.failures.fail(false) => tracing::warn!(
                target: "tollgate::diagnostics",
                code = warning::STALE_BLOCK_LIST,
                "failed to refresh the block list: {error}"
            ),
            Err(_) => {}
        }
    }
}

/// A refresh in the background that is running. It ends when this is dropped.
pub(super) struct Running(pub(super) Arc<Refreshes>);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.is_running.send_replace(false);
    }
}
