//! The end of an attempt: a check that is decided, or one that has failed.

use super::asked_level::{AskedLevel, AskedLevels, CheckKind};
use super::decision::Decision;
use super::in_flight::{HeldSlots, SlotsOfCheck};
use super::limiter::RateLimiter;
use super::line::WhyTooLate;
use crate::error::{Error, ErrorKind};
use crate::telemetry::OutcomeLabel;

/// The result of a check.
pub(crate) type Checked = Result<DecidedCheck, Box<FailedCheck>>;

/// A check that is decided.
pub(crate) struct DecidedCheck {
    pub(crate) decision: Decision,
    pub(super) kind: CheckKind,
    /// The slots that an admitted check has taken.
    pub(super) slots: Option<Box<SlotsOfCheck>>,
    /// Why the call waits no longer.
    pub(super) end_of_wait: Option<WhyTooLate>,
}

/// A check that has failed.
pub(crate) struct FailedCheck {
    pub(crate) error: Error,
    /// The places of the levels that failed. The first level if the check as a whole is wrong.
    pub(crate) failed: Vec<usize>,
    pub(super) levels: AskedLevels,
    pub(super) kind: CheckKind,
}

/// The error of a check that goes on.
#[derive(Debug)]
pub(super) struct CheckError {
    pub(super) error: Error,
    /// The places of the levels that failed.
    pub(super) failed: Vec<usize>,
}

impl CheckError {
    pub(super) fn at(place: usize, error: Error) -> Self {
        let failed = vec![place];
        Self { error, failed }
    }
}

impl DecidedCheck {
    #[inline]
    pub(crate) fn take_slots(&mut self) -> Vec<HeldSlots> {
        self.slots.take().map_or_else(Vec::new, |slots| slots.held)
    }
}

impl FailedCheck {
    pub(super) fn failed_limiters(&self) -> impl Iterator<Item = &RateLimiter> {
        self.levels
            .iter()
            .filter(|level| self.failed.contains(&level.record().place))
            .map(AskedLevel::limiter)
    }
}

#[inline]
pub(super) fn record(checked: &Checked) {
    match checked {
        Ok(decided) => decided.decision.record(),
        Err(failed) => record_failure(failed),
    }
}

#[cold]
fn record_failure(failed: &FailedCheck) {
    let kind = failed.error.kind();
    // The store did not fail: the check can never be admitted, which is a refusal.
    let outcome = match kind {
        ErrorKind::CostExceedsLimit => OutcomeLabel::Refused,
        _ => OutcomeLabel::Failed,
    };
    for limiter in failed.failed_limiters() {
        let telemetry = &limiter.0.telemetry;
        telemetry.record_failure(outcome, &failed.error, kind.text());
    }
}
