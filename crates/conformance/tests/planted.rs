//! The kit finds planted faults.

use std::collections::HashMap;
use std::sync::Mutex;

use tollgate::store::protocol::{
    Adjust, Answer, Block, BlockList, Change, Check, Counters, QuotaAnswer, StoreFuture, StoreId,
    StoreParts, Subject,
};
use tollgate::store::{Source, Store, TestClock};
use tollgate::{Algorithm, Key, Quota, Quotas};
use tollgate_conformance::{Conformance, RuleOutcome};

/// A flaw of a store.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Flaw {
    /// Admits a unit more than the limit.
    Generous,
    /// Refuses a cost of 0 above a limit.
    WantsRoomForNothing,
    /// Admits a cost of 0 whatever the limit is.
    AdmitsNothing,
    /// Refunds twice as many units.
    RefundsTwice,
    /// Charges only what a limit has room for.
    StopsAtLimit,
    /// Decides several checks one by one, and leaves those charged that were admitted.
    OneByOne,
    /// Reads counts, and writes them back while others may have changed them.
    Racy,
    /// Has a new identity each time.
    NoIdentity,
    /// Lets an automatic block replace that of an operator.
    Overwrites,
    /// Lets everybody use what is reserved for a share.
    KnowsNoShares,
    /// Takes each request for one without a share.
    ForgetsWhoAsks,
    /// Admits checks that want slots, and keeps no holders.
    KeepsNoHolders,
    /// Does not know refunds, holders of slots, nor checks that are decided together.
    Plain,
}

struct Flawed {
    id: StoreId,
    flaw: Flaw,
    clock: TestClock,
    counts: Mutex<HashMap<(Key, Key), Counters>>,
    block_list: BlockList,
}

impl Flawed {
    fn decide(&self, check: Check<'_>) -> Answer {
        let name = (check.limiter.clone(), check.key.clone());
        let quotas: Quotas = match self.flaw {
            Flaw::Generous | Flaw::KnowsNoShares => {
                let more = |quota: &Quota| {
                    let limit = quota.limit() + u32::from(self.flaw == Flaw::Generous);
                    match quota.algorithm() {
                        Algorithm::InFlight => Quota::in_flight(limit),
                        algorithm => Quota::new(limit, quota.window()).with_algorithm(algorithm),
                    }
                };
                check.quotas.iter().map(more).collect()
            }
            _ => check.quotas.clone(),
        };
        let mut subject = Subject::new(check.limiter, check.key, &quotas);
        if let Some(share) = check.share().filter(|_| self.flaw != Flaw::ForgetsWhoAsks) {
            subject = subject.in_share(share);
        }
        let check = subject.with_lease(check.lease()).check(check.cost);
        if self.flaw == Flaw::Racy {
            let mut counters = self
                .counts
                .lock()
                .unwrap()
                .get(&name)
                .cloned()
                .unwrap_or_default();
            std::thread::yield_now();
            let answer = counters.check(check, Source::Other, self.clock.now_micros());
            self.counts.lock().unwrap().insert(name, counters);
            return answer;
        }
        let mut counts = self.counts.lock().unwrap();
        let counters = counts.entry(name).or_default();
        // Under the lock, so that times are in the order of the charges.
        let answer = counters.check(check, Source::Other, self.clock.now_micros());
        self.answer_to_nothing(check, &answer).unwrap_or(answer)
    }

    /// Returns the wrong answer of a store that does not know what a cost of 0 means.
    fn answer_to_nothing(&self, check: Check<'_>, answer: &Answer) -> Option<Answer> {
        let is_flawed = matches!(self.flaw, Flaw::WantsRoomForNothing | Flaw::AdmitsNothing);
        let answers = check
            .quotas
            .iter()
            .zip(answer.quotas())
            .map(|(quota, own)| {
                let (used, reset) = (own.used(), own.reset_after());
                match self.flaw {
                    Flaw::WantsRoomForNothing if used > quota.limit() => {
                        QuotaAnswer::refused(used, Some(reset), reset)
                    }
                    Flaw::AdmitsNothing => QuotaAnswer::admitted(used, reset),
                    _ => *own,
                }
            });
        (is_flawed && check.cost == 0).then(|| Answer::new(Source::Other, answers))
    }
}

impl Store for Flawed {
    fn id(&self) -> StoreId {
        if self.flaw == Flaw::NoIdentity {
            return StoreId::unique();
        }
        self.id
    }

