//! Failures in a row of a task in the background, of which one is logged.

use std::sync::atomic::{AtomicU32, Ordering};

/// The failure in a row that is logged: a single one may pass unnoticed.
const LOGGED: u32 = 3;

/// The failures in a row of a task in the background.
#[derive(Debug, Default)]
pub(crate) struct FailureStreak(AtomicU32);

impl FailureStreak {
    /// Counts a failure. Returns whether it is to be logged: the first one if it is `lasting`, else the third.
    pub(crate) fn fail(&self, is_lasting: bool) -> bool {
        let failures = self.0.fetch_add(1, Ordering::Relaxed).saturating_add(1);
        failures == if is_lasting { 1 } else { LOGGED }
    }

    /// Ends the failures. Returns whether that is to be logged.
    pub(crate) fn end(&self) -> bool {
        self.0.swap(0, Ordering::Relaxed) >= LOGGED
    }
}
