//! The exact sliding window: the time of each charged unit.
//!
//! A unit that is charged at *t* counts in [*t*, *t* + window). The same rule in Redis: `lua/sliding_log.lua`,
//! which stores the units of one microsecond as equal entries, where this file stores one run.
//!
//! A check of one unit only reads the ends of the log. Expired units are skipped, each once unless the clock steps
//! back, and the next charge drops them: a refusal changes nothing. So units that had expired at the newest charge
//! no longer count, wherever the clock steps.

use super::super::arithmetic::saturate;
use super::super::quota_check::{Changes, Charge, QuotaCheck, Verdict};
use super::runs::{Run, Runs};
use crate::decision::{Receipt, Wait};

/// The charged units, oldest first.
#[derive(Clone, Debug, Default)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize, serde::Serialize))]
pub(crate) struct SlidingLog {
    runs: Runs,
}

impl SlidingLog {
    /// Evaluates the check, and charges it if it fits.
    #[inline]
    pub(crate) fn check(&mut self, check: QuotaCheck) -> Verdict {
        let QuotaCheck { limit, cost, .. } = check;
        let changes = self.rewind(check);
        self.skip_expired(check);
        let used = u64::from(self.runs.units()) + u64::from(cost);
        if cost == 0 || used > limit.into() {
            let verdict = self.judge(check);
            return Verdict { changes, ..verdict };
        }
        let changes = self.push(check) | changes;
        Verdict {
            used: saturate(used),
            wait: Wait::Zero,
            // The log is within the limit, so more units are left as soon as the first one returns.
            reset: self.runs.first().map_or(0, |run| returns_in(run, check)),
            changes,
            receipt: Receipt::default(),
        }
    }

    /// Evaluates the check without charging it.
    pub(crate) fn evaluate(&mut self, check: QuotaCheck) -> Verdict {
        let changes = self.rewind(check);
        self.skip_expired(check);
        let verdict = self.judge(check);
        Verdict { changes, ..verdict }
    }

    /// Compares the units that count with the quota.
    fn judge(&self, check: QuotaCheck) -> Verdict {
        let QuotaCheck { limit, cost, .. } = check;
        let used = self.runs.units();

        let returns_in = |index: u32| {
            let time = self.runs.time_of(index);
            returns_in(Run { time, units: 1 }, check)
        };
        let wait = if cost > limit {
            Wait::Never
        } else if u64::from(used) + u64::from(cost) <= u64::from(limit) {
            Wait::Zero
        } else {
            // Enough units must return for the cost to fit, and units return in order.
            Wait::Micros(returns_in(used - (limit - cost) - 1))
        };
        // If the limit was lowered below the used units, the surplus has to return first.
        let surplus = used.saturating_sub(limit);
        let reset = if surplus < used {
            returns_in(surplus)
        } else {
            0
        };
        Verdict {
            used,
            wait,
            reset,
            changes: Changes::NONE,
            // A refund finds the units of a log by their time.
            receipt: Receipt::default(),
        }
    }

    /// Charges the cost.
    pub(crate) fn charge(&mut self, check: QuotaCheck) -> Changes {
        self.skip_expired(check);
        self.push(check)
    }

    /// Charges the cost after expired units were skipped.
    #[inline]
    fn push(&mut self, check: QuotaCheck) -> Changes {
        let begins = self.runs.units() == 0;
        let newest = self.runs.newest().map_or(0, |run| run.time);
        let trims = self
            .runs
            .last_skipped()
            .is_some_and(|run| run.time + check.window > newest);
        self.runs.push(check.now, check.cost, check.limit);
        Changes::CHARGED | Changes::BEGUN.only_if(begins) | Changes::TRIMMED.only_if(trims)
    }

    /// Returns whether no unit is stored, not even an expired one.
    pub(crate) fn is_blank(&self) -> bool {
        self.runs.is_empty()
    }

    pub(crate) fn is_idle(&self, check: QuotaCheck) -> bool {
        self.runs.newest().is_none_or(|run| is_expired(run, check))
    }

    pub(crate) fn refund(&mut self, check: QuotaCheck, charge: Charge, units: u32) -> bool {
        let charged = Run {
            time: charge.time,
            units,
        };
        if is_expired(charged, check) {
            return false;
        }
        // Those that had expired at the newest charge are dropped, since this may be the newest.
        self.skip_expired(QuotaCheck { now: 0, ..check });
        self.runs.take(charge.time, units) > 0 && !self.runs.is_empty()
    }

    /// Drops the oldest units that count, which would return soonest.
    pub(crate) fn credit(&mut self, check: QuotaCheck, units: u32) -> bool {
        self.skip_expired(check);
        if self.runs.units() == 0 || units == 0 {
            return false;
        }
        self.runs.drop_first(units);
        !self.runs.is_empty()
    }

    /// Moves units in the future to now if the check has a cost, so that none counts for longer than one window.
    /// There are such units after the clock has stepped back.
    #[inline]
    fn rewind(&mut self, check: QuotaCheck) -> Changes {
        let QuotaCheck { now, limit, .. } = check;
        if check.cost == 0 || self.runs.newest().is_none_or(|run| run.time <= now) {
            return Changes::NONE;
        }
        self.skip_expired(check);
        let moved = self.runs.drop_after(now);
        self.runs.push(now, moved, limit);
        Changes::REWOUND
    }

