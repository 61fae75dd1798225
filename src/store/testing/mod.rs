//! Tools for tests: a store that refuses, fails or hangs on demand, and the conformance kit for stores.

mod conformance;
mod test_store;
#[cfg(test)]
mod tests;

pub use conformance::{Conformance, ConformanceReport, RuleOutcome};
pub use test_store::{Checked, TestStore};
