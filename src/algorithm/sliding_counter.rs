//! The estimated sliding window: the count of the current aligned window, and a part of the count of the
//! previous one. The part is the share of the previous window that the sliding window still overlaps, rounded
//! up.
//!
//! Admits about the limit for steady traffic, and less than twice the limit at worst. The same rule in Redis:
//! `lua/sliding_counter.lua`.

use super::arithmetic::{aligned, tick, ticks, ticks_up};
use super::bytes::{Bytes, impl_bytes};
use super::counter_state::CountingRule;
use super::quota_check::{Charge, QuotaCheck};

/// The counts of two aligned windows.
#[derive(Clone, Debug, Default)]
pub(crate) struct SlidingCounter {
    window: u64,
    previous: u64,
    current: u64,
}

impl_bytes!(SlidingCounter {
    window,
    previous,
    current
});

impl SlidingCounter {
    fn tick(&self, check: &QuotaCheck<'_>) -> u64 {
        let units = self.previous.max(self.current).max(check.limit.into());
        tick(units, check.window)
    }

    /// Returns the longest overlap at which the previous window counts for at most `target` units.
    fn overlap_for(&self, check: &QuotaCheck<'_>, target: u64) -> u64 {
        if target >= self.previous {
            return check.window;
        }
        let tick = self.tick(check);
        target * ticks(check.window, tick) / self.previous * tick
    }

    /// Returns the most units that the previous window may have to count for at most `target` units now.
    fn previous_for(&self, check: &QuotaCheck<'_>, target: u64) -> u64 {
        let overlap = aligned(check.now, check.window).left;
        let tick = self.tick(check);
        let units = target * ticks(check.window, tick) / ticks_up(overlap, tick);
        units.max(target).min(self.previous)
    }

    fn next(&self) -> Self {
        Self {
            window: self.window + 1,
            previous: self.current,
            current: 0,
        }
    }
}

impl CountingRule for SlidingCounter {
    #[inline]
    fn is_in_future(&self, check: &QuotaCheck<'_>) -> bool {
        self.window > aligned(check.now, check.window).index
    }

    #[inline]
    fn current(&self, check: &QuotaCheck<'_>) -> Self {
        let mut counter = Self {
            window: aligned(check.now, check.window).index,
            previous: 0,
            current: 0,
        };
        match counter.window.checked_sub(self.window) {
            // After the clock has stepped back, both windows overlap the sliding window in full.
            None => counter.current = (self.previous + self.current).min(u32::MAX.into()),
            Some(0) => {
                counter.previous = self.previous;
                counter.current = self.current;
            }
            Some(1) => counter.previous = self.current,
            Some(_) => {}
        }
        counter
    }

    #[inline]
    fn used(&self, check: &QuotaCheck<'_>) -> u64 {
        if self.previous == 0 {
            return self.current;
        }
        let overlap = aligned(check.now, check.window).left;
        let tick = self.tick(check);
        let part = self.previous * ticks_up(overlap, tick);
        let part = part.div_ceil(ticks(check.window, tick));
        self.current + part.min(self.previous)
    }

    #[inline]
    fn time_until(&self, check: &QuotaCheck<'_>, target: u64) -> u64 {
        let overlap = aligned(check.now, check.window).left;
        if let Some(left) = target.checked_sub(self.current) {
            // The sliding window has to move out of the previous one, at least in part.
            overlap - self.overlap_for(check, left).min(overlap)
        } else {
            // The current window has to become the previous one first, and then leave the sliding window.
            overlap + check.window - self.next().overlap_for(check, target)
        }
    }

    #[inline]
    fn charge(&mut self, _: &QuotaCheck<'_>, cost: u64) -> bool {
        self.current = (self.current + cost).min(u32::MAX.into());
        false
    }

    #[inline]
    fn position(&self, _: &QuotaCheck<'_>) -> u64 {
        self.window
    }

    fn refund(&mut self, _: &QuotaCheck<'_>, charge: Charge, units: u64) {
        let count = match self.window.checked_sub(charge.receipt.position) {
            Some(0) => &mut self.current,
            Some(1) => &mut self.previous,
            _ => return,
        };
        *count = count.saturating_sub(units);
    }

    /// Removes the units of the current window first, which would count longest, and then as few of the
    /// previous window as needed. With each of these, the part that counts falls by one or not at all.
    ///
    /// The part may fall by more if the limit was lowered below the units that count: the remaining units are
    /// then counted in a finer tick.
    fn credit(&mut self, check: &QuotaCheck<'_>, units: u64) {
        if self.is_in_future(check) {
            let current = self.current.min(units);
            self.current -= current;
            self.previous = self.previous.saturating_sub(units - current);
            return;
        }
        let now = self.current(check);
        if units <= now.current {
            self.current -= units;
            return;
        }
        let left = now.used(check).saturating_sub(units);
        let previous = now.previous_for(check, left);
        if self.window < now.window {
            // The stored current window has become the previous one.
            self.current = previous;
        } else {
            self.previous = previous;
            self.current = 0;
        }
    }

    #[cfg(feature = "redis")]
    fn from_numbers(numbers: &[u64]) -> Option<Self> {
        let &[window, previous, current] = numbers else {
            return None;
        };
        Some(Self {
            window,
            previous,
            current,
        })
    }

    #[cfg(feature = "redis")]
    fn remove_latest(&mut self, units: u64) {
        self.current = self.current.saturating_sub(units);
    }
}
