//! A flag for log lines that appear once.

use std::sync::atomic::{AtomicBool, Ordering};

/// A flag that is set once and stays set.
#[derive(Debug, Default)]
pub(super) struct OnceFlag(AtomicBool);

impl OnceFlag {
    pub(super) const fn new() -> Self {
        Self(AtomicBool::new(false))
    }

    /// Sets the flag. Returns `true` to the first caller only.
    pub(super) fn first_time(&self) -> bool {
        // Reads first: a write would move the cache line between all cores.
        !self.is_set() && !self.0.swap(true, Ordering::Relaxed)
    }

    pub(super) fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}
