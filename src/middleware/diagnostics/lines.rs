//! What the log lines share: the consequence that they name, and the flag by which each is logged once.

use std::sync::atomic::{AtomicBool, Ordering};

/// A flag that makes a log line appear only once.
#[derive(Debug, Default)]
pub(in crate::middleware) struct OnceFlag(AtomicBool);

impl OnceFlag {
    pub(in crate::middleware) const fn new() -> Self {
        Self(AtomicBool::new(false))
    }

    /// Sets the flag, and returns `true` only for the first call.
    pub(in crate::middleware) fn first_time(&self) -> bool {
        // Reads first: each write would move the cache line between cores.
        !self.is_set() && !self.0.swap(true, Ordering::Relaxed)
    }

    pub(super) fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// Returns what happens to a request that cannot be checked.
pub(super) fn answering_500(is_dry_run: bool) -> &'static str {
    if is_dry_run {
        "letting it pass in a dry run"
    } else {
        "answering 500"
    }
}