    /// Skips the units that have expired, or that had expired at the newest charge.
    #[inline]
    fn skip_expired(&mut self, check: QuotaCheck) {
        let newest = self.runs.newest().map_or(0, |run| run.time);
        let now = check.now.max(newest);
        self.runs.skip_expired(|time| time + check.window <= now);
    }
}

fn is_expired(run: Run, check: QuotaCheck) -> bool {
    run.time + check.window <= check.now
}

/// Returns the time until the units of a run return. A run in the future counts as charged now.
fn returns_in(run: Run, check: QuotaCheck) -> u64 {
    run.time.min(check.now) + check.window - check.now
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const WINDOW: u64 = 1_000;
    const START: u64 = 1_000_000;

    /// The simplest model of the rule: the times of all units that were ever charged.
    #[derive(Default)]
    struct Units(Vec<u64>);

    impl Units {
        fn counting(&self, now: u64) -> u64 {
            let counts = |time: &&u64| **time <= now && now < **time + WINDOW;
            self.0.iter().filter(counts).count() as u64
        }

        fn check(&mut self, limit: u32, cost: u32, now: u64) -> bool {
            let admitted = self.counting(now) + u64::from(cost) <= u64::from(limit);
            if admitted {
                self.0.extend((0..cost).map(|_| now));
            }
            admitted
        }
    }

    fn check_of(limit: u32, cost: u32, now: u64) -> QuotaCheck {
        QuotaCheck {
            limit,
            window: WINDOW,
            parts: 1,
            cost,
            now,
            calendar: None,
        }
    }

    fn check(log: &mut SlidingLog, check: QuotaCheck) -> Verdict {
        let verdict = log.evaluate(check);
        if verdict.wait == Wait::Zero && check.cost > 0 {
            log.charge(check);
        }
        verdict
    }

    proptest! {
        #[test]
        fn the_log_decides_as_the_simple_model_does(
            checks in prop::collection::vec((0..12_u32, 0..8_u32, 0..700_u64), 1..200),
        ) {
            let (mut log, mut units, mut now) = (SlidingLog::default(), Units::default(), START);
            for (limit, cost, step) in checks {
                now += step;
                let used = units.counting(now);
                let verdict = check(&mut log, check_of(limit, cost, now));
                prop_assert_eq!(u64::from(verdict.used), used);
                prop_assert_eq!(verdict.wait == Wait::Zero, units.check(limit, cost, now));
                prop_assert!(verdict.wait != Wait::Never || cost > limit);
            }
        }

        #[test]
        fn reset_is_when_one_more_unit_is_left(
            charges in prop::collection::vec((1..4_u32, 0..400_u64), 1..20),
            limit in 0..30_u32,
        ) {
            let (mut log, mut now) = (SlidingLog::default(), START);
            for (cost, step) in charges {
                now += step;
                check(&mut log, check_of(30, cost, now));
            }
            let mut left = |at: u64| limit.saturating_sub(log.evaluate(check_of(limit, 0, at)).used);
            let (before, reset) = (left(now), log.evaluate(check_of(limit, 0, now)).reset);
            if limit == 0 {
                prop_assert_eq!(reset, 0);
            } else {
                let mut left = |at: u64| limit.saturating_sub(log.evaluate(check_of(limit, 0, at)).used);
                prop_assert_eq!(left(now + reset - 1), before);
                prop_assert!(left(now + reset) > before);
            }
        }

        #[test]
        fn after_a_step_back_no_unit_is_freed_and_none_counts_longer_than_a_window(
            charges in prop::collection::vec((1..4_u32, 0..400_u64), 1..20),
            back in 1..100_000_u64,
            limit in 1..10_u32,
        ) {
            let (mut log, mut now) = (SlidingLog::default(), START);
            for (cost, step) in charges {
                now += step;
                check(&mut log, check_of(limit, cost, now));
            }
            let used = log.evaluate(check_of(limit, 0, now)).used;
            now -= back;
            let after = check(&mut log, check_of(limit, limit, now));
            prop_assert!(after.used >= used);
            prop_assert!(after.used == 0 || matches!(after.wait, Wait::Micros(wait) if wait <= WINDOW));
            let full = log.evaluate(check_of(limit, limit, now + WINDOW));
            prop_assert_eq!(full.wait, Wait::Zero);
        }
    }

    #[test]
    fn a_unit_counts_for_exactly_one_window() {
        let mut log = SlidingLog::default();
        check(&mut log, check_of(1, 1, START));
        assert_eq!(
            log.evaluate(check_of(1, 1, START + WINDOW - 1)).wait,
            Wait::Micros(1)
        );
        assert_eq!(
            log.evaluate(check_of(1, 1, START + WINDOW)).wait,
            Wait::Zero
        );
    }

    #[test]
    fn a_refusal_changes_nothing() {
        let mut log = SlidingLog::default();
        check(&mut log, check_of(3, 2, START));
        let before = format!("{log:?}");
        assert_eq!(
            check(&mut log, check_of(3, 2, START + 1)).wait,
            Wait::Micros(WINDOW - 1)
        );
        assert_eq!(format!("{log:?}"), before);
    }

    #[test]
    fn units_charged_in_the_same_microsecond_are_one_run() {
        let mut log = SlidingLog::default();
        for _ in 0..1_000 {
            check(&mut log, check_of(100_000, 100, START));
        }
        assert_eq!((log.runs.iter().count(), log.runs.units()), (1, 100_000));
    }
}