    fn check(&self, checks: &[Check<'_>]) -> StoreFuture {
        if checks.len() > 1 && self.flaw != Flaw::OneByOne {
            let error = tollgate::Error::new(tollgate::ErrorKind::Unsupported, "one at a time");
            return StoreFuture::ready(Err(error));
        }
        if checks.iter().any(|check| check.holding.is_some()) && self.flaw == Flaw::Plain {
            let error = tollgate::Error::new(tollgate::ErrorKind::Unsupported, "no holders");
            return StoreFuture::ready(Err(error));
        }
        StoreFuture::ready(Ok(checks.iter().map(|check| self.decide(*check)).collect()))
    }

    fn block(&self, block: Block<'_>) -> StoreFuture<bool> {
        if self.flaw != Flaw::Overwrites {
            let error = tollgate::Error::new(tollgate::ErrorKind::Unsupported, "no blocks");
            return StoreFuture::ready(Err(error));
        }
        let by_operator = Block::new(block.limiter, block.key, block.duration);
        StoreFuture::ready(self.block_list.put(by_operator))
    }

    fn parts(&self) -> StoreParts {
        let mut parts = StoreParts::default();
        parts.block_list = self.block_list.clone();
        parts
    }

    fn adjust(&self, adjust: Adjust<'_>) -> StoreFuture<()> {
        let is_known = match adjust.change {
            Change::Refund { .. } => self.flaw != Flaw::Plain,
            Change::Charge { .. } => self.flaw == Flaw::StopsAtLimit,
            _ => false,
        };
        if !is_known {
            let error = tollgate::Error::new(tollgate::ErrorKind::Unsupported, "no refunds");
            return StoreFuture::ready(Err(error));
        }
        if let Change::Charge { units } = adjust.change {
            let _ = self.decide(adjust.subject.check(units));
            return StoreFuture::ready(Ok(()));
        }
        let name = (adjust.limiter.clone(), adjust.key.clone());
        let mut counts = self.counts.lock().unwrap();
        let counters = counts.entry(name).or_default();
        for _ in 0..1 + u32::from(self.flaw == Flaw::RefundsTwice) {
            counters.adjust(adjust, self.clock.now_micros());
        }
        StoreFuture::ready(Ok(()))
    }
}

/// The names of the rules that a store with a flaw breaks, and of those that it does not support.
async fn broken_and_unsupported(flaw: Flaw) -> (Vec<String>, Vec<String>) {
    let clock = TestClock::new();
    let store = Flawed {
        id: StoreId::unique(),
        flaw,
        clock: clock.clone(),
        counts: Mutex::default(),
        block_list: BlockList::new(),
    };
    let kit = Conformance::new(store).clock(move |step| clock.advance(step));
    let report = kit.run().await;
    let rules = |is: fn(&RuleOutcome) -> bool| {
        let rules = report.outcomes().filter(|(_, outcome)| is(outcome));
        rules.map(|(rule, _)| rule.to_owned()).collect()
    };
    (
        rules(|outcome| matches!(outcome, RuleOutcome::Failed(_))),
        rules(|outcome| matches!(outcome, RuleOutcome::Unsupported(_))),
    )
}

#[tokio::test]
async fn the_kit_finds_the_flaws_of_a_store() {
    let found = [
        (
            Flaw::Generous,
            "the limit is admitted, and a refusal costs nothing",
        ),
        (
            Flaw::Generous,
            "no span holds more than the algorithm promises",
        ),
        (
            Flaw::WantsRoomForNothing,
            "a check of cost 0 charges nothing, and every limit but 0 admits it",
        ),
        (
            Flaw::AdmitsNothing,
            "a check of cost 0 charges nothing, and every limit but 0 admits it",
        ),
        (Flaw::RefundsTwice, "a refund returns its units"),
        (
            Flaw::RefundsTwice,
            "a refund in parts returns no more than was charged",
        ),
        (
            Flaw::RefundsTwice,
            "a refund returns its units to their share",
        ),
        (
            Flaw::StopsAtLimit,
            "a charge counts in full beyond the limit, and its wait is the shortest",
        ),
        (
            Flaw::KnowsNoShares,
            "shares keep their reserves and their bounds, and together the limit",
        ),
        (
            Flaw::ForgetsWhoAsks,
            "shares keep their reserves and their bounds, and together the limit",
        ),
        (Flaw::OneByOne, "several checks are all charged or none"),
        (
            Flaw::OneByOne,
            "checks of several keys are all or nothing under threads",
        ),
        (
            Flaw::Racy,
            "threads are admitted the limit, and refunds lose nothing",
        ),
        (Flaw::NoIdentity, "a store has one identity"),
        (
            Flaw::Overwrites,
            "an automatic block takes effect only on a key that is not blocked",
        ),
        (
            Flaw::KeepsNoHolders,
            "slots in flight are absolute counts of holders",
        ),
    ];
    for (flaw, rule) in found {
        let (broken, _) = broken_and_unsupported(flaw).await;
        assert!(
            broken.iter().any(|broken| broken.starts_with(rule)),
            "{flaw:?} is not found by {rule:?}, but by {broken:?}"
        );
    }
}

#[tokio::test]
async fn what_a_store_does_not_support_is_told_apart_from_what_it_breaks() {
    let (broken, unsupported) = broken_and_unsupported(Flaw::Plain).await;
    assert_eq!(broken, [""; 0]);
    let about = |words: &str| unsupported.iter().any(|rule| rule.contains(words));
    assert!(about("refund") && about("reset") && about("credit") && about("blocked"));
    assert!(about("automatic block") && about("in flight") && about("beyond the limit"));
    assert!(about("several checks") && !about("the limit is admitted"));
}
