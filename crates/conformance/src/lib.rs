#![doc = include_str!("../README.md")]

mod conformance;
mod holders;
mod report;
mod returned_units;
mod rows;
mod rules;
mod run_name;
mod shares;
mod silent_keys;
mod threads;

pub use conformance::Conformance;
pub use report::{ConformanceReport, RuleOutcome};
pub use rows::RowsConformance;
