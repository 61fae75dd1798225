//! Captures the log of a test.

#[path = "../../tests/support/log.rs"]
mod log;

/// Runs `steps`, and returns the lines that they logged.
pub(crate) fn log_of(steps: impl FnOnce()) -> Vec<String> {
    log::keep();
    steps();
    log::kept()
}
