//! Metrics, events, the outage log and the top rejected keys, for operators.
//!
//! Depends only on `decision`, `key`, `error` and `clock`. It makes no decisions.

mod checks;
mod events;
mod line_limits;
#[cfg(test)]
mod log_capture;
mod marked_keys;
mod metrics;
mod outage_log;
mod outcome_label;
mod spans;
mod top_rejected_keys;

pub(crate) use checks::Telemetry;
pub(crate) use line_limits::{FailureStreak, LineInterval, OnceFlag};
#[cfg(test)]
pub(crate) use log_capture::capture_log;
pub(crate) use metrics::{HAS_METRICS, LeaseMeter, PermitMeter, PermitWait, StoreMeter};
pub(crate) use outage_log::OutageLog;
pub(crate) use outcome_label::{OutcomeLabel, WaitOutcome};
pub(crate) use spans::CheckSpan;
pub use top_rejected_keys::RejectedKey;
