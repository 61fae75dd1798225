//! The conformance kit: the rules that every store keeps, run against any store.

mod conformance;
mod report;
mod returned_units;
mod rules;
mod threads;

pub use conformance::Conformance;
pub use report::{ConformanceReport, RuleOutcome};
