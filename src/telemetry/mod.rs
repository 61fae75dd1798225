//! Metrics, events, the outage log and the most refused keys, for operators.
//!
//! This room knows `decision`, `key`, `error` and `clock`. It decides nothing and delays no check:
//! telemetry without a listener costs one load.

mod busiest_refused;
mod checks;
mod events;
#[cfg(test)]
mod log_capture;
mod metrics;
mod outage_log;
mod outcome_label;

pub use busiest_refused::RefusedKey;
pub(crate) use checks::Telemetry;
#[cfg(test)]
pub(crate) use log_capture::log_of;
pub(crate) use metrics::StoreMeter;
pub(crate) use outage_log::OutageLog;
pub(crate) use outcome_label::OutcomeLabel;
