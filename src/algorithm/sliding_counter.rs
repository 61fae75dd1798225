//! The estimated sliding window: the count of this aligned window, and that of the one before by the
//! part of it that a window back from now still overlaps.
//!
//! About the limit for steady traffic; below twice the limit at worst. The part of the previous
//! count is rounded up. Twin of `lua/sliding_counter.lua`.

use std::borrow::Cow;

use super::arithmetic::{aligned, tick, ticks, ticks_up};
use super::counter_state::CountingRule;
use super::quota_check::{Charge, QuotaCheck};

/// The counts of two windows.
#[derive(Clone, Debug, Default)]
pub(crate) struct SlidingCounter {
    window: u64,
    previous: u64,
    current: u64,
}

impl SlidingCounter {
    fn tick(&self, question: &QuotaCheck) -> u64 {
        let most = self.previous.max(self.current).max(question.limit.into());
        tick(most, question.window)
    }

    /// The longest overlap at which the window before counts as at most `target`.
    fn overlap_for(&self, question: &QuotaCheck, target: u64) -> u64 {
        if target >= self.previous {
            return question.window;
        }
        let tick = self.tick(question);
        target * ticks(question.window, tick) / self.previous * tick
    }

    /// The most units of the window before that count as at most `target` now.
    fn previous_for(&self, question: &QuotaCheck, target: u64) -> u64 {
        let (_, overlap) = aligned(question.now, question.window);
        let tick = self.tick(question);
        let most = target * ticks(question.window, tick) / ticks_up(overlap, tick);
        most.max(target).min(self.previous)
    }

    /// As it will be in the next window, if nothing is charged until then.
    fn next(&self) -> Self {
        Self {
            window: self.window + 1,
            previous: self.current,
            current: 0,
        }
    }
}

impl CountingRule for SlidingCounter {
    fn is_after(&self, question: &QuotaCheck) -> bool {
        self.window > aligned(question.now, question.window).0
    }

    fn at(&self, question: &QuotaCheck) -> Cow<'_, Self> {
        let (window, _) = aligned(question.now, question.window);
        let (previous, current) = match window.saturating_sub(self.window) {
            0 => (self.previous, self.current),
            1 => (self.current, 0),
            _ => (0, 0),
        };
        Cow::Owned(Self {
            window,
            previous,
            current,
        })
    }

    fn used(&self, question: &QuotaCheck) -> u64 {
        if self.previous == 0 {
            return self.current;
        }
        let (_, overlap) = aligned(question.now, question.window);
        let tick = self.tick(question);
        let part = self.previous * ticks_up(overlap, tick);
        let part = part.div_ceil(ticks(question.window, tick));
        self.current + part.min(self.previous)
    }

    fn until(&self, question: &QuotaCheck, target: u64) -> u64 {
        let (_, overlap) = aligned(question.now, question.window);
        if let Some(left) = target.checked_sub(self.current) {
            // The window before has to slide on.
            overlap - self.overlap_for(question, left).min(overlap)
        } else {
            // What counts in full has to become the window before, and then slide on.
            overlap + question.window - self.next().overlap_for(question, target)
        }
    }

    fn add(&mut self, _: &QuotaCheck, cost: u64) -> bool {
        self.current += cost;
        false
    }

    fn mark(&self, _: &QuotaCheck) -> u64 {
        self.window
    }

    fn take(&mut self, _: &QuotaCheck, charge: Charge, units: u64) -> bool {
        let count = match self.window.checked_sub(charge.receipt.position) {
            Some(0) => &mut self.current,
            Some(1) => &mut self.previous,
            _ => return false,
        };
        *count = count.saturating_sub(units);
        true
    }

    /// Of this window first, whose units would count longest. Then of the one before as few as it takes:
    /// with each, the part of them that counts falls by one or not at all. Only where more counts than a
    /// limit that was lowered since may it fall by more: what is left is counted in a finer tick.
    fn credit(&mut self, question: &QuotaCheck, units: u64) {
        let now = self.at(question).into_owned();
        if units <= now.current {
            self.current -= units;
            return;
        }
        let left = now.used(question).saturating_sub(units);
        let previous = now.previous_for(question, left);
        if self.window < now.window {
            // What is stored as this window is by now the one before.
            self.current = previous;
        } else {
            (self.previous, self.current) = (previous, 0);
        }
    }
}
