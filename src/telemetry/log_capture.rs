//! Captures the log of a test.

#[path = "../../tests/support/log.rs"]
mod log;

/// Returns the lines that are logged while `steps` run.
pub(crate) fn log_of(steps: impl FnOnce()) -> Vec<String> {
    log::keep();
    steps();
    log::kept()
}
