//! The end of an attempt: a check that is decided, or one that has failed. Either can be asked again.

use std::sync::Arc;

use super::asked_level::{AskedLevel, AskedLevels, CheckKind};
use super::decision::Decision;
use super::in_flight::{HeldSlots, SlotsOfCheck};
use super::limiter::RateLimiter;
use super::line::WhyTooLate;
use super::pending_check::PendingCheck;
use super::record::OwnedRecord;
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

    /// Returns the same check before it was asked. Its slots return.
    pub(crate) fn ask_again(self) -> PendingCheck {
        drop(self.slots);
        ask_again(self.decision.into_records(), self.kind)
    }

    /// Returns the decision, whose units are to be given back, and the same check before it was asked. Its slots return.
    pub(crate) fn split(self) -> (Decision, PendingCheck) {
        drop(self.slots);
        let again = ask_again(self.decision.view().records().clone(), self.kind);
        (self.decision, again)
    }
}

impl FailedCheck {
    pub(super) fn failed_limiters(&self) -> impl Iterator<Item = &RateLimiter> {
        self.levels
            .iter()
            .filter(|level| self.failed.contains(&level.record().place))
            .map(AskedLevel::limiter)
    }

    pub(super) fn ask_again(self) -> PendingCheck {
        let records = self.levels.into_iter().map(AskedLevel::into_owned);
        ask_again(records, self.kind)
    }
}

fn ask_again(records: impl IntoIterator<Item = Arc<OwnedRecord>>, kind: CheckKind) -> PendingCheck {
    PendingCheck {
        levels: records.into_iter().map(AskedLevel::again).collect(),
        kind,
        slots: None,
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

#[cfg(all(test, feature = "test-util"))]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::quota::{Quota, Quotas, Share, ShareId};
    use crate::store::TestStore;

    #[derive(Clone, Copy, Debug)]
    enum Brought {
        Refusal,
        /// An admission, whose units return because a key is paused meanwhile.
        Admission,
        Failure,
    }

    fn levels(store: &TestStore) -> AskedLevels {
        let users = RateLimiter::new(store.clone(), Quota::per_hour(50)).name("user");
        let tenants = RateLimiter::new(store.clone(), Quota::per_hour(90)).name("tenant");
        let plan = Quotas::from([
            Quota::per_hour(10).shares([Share::of("batch").at_most(4)]),
            Quota::in_flight(9),
        ]);
        let mut user = AskedLevel::with(&users, "ada", 1_000, |record| {
            record.unclamped_cost = Some(1_000);
            record.share = Some(ShareId::of("batch"));
            record.slots = 2;
            record.place = 1;
            record.is_hidden = true;
        });
        user.set_plan(plan);
        let tenant = AskedLevel::with(&tenants, "acme", 3, |record| record.place = 4);
        AskedLevels::from_iter([user, tenant])
    }

    fn asked(check: &PendingCheck) -> Vec<String> {
        check
            .levels
            .iter()
            .map(|level| format!("{:?} {:?}", level.limiter(), level.record()))
            .collect()
    }

    #[tokio::test]
    async fn a_check_that_is_asked_again_asks_the_same_whatever_an_attempt_has_brought() {
        for brought in [Brought::Refusal, Brought::Admission, Brought::Failure] {
            let store = TestStore::new();
            let mut check = PendingCheck::new(levels(&store));
            let before = asked(&check);
            for attempt in 0..3 {
                match brought {
                    Brought::Refusal => store.refuse_next(1, Duration::from_secs(5)),
                    Brought::Admission => {}
                    Brought::Failure => store.fail_next(1, ErrorKind::Unavailable),
                }
                check.slots = Some(Box::new(SlotsOfCheck::new(None)));
                let checked = check.start().await;
                let checks = store.take_checks();
                assert_eq!(checks.len(), 2, "{brought:?}, attempt {attempt}");
                let first = checks[0].check();
                assert_eq!((first.key.as_str(), first.cost), ("ada", 4), "{brought:?}");
                assert_eq!(first.quotas.len(), 2);
                assert_eq!(first.share, Some(ShareId::of("batch")));
                assert_eq!(first.holding.map(|holding| holding.wanted), Some(2));
                check = match (checked, brought) {
                    (Ok(decided), Brought::Refusal) => decided.ask_again(),
                    (Ok(decided), _) => {
                        let (decision, again) = decided.split();
                        decision.settle(0).await.expect("settled");
                        again
                    }
                    (Err(failed), _) => failed.ask_again(),
                };
                assert_eq!(asked(&check), before, "{brought:?}, attempt {attempt}");
            }
        }
    }
}
