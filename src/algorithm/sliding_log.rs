//! The exact sliding window: when each unit was charged.
//!
//! A unit charged at *t* counts in [*t*, *t* + window). Twin of `lua/sliding_log.lua`, with one
//! difference that cannot be seen: units of one microsecond are one run here and equal entries
//! there.

use std::collections::VecDeque;

use super::{Asked, Question};
use crate::decision::Wait;

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
            reset_if_charged: if used == 0 { window } else { reset },
            renewed,
        }
    }

    pub(super) fn charge(&mut self, question: Question) {
        let Question { cost, now, .. } = question;
        let end = self.end() + u64::from(cost);
        match self.runs.back_mut() {
            Some(last) if last.time == now => last.end = end,
            _ => self.runs.push_back(Run { time: now, end }),
        }
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
        self.runs.push_back(Run { time: now, end });
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

fn saturate(units: u64) -> u32 {
    u32::try_from(units).unwrap_or(u32::MAX)
}
