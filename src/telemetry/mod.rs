//! Metrics, events, the outage log and the most refused keys, for operators.
//!
//! Depends only on `decision`, `key`, `error` and `clock`. It makes no decisions.

mod busiest_refused;
mod checks;
mod events;
mod line_limits;
#[cfg(test)]
mod log_capture;
mod marked_keys;
mod metrics;
mod outage_log;
mod outcome_label;

pub use busiest_refused::RefusedKey;
pub(crate) use checks::Telemetry;
pub(crate) use line_limits::{FailureStreak, LineInterval, OnceFlag};
#[cfg(test)]
pub(crate) use log_capture::capture_log;
pub(crate) use metrics::{HAS_METRICS, LeaseMeter, PermitMeter, PermitWait, StoreMeter};
pub(crate) use outage_log::OutageLog;
pub(crate) use outcome_label::{OutcomeLabel, WaitOutcome};
