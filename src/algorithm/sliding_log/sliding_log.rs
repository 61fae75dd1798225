//! The exact sliding window: when each unit was charged.
//!
//! A unit charged at *t* counts in [*t*, *t* + window). Twin of `lua/sliding_log.lua`, with one
//! difference that cannot be seen: units of one microsecond are one run here and equal entries
//! there.
//!
//! A check of one unit looks at the ends of the log. What has expired is walked over once, by the
//! check that drops it.

use super::super::arithmetic::saturate;
use super::super::quota_check::{Charge, QuotaCheck, Verdict};
use super::runs::{Run, Runs};
use crate::decision::{Receipt, Wait};

/// The units that were charged, oldest first.
#[derive(Debug, Default)]
pub(crate) struct SlidingLog {
    runs: Runs,
}

impl SlidingLog {
    /// Asks, and charges what fits.
    #[inline]
    pub(crate) fn check(&mut self, question: QuotaCheck) -> Verdict {
        let QuotaCheck { limit, cost, .. } = question;
        let renewed = cost > 0 && self.settle(question);
        let used = u64::from(self.runs.units()) + u64::from(cost);
        if cost == 0 || used > limit.into() {
            let asked = self.judge(question);
            return Verdict { renewed, ..asked };
        }
        let renewed = self.charge(question) | renewed;
        Verdict {
            used: saturate(used),
            wait: Wait::Zero,
            // Nothing is over the limit now: the first unit to leave makes room.
            reset: self.runs.first().map_or(0, |run| returns_in(run, question)),
            renewed,
            receipt: Receipt::default(),
        }
    }

    pub(crate) fn ask(&mut self, question: QuotaCheck) -> Verdict {
        let renewed = question.cost > 0 && self.settle(question);
        let asked = self.judge(question);
        Verdict { renewed, ..asked }
    }

    /// Brings the log up to now; whether that renews it.
    #[inline]
    fn settle(&mut self, question: QuotaCheck) -> bool {
        self.rewind(question) | self.trim(question)
    }

    /// What a quota says of the log as it is.
    fn judge(&self, question: QuotaCheck) -> Verdict {
        let QuotaCheck { limit, cost, .. } = question;
        let skipped = if cost > 0 { 0 } else { self.expired(question) };
        let used = self.runs.units() - skipped;

        let returns_in = |index: u32| {
            let time = self.runs.time_of(skipped + index);
            returns_in(Run { time, units: 1 }, question)
        };
        let wait = if cost > limit {
            Wait::Never
        } else if u64::from(used) + u64::from(cost) <= u64::from(limit) {
            Wait::Zero
        } else {
            // That many units must leave, and they leave in order.
            Wait::Micros(returns_in(used - (limit - cost) - 1))
        };
        // Where the limit was lowered below what is used, some leave before one more fits.
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
            renewed: false,
            // The units of a log are found by their time.
            receipt: Receipt::default(),
        }
    }

    /// Renews when the log begins.
    pub(crate) fn charge(&mut self, question: QuotaCheck) -> bool {
        let begins = self.runs.is_empty();
        self.runs.push(question.now, question.cost, question.limit);
        begins
    }

    pub(crate) fn is_idle(&self, question: QuotaCheck) -> bool {
        self.runs.last().is_none_or(|run| expired(run, question))
    }

    pub(crate) fn refund(&mut self, question: QuotaCheck, charge: Charge, units: u32) -> bool {
        let charged = Run {
            time: charge.time,
            units,
        };
        if expired(charged, question) {
            return false;
        }
        self.runs.take(charge.time, units) > 0 && !self.runs.is_empty()
    }

    /// The oldest go: they would be back soon. What has expired goes with them.
    pub(crate) fn credit(&mut self, question: QuotaCheck, units: u32) -> bool {
        let expired = self.expired(question);
        let used = self.runs.units() - expired;
        if used == 0 || units == 0 {
            return false;
        }
        self.runs.drop_first(expired.saturating_add(units));
        !self.runs.is_empty()
    }

    /// A clock that stepped back leaves units after now: they are charged now, so that none counts
    /// for longer than a window.
    #[inline]
    fn rewind(&mut self, question: QuotaCheck) -> bool {
        let QuotaCheck { now, limit, .. } = question;
        if self.runs.last().is_none_or(|run| run.time <= now) {
            return false;
        }
        let moved = self.runs.drop_after(now);
        self.runs.push(now, moved, limit);
        true
    }

    /// Forgets what no longer counts. Renews where something is left: a log that is gone has
    /// nothing to keep.
    #[inline]
    fn trim(&mut self, question: QuotaCheck) -> bool {
        self.runs
            .drop_while(|time| time + question.window <= question.now)
            && !self.runs.is_empty()
    }

    /// How many units do not count any more, and have not been forgotten.
    fn expired(&self, question: QuotaCheck) -> u32 {
        if self.is_idle(question) {
            return self.runs.units();
        }
        let gone = self.runs.iter().take_while(|run| expired(*run, question));
        saturate(gone.map(|run| u64::from(run.units)).sum())
    }
}

