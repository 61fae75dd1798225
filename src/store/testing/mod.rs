//! For tests: a store that refuses, fails and hangs on demand, and the rules that every store keeps.

mod conformance;
mod test_store;
#[cfg(test)]
mod tests;

pub use conformance::{Conformance, ConformanceReport, RuleOutcome};
pub use test_store::{Checked, TestStore};
