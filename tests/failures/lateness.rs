//! The time for which this machine runs nothing, which no bound of a test counts.

use std::pin::pin;
use std::time::{Duration, Instant};

use tokio::time::sleep;

/// Runs a future. Returns its output, and how late the latest of many short sleeps beside it ended.
pub(crate) async fn with_lateness<T>(future: impl Future<Output = T>) -> (T, Duration) {
    const TURN: Duration = Duration::from_millis(5);
    let mut future = pin!(future);
    let mut latest = Duration::ZERO;
    loop {
        let slept = Instant::now();
        let output = tokio::select! {
            output = &mut future => Some(output),
            () = sleep(TURN) => None,
        };
        latest = latest.max(slept.elapsed().saturating_sub(TURN));
        if let Some(output) = output {
            return (output, latest);
        }
    }
}
