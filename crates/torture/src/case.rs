//! The view that an attack and its oracle have of a contestant.

use std::time::Duration;

use crate::contestant::{Description, Failure};
use crate::history::{Event, Outcome, micros};
use crate::oracle::{self, Finding, Promise};

/// The key that most attacks use.
pub(crate) const KEY: &str = "ada";

/// The units of a key in a window.
pub(crate) const LIMIT: u32 = 100;

/// A contestant's description, and how long it is attacked.
#[derive(Clone, Debug)]
pub(crate) struct Case {
    pub(crate) description: Description,
    pub(crate) is_short: bool,
}

impl Case {
    /// The window of the limit: short, so that many windows are attacked.
    pub(crate) fn window(&self) -> Duration {
        let least = Duration::from_millis(if self.is_short { 200 } else { 250 });
        self.description.shortest_window.max(least)
    }

    /// Judges the usual limit. Fails if the attack was none.
    pub(crate) fn bound(&self, events: &[Event]) -> Result<Finding, Failure> {
        self.bound_within(events, LIMIT, self.window())
    }

    /// Judges another limit. Without a refusal and as many admissions as the limit, nothing was shown.
    pub(crate) fn bound_within(
        &self,
        events: &[Event],
        limit: u32,
        window: Duration,
    ) -> Result<Finding, Failure> {
        let promise = Promise {
            bound: self.description.bound,
            limit: limit.into(),
            window: micros(window),
            resolution: micros(self.description.resolution),
        };
        let finding = oracle::bound(events, &promise);
        if finding.broken_by == 0 {
            is_tried(events, limit)?;
        }
        Ok(finding)
    }
}

/// Fails if one of these callers was never answered: then nothing is shown about its process.
pub(crate) fn all_are_answered(events: &[Event], callers: u64) -> Result<(), Failure> {
    let Some(caller) = oracle::unanswered(events, callers) else {
        return Ok(());
    };
    let mut own = events.iter().filter(|event| event.caller == caller);
    let error = own.next_back().map(|event| format!("{:?}", event.outcome));
    let error = error.unwrap_or_default();
    Err(Failure::new(format!(
        "not attacked: caller {caller} had no answer, last {error}"
    )))
}

/// Fails if the callers were never refused, or not admitted as often as the limit: then nothing is shown.
pub(crate) fn is_tried(events: &[Event], limit: u32) -> Result<(), Failure> {
    if oracle::is_tried(events, limit.into()) {
        return Ok(());
    }
    let failed = events.iter().find_map(|event| match &event.outcome {
        Outcome::Failed(error) => Some(error.as_str()),
        _ => None,
    });
    let calls = events.len();
    let error = failed.unwrap_or("none");
    Err(Failure::new(format!(
        "not attacked: {calls} calls; first error: {error}"
    )))
}
