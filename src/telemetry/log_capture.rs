//! Captures the log of a test.

#[path = "../../tests/support/log.rs"]
mod log;

pub(crate) fn capture_log(steps: impl FnOnce()) -> Vec<String> {
    log::keep();
    steps();
    log::kept()
}
