//! The paused keys of a limiter: their name in the store, and the warnings about them.

use std::sync::Arc;
use std::time::Duration;

use crate::error::{Error, warning};
use crate::key::Key;
use crate::telemetry::LineInterval;

/// The default of [`RateLimiter::max_pause`](crate::RateLimiter::max_pause): an upstream that errs keeps no client away for a day.
pub(super) const DEFAULT_MAX_PAUSE: Duration = Duration::from_secs(3_600);

/// The paused keys of a limiter.
pub(super) struct Pauses {
    /// The name under which the store keeps them.
    pub(super) name: Key,
    warnings: LineInterval,
}

impl Pauses {
    pub(super) fn new(limiter: &Key) -> Arc<Self> {
        Arc::new(Self {
            name: limiter.pauses_of_limiter(),
            warnings: LineInterval::new(Duration::from_secs(60)),
        })
    }

    /// Warns at most once a minute that other processes do not know of a key.
    pub(super) fn warn(&self, limiter: &str, error: &Error) {
        if self.warnings.is_due() {
            tracing::warn!(
                target: "tollgate::diagnostics",
                code = warning::PAUSE_NOT_SHARED,
                limiter,
                "cannot tell other processes that a key is paused: {error}"
            );
        }
    }
}
