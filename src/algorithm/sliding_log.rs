//! The exact sliding window: when each unit was charged.
//!
//! A unit charged at *t* counts in [*t*, *t* + window). Twin of `lua/sliding_log.lua`, with one
//! difference that cannot be seen: units of one microsecond are one run here and equal entries
//! there.

use std::collections::VecDeque;

use super::{Asked, Charge, Question, saturate};
use crate::decision::{Receipt, Wait};

/// The units that were charged, oldest first.
#[derive(Debug, Default)]
pub(crate) struct SlidingLog {
    runs: VecDeque<Run>,
    /// The units that were charged before the first run.
    gone: u64,
}

/// The units of one microsecond.
#[derive(Clone, Copy, Debug)]
struct Run {
    time: u64,
    /// The units that were charged up to and with this run, ever: what makes the log searchable by
    /// index.
    end: u64,
}

impl SlidingLog {
    pub(super) fn ask(&mut self, question: Question) -> Asked {
        let Question {
            limit,
            window,
            cost,
            now,
            ..
        } = question;
        let renewed = cost > 0 && (self.rewind(now) | self.trim(now, window));
        let skipped = self.units_before(
            self.runs
                .partition_point(|run| expired(run.time, now, window)),
        );
        let used = saturate(self.len() - skipped);

        let returns_in = |index: u32| {
            let time = self.time_of(skipped + u64::from(index)).min(now);
            time + window - now
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
        Asked {
            used,
            wait,
            reset,
            renewed,
            // The units of a log are found by their time.
            receipt: Receipt::default(),
        }
    }

    /// Renews when the log begins.
    pub(super) fn charge(&mut self, question: Question) -> bool {
        let Question { cost, now, .. } = question;
        let begins = self.runs.is_empty();
        let end = self.end() + u64::from(cost);
        match self.runs.back_mut() {
            Some(last) if last.time == now => last.end = end,
            _ => self.runs.push_back(Run { time: now, end }),
        }
        begins
    }

    pub(super) fn refund(&mut self, question: Question, charge: Charge, units: u32) -> bool {
        let Question { window, now, .. } = question;
        let at = self.runs.partition_point(|run| run.time < charge.time);
        let before = self.units_before(at) + self.gone;
        let Some(run) = self.runs.get(at) else {
            return false;
        };
        if run.time != charge.time || expired(run.time, now, window) {
            return false;
        }
        let taken = u64::from(units).min(run.end - before);
        for run in self.runs.range_mut(at..) {
            run.end -= taken;
        }
        if self.runs.get(at).is_some_and(|run| run.end == before) {
            self.runs.remove(at);
        }
        taken > 0 && !self.runs.is_empty()
    }

    /// A clock that stepped back leaves units after now: they are charged now, so that none counts
    /// for longer than a window.
    fn rewind(&mut self, now: u64) -> bool {
        let end = self.end();
        let kept = self.runs.partition_point(|run| run.time <= now);
        if kept == self.runs.len() {
            return false;
        }
        self.runs.truncate(kept);
        match self.runs.back_mut() {
            Some(last) if last.time == now => last.end = end,
            _ => self.runs.push_back(Run { time: now, end }),
        }
        true
    }

    /// Forgets what no longer counts. Renews where something is left: a log that is gone has
    /// nothing to keep.
    fn trim(&mut self, now: u64, window: u64) -> bool {
        let before = self
            .runs
            .partition_point(|run| expired(run.time, now, window));
        self.gone += self.units_before(before);
        self.runs.drain(..before);
        if self.runs.len() < self.runs.capacity() / 4 {
            self.runs.shrink_to(self.runs.len() * 2);
        }
        before > 0 && !self.runs.is_empty()
    }

    fn end(&self) -> u64 {
        self.runs.back().map_or(self.gone, |run| run.end)
    }

    fn len(&self) -> u64 {
        self.end() - self.gone
    }

    fn units_before(&self, run: usize) -> u64 {
        let last = run.checked_sub(1).and_then(|last| self.runs.get(last));
        last.map_or(0, |last| last.end - self.gone)
    }

    /// When the unit at `index` was charged, counted from 0 at the oldest.
    fn time_of(&self, index: u64) -> u64 {
        let run = self
            .runs
            .partition_point(|run| run.end - self.gone <= index);
        self.runs.get(run).map_or(0, |run| run.time)
    }
}

fn expired(time: u64, now: u64, window: u64) -> bool {
    time + window <= now
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

    fn question(limit: u32, cost: u32, now: u64) -> Question {
        Question {
            limit,
            window: WINDOW,
            parts: 1,
            cost,
            now,
        }
    }

    fn check(log: &mut SlidingLog, question: Question) -> Asked {
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
        assert_eq!((log.runs.len(), log.len()), (1, 100_000));
    }
}
