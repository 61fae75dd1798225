//! The wait of a refused request for units, in a layer that waits.

use std::time::Duration;

use super::config::LayerConfig;
use crate::decision::Decision;
use crate::limiter::backoff_after;

/// Returns the wait before a refused check is tried again, or `None` if the request does not wait.
pub(super) fn backoff<E>(
    config: &LayerConfig,
    result: &Result<Decision, E>,
    left: Duration,
) -> Option<Duration> {
    // A dry run delays no request.
    if config.max_wait.is_zero() || config.dry_run.is_some() {
        return None;
    }
    backoff_after(result.as_ref().ok()?.view(), left)
}