fn expired(run: Run, question: QuotaCheck) -> bool {
    run.time + question.window <= question.now
}

/// How long until units return; those of a time after now as if they were charged now.
fn returns_in(run: Run, question: QuotaCheck) -> u64 {
    run.time.min(question.now) + question.window - question.now
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const WINDOW: u64 = 1_000;
    const START: u64 = 1_000_000;

    /// The promise, told as plainly as it can be: the times of all units that were ever charged.
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

    fn question(limit: u32, cost: u32, now: u64) -> QuotaCheck {
        QuotaCheck {
            limit,
            window: WINDOW,
            parts: 1,
            cost,
            now,
        }
    }

    fn check(log: &mut SlidingLog, question: QuotaCheck) -> Verdict {
        let asked = log.ask(question);
        if asked.wait == Wait::Zero && question.cost > 0 {
            log.charge(question);
        }
        asked
    }

    proptest! {
        #[test]
        fn the_log_counts_as_the_plain_list_of_units_does(
            checks in prop::collection::vec((0..12_u32, 0..8_u32, 0..700_u64), 1..200),
        ) {
            let (mut log, mut units, mut now) = (SlidingLog::default(), Units::default(), START);
            for (limit, cost, step) in checks {
                now += step;
                let used = units.counting(now);
                let asked = check(&mut log, question(limit, cost, now));
                prop_assert_eq!(u64::from(asked.used), used);
                prop_assert_eq!(asked.wait == Wait::Zero, units.check(limit, cost, now));
                prop_assert!(asked.wait != Wait::Never || cost > limit);
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
                check(&mut log, question(30, cost, now));
            }
            let mut left = |at: u64| limit.saturating_sub(log.ask(question(limit, 0, at)).used);
            let (before, reset) = (left(now), log.ask(question(limit, 0, now)).reset);
            if limit == 0 {
                prop_assert_eq!(reset, 0);
            } else {
                let mut left = |at: u64| limit.saturating_sub(log.ask(question(limit, 0, at)).used);
                prop_assert_eq!(left(now + reset - 1), before);
                prop_assert!(left(now + reset) > before);
            }
        }

        #[test]
        fn a_clock_that_steps_back_locks_nobody_out_and_frees_nobody(
            charges in prop::collection::vec((1..4_u32, 0..400_u64), 1..20),
            back in 1..100_000_u64,
            limit in 1..10_u32,
        ) {
            let (mut log, mut now) = (SlidingLog::default(), START);
            for (cost, step) in charges {
                now += step;
                check(&mut log, question(limit, cost, now));
            }
            let used = log.ask(question(limit, 0, now)).used;
            now -= back;
            let after = check(&mut log, question(limit, limit, now));
            prop_assert!(after.used >= used);
            prop_assert!(after.used == 0 || matches!(after.wait, Wait::Micros(wait) if wait <= WINDOW));
            let full = log.ask(question(limit, limit, now + WINDOW));
            prop_assert_eq!(full.wait, Wait::Zero);
        }
    }

    #[test]
    fn a_unit_counts_up_to_one_window_and_no_longer() {
        let mut log = SlidingLog::default();
        check(&mut log, question(1, 1, START));
        assert_eq!(
            log.ask(question(1, 1, START + WINDOW - 1)).wait,
            Wait::Micros(1)
        );
        assert_eq!(log.ask(question(1, 1, START + WINDOW)).wait, Wait::Zero);
    }

    #[test]
    fn a_refusal_changes_nothing() {
        let mut log = SlidingLog::default();
        check(&mut log, question(3, 2, START));
        let before = format!("{log:?}");
        assert_eq!(
            check(&mut log, question(3, 2, START + 1)).wait,
            Wait::Micros(WINDOW - 1)
        );
        assert_eq!(format!("{log:?}"), before);
    }

    #[test]
    fn units_of_one_microsecond_are_one_run() {
        let mut log = SlidingLog::default();
        for _ in 0..1_000 {
            check(&mut log, question(100_000, 100, START));
        }
        assert_eq!((log.runs.iter().count(), log.runs.units()), (1, 100_000));
    }
}
