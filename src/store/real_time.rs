//! Timeouts of I/O, by the monotonic clock of the system.
//!
//! A clock of tokio that a test has paused jumps to the next timer whenever the runtime only waits for I/O, even if the reply of
//! a server is on its way. So a timer of tokio alone would end each call at once.

use std::pin::pin;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use tokio::task::spawn_blocking;

/// Waits for I/O of a store. Returns `None` if it takes longer than this.
///
/// With this in place of tokio's `timeout`, users of the store can test with a paused clock. The clock
/// jumps by this time, and then stands still until the future is ready or the time has really passed.
///
/// # Panics
///
/// Panics outside of a tokio runtime with a time driver.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use tollgate::store;
///
/// # tokio::runtime::Builder::new_current_thread().enable_time().build()?.block_on(async {
/// let reply = async { "PONG" };
/// assert_eq!(store::timeout(Duration::from_secs(1), reply).await, Some("PONG"));
/// # });
/// # Ok::<(), std::io::Error>(())
/// ```
pub async fn timeout<T>(limit: Duration, future: impl Future<Output = T>) -> Option<T> {
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
