//! Runs all rules, and reports their outcomes.

use std::fmt;
use std::sync::Arc;

use tollgate::Algorithm;

use crate::conformance::{Broken, Conformance};
use crate::{holders, returned_units, rules, shares, silent_keys, threads};

/// The outcome of one rule of the [`Conformance`] kit.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RuleOutcome {
    /// The rule holds.
    Passed,
    /// The store does not support an operation of the rule: it failed with
    /// [`ErrorKind::Unsupported`](tollgate::ErrorKind::Unsupported). The text comes from the error.
    Unsupported(String),
    /// The rule does not hold. The text says what was expected, and what the store answered.
    Failed(String),
}

/// The outcomes of a run of the [`Conformance`] kit, or of [`RowsConformance`](crate::RowsConformance).
///
/// [`assert_passed`](Self::assert_passed) and [`assert_complete`](Self::assert_complete) are for tests.
/// `Display` prints a line for each rule.
#[derive(Clone, Debug, Default)]
pub struct ConformanceReport {
    outcomes: Vec<(String, RuleOutcome)>,
}

impl Conformance {
    /// Runs all rules.
    ///
    /// Call it inside a tokio runtime with its time driver enabled. Some rules start threads with their own
    /// runtimes, and block the calling thread meanwhile.
    pub async fn run(self) -> ConformanceReport {
        let kit = Arc::new(self);
        let mut outcomes = Vec::new();
        let of_stores = [
            rules::RULES,
            returned_units::RULES,
            holders::RULES,
            shares::RULES,
            silent_keys::RULES,
        ];
        for (name, rule) in of_stores.into_iter().flatten() {
            outcomes.push(((*name).to_owned(), outcome(rule(&kit).await)));
        }
        for (name, rule) in rules::RULES_OF_ALGORITHMS
            .iter()
            .chain(returned_units::RULES_OF_ALGORITHMS)
        {
            for algorithm in Algorithm::ALL {
                let name = format!("{name} ({algorithm})");
                outcomes.push((name, outcome(rule(&kit, *algorithm).await)));
            }
        }
        for (name, rule) in threads::RULES {
            for algorithm in Algorithm::ALL {
                let name = format!("{name} ({algorithm})");
                outcomes.push((name, outcome(rule(&kit, *algorithm))));
            }
        }
        ConformanceReport { outcomes }
    }
}

fn outcome(result: Result<(), Broken>) -> RuleOutcome {
    match result {
        Ok(()) => RuleOutcome::Passed,
        Err(Broken::Unsupported(text)) => RuleOutcome::Unsupported(text),
        Err(Broken::Failed(text)) => RuleOutcome::Failed(text),
    }
}

impl ConformanceReport {
    pub(crate) fn add(&mut self, rule: &str, outcome: RuleOutcome) {
        self.outcomes.push((rule.to_owned(), outcome));
    }

    /// Returns the name and the outcome of each rule, in the order of the run.
    pub fn outcomes(&self) -> impl Iterator<Item = (&str, &RuleOutcome)> {
        self.outcomes
            .iter()
            .map(|(rule, outcome)| (rule.as_str(), outcome))
    }

    /// Asserts that no rule failed. Rules about operations that the store does not support are ignored.
    ///
    /// # Panics
    ///
    /// Panics with the whole report if a rule failed.
    pub fn assert_passed(&self) {
        let has_failed = self
            .outcomes()
            .any(|(_, outcome)| matches!(outcome, RuleOutcome::Failed(_)));
        assert!(!has_failed, "{self}");
    }

    /// Asserts that every rule passed, and so that the store supports every operation.
    ///
    /// # Panics
    ///
    /// Panics with the whole report if a rule failed, or if the store does not support an operation.
    pub fn assert_complete(&self) {
        let is_complete = self
            .outcomes()
            .all(|(_, outcome)| *outcome == RuleOutcome::Passed);
        assert!(is_complete, "{self}");
    }
}

/// Formats one line for each rule.
impl fmt::Display for ConformanceReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (rule, outcome) in &self.outcomes {
            match outcome {
                RuleOutcome::Passed => writeln!(f, "passed       {rule}")?,
                RuleOutcome::Unsupported(text) => writeln!(f, "unsupported  {rule}: {text}")?,
                RuleOutcome::Failed(text) => writeln!(f, "FAILED       {rule}: {text}")?,
            }
        }
        Ok(())
    }
}
