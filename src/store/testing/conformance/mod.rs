//! The conformance kit: tests any store against the rules that limiters rely on.

mod conformance;
mod holders;
mod report;
mod returned_units;
mod rules;
mod shares;
mod silent_keys;
mod threads;

pub use conformance::Conformance;
pub use report::{ConformanceReport, RuleOutcome};
