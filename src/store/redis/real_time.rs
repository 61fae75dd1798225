//! Timeouts of I/O, for times and for sleeps.

use std::future::pending;
use std::time::Instant;

pub(super) use crate::store::real_time::timeout;

/// Waits for a future. Returns `None` if it is not ready by this time.
pub(super) async fn timeout_at<T>(until: Instant, future: impl Future<Output = T>) -> Option<T> {
    timeout(until.saturating_duration_since(Instant::now()), future).await
}

/// Sleeps until this time.
pub(super) async fn sleep_until(end: Instant) {
    if Instant::now() < end {
        timeout_at(end, pending::<()>()).await;
    }
}
