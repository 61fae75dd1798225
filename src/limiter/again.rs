//! A check that is asked again, by what an attempt has brought: a decision or a failure.

use std::sync::Arc;

use super::asked_level::{AskedLevel, CheckKind};
use super::checked::{DecidedCheck, FailedCheck};
use super::decision::Decision;
use super::pending_check::PendingCheck;
use super::record::OwnedRecord;

impl DecidedCheck {
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

#[cfg(all(test, feature = "test-util"))]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::error::ErrorKind;
    use crate::limiter::asked_level::AskedLevels;
    use crate::limiter::in_flight::SlotsOfCheck;
    use crate::limiter::limiter::RateLimiter;
    use crate::quota::{Quota, Quotas, Share, ShareId};
    use crate::store::TestStore;

    #[derive(Clone, Copy, Debug)]
    enum Brought {
        Refusal,
        /// An admission, whose units return because a key is held meanwhile.
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
