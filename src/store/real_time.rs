//! Timeouts of I/O, by the monotonic clock of the system.
//!
//! A clock of tokio that a test has paused jumps to the next timer whenever the runtime only waits for I/O, even if the reply of
//! a server is on its way. So a timer of tokio alone would end each call at once.

use std::pin::pin;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use tokio::task::spawn_blocking;

/// Waits for a future. Returns `None` if it takes longer than this.
///
/// A paused clock of tokio jumps by this time, and then stands still until the future is ready or the time has really passed.
pub(super) async fn timeout<T>(limit: Duration, future: impl Future<Output = T>) -> Option<T> {
    let (since, mut future) = (Instant::now(), pin!(future));
    let (mut left, mut _task) = (limit, None);
    loop {
        if let Ok(output) = tokio::time::timeout(left, future.as_mut()).await {
            return Some(output);
        }
        left = limit.checked_sub(since.elapsed())?;
        // A paused clock does not jump while a blocking task runs. This one also ends when its sender is dropped.
        let (sender, receiver) = mpsc::channel::<()>();
        _task = Some(sender);
        spawn_blocking(move || receiver.recv_timeout(left));
    }
}

/// Waits for a future. Returns `None` if it is not ready by this time.
#[cfg(feature = "redis")]
pub(super) async fn timeout_at<T>(until: Instant, future: impl Future<Output = T>) -> Option<T> {
    timeout(until.saturating_duration_since(Instant::now()), future).await
}

/// Sleeps for this long.
#[cfg(feature = "redis")]
pub(super) async fn sleep(duration: Duration) {
    timeout(duration, std::future::pending::<()>()).await;
}
