//! Runs all rules, and reports the results.

use std::fmt;
use std::sync::Arc;

use super::conformance::{Broken, Conformance};
use super::{returned_units, rules, threads};
use crate::quota::Algorithm;

/// The result of one rule.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RuleOutcome {
    /// The rule holds.
    Passed,
    /// The store answered with an error of kind [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported), which this text is.
    Unsupported(String),
    /// The rule does not hold: what was expected, and what the store answered.
    Failed(String),
}

/// The results of a [`Conformance`] run, in the order of the rules.
#[derive(Clone, Debug)]
pub struct ConformanceReport {
    outcomes: Vec<(String, RuleOutcome)>,
}

impl Conformance {
    /// Runs all rules.
    ///
    /// Call it inside a tokio runtime with time enabled. Rules with threads start runtimes of their own,
    /// and block the calling thread meanwhile.
    pub async fn run(self) -> ConformanceReport {
        let kit = Arc::new(self);
        let mut outcomes = Vec::new();
        for (name, rule) in rules::RULES.iter().chain(returned_units::RULES) {
            outcomes.push(((*name).to_owned(), outcome(rule(&kit).await)));
        }
        for (name, rule) in rules::RULES_OF_ALGORITHMS
            .iter()
            .chain(returned_units::RULES_OF_ALGORITHMS)
        {
            for facts in Algorithm::ALL {
                let name = format!("{name} ({})", facts.text);
                outcomes.push((name, outcome(rule(&kit, facts.algorithm).await)));
            }
        }
        for (name, rule) in threads::RULES {
            for facts in Algorithm::ALL {
                let name = format!("{name} ({})", facts.text);
                outcomes.push((name, outcome(rule(&kit, facts.algorithm))));
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
    /// Returns each rule by its name, with its outcome.
    pub fn outcomes(&self) -> impl Iterator<Item = (&str, &RuleOutcome)> {
        let outcomes = self.outcomes.iter();
        outcomes.map(|(rule, outcome)| (rule.as_str(), outcome))
    }

    /// Panics unless every rule holds that the store supports.
    ///
    /// # Panics
    ///
    /// With the whole report, if a rule does not hold.
    pub fn assert_passed(&self) {
        let failed =
            |(_, outcome): &(String, RuleOutcome)| matches!(outcome, RuleOutcome::Failed(_));
        assert!(!self.outcomes.iter().any(failed), "{self}");
    }

    /// Panics unless the store supports everything and every rule holds.
    ///
    /// # Panics
    ///
    /// With the whole report, if a rule does not hold, or is about something that the store does not
    /// support.
    pub fn assert_complete(&self) {
        let passed = |(_, outcome): &(String, RuleOutcome)| *outcome == RuleOutcome::Passed;
        assert!(self.outcomes.iter().all(passed), "{self}");
    }
}

/// A line for each rule.
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
