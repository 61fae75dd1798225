//! The generic cell rate algorithm (ITU-T I.371) as a leaky bucket: a charge raises the level, which drains
//! evenly at `limit` units per window. A check raises the level to at most the limit.
//!
//! Admits a burst of at most the limit and then the limit per window, so less than twice the limit in any span
//! as long as the window. If callers share a key with different limits, the limit here is the largest one that
//! charged units within the span. Levels are integers in parts of a unit, so there is no drift if the limit
//! does not divide the window. The same rule in Redis: `lua/gcra.lua`.
//!
//! The level drains at the limit of the last charge, for all callers. So callers with different limits agree
//! on the level, a check with a lower limit does not lower it, and no caller waits longer than one window.
//!
//! A charge beyond the limit raises the level up to what drains within [`MAX_WINDOWS`]. It never lowers the rate, so that
//! the waits stay true.
//!
//! Units drain in the order in which they were charged. The *inflow* is the number of units charged so far,
//! and the position of a charge is the inflow at its end. So the difference to the current inflow is the number
//! of units charged later. [`Holes`] lists which of them were refunded, so that a refund of one charge takes no
//! units of another.

use super::super::arithmetic::{saturate, tick, ticks, ticks_up};
use super::super::bytes::{Bytes, impl_bytes};
use super::super::counter_state::CountingRule;
use super::super::quota_check::{Charge, QuotaCheck};
use super::holes::Holes;

/// The most windows within which a level drains. Ten bits more than a product of units and time that is exact, so that all
/// levels in parts of a unit are below 2^63.
const MAX_WINDOWS: u64 = 1_000;

fn max_level(rate: u32) -> u32 {
    saturate(MAX_WINDOWS * u64::from(rate.max(1)))
}

/// The level at a time.
#[derive(Clone, Debug, Default)]
pub(crate) struct Gcra {
    time: u64,
    /// The whole units of the level.
    units: u32,
    /// The units that drain per window: the limit of the last charge, or a higher one while the level is above the limit.
    rate: u32,
    /// The part of one more unit, in units × microseconds. A whole unit is as many as the window has
    /// microseconds.
    part: u64,
    /// The units charged since the level was last 0, or since this number overflowed.
    inflow: u32,
    /// Always false. The compiler stores the discriminant of `CountState` in its unused values, which saves 8 bytes
    /// for each key.
    _niche: bool,
    /// Boxed, because most keys have no refunds.
    holes: Option<Box<Holes>>,
}

impl_bytes!(Gcra {
    time,
    units,
    rate,
    part,
    inflow,
    holes;
    Self::default()
});

/// The scale in which levels are calculated: a unit has `whole` parts, and `rate` parts drain per tick.
#[derive(Clone, Copy)]
struct Scale {
    tick: u64,
    whole: u64,
    rate: u32,
}

impl Scale {
    #[inline]
    fn new(rate: u32, window: u64) -> Self {
        let tick = tick(rate.into(), window);
        let whole = ticks_up(window, tick);
        Self { tick, whole, rate }
    }

    #[inline]
    fn split(self, level: u64) -> (u32, u64) {
        let units = level / self.whole;
        (saturate(units), (level - units * self.whole) * self.tick)
    }
}

impl Gcra {
    /// A counter without charges has no rate.
    #[inline]
    fn scale(&self, check: &QuotaCheck<'_>) -> Scale {
        Scale::new(self.rate.max(1), check.window)
    }

    #[inline]
    fn level(&self, scale: Scale) -> u64 {
        u64::from(self.units) * scale.whole + ticks_up(self.part, scale.tick)
    }

    #[inline]
    fn level_at(&self, check: &QuotaCheck<'_>, scale: Scale) -> u64 {
        let passed = ticks(check.now.saturating_sub(self.time), scale.tick);
        self.level(scale)
            .saturating_sub(passed.saturating_mul(scale.rate.into()))
    }

    fn lower(&mut self, scale: Scale, taken: u64) {
        let level = self.level(scale).saturating_sub(taken);
        (self.units, self.part) = scale.split(level);
    }
}

impl CountingRule for Gcra {
    #[inline]
    fn is_in_future(&self, check: &QuotaCheck<'_>) -> bool {
        self.time > check.now
    }

    /// Leaves out the holes, which do not change with time.
    #[inline]
    fn current(&self, check: &QuotaCheck<'_>) -> Self {
        let scale = self.scale(check);
        let level = self.level(scale);
        let time = self.time.min(check.now);
        let passed = ticks(check.now - time, scale.tick);
        let drained = passed.saturating_mul(scale.rate.into());
        if drained >= level {
            Self {
                time: check.now,
                ..Self::default()
            }
        } else {
            let (units, part) = scale.split(level - drained);
            Self {
                // Not `check.now`: a tick that has begun has not drained yet.
                time: time + passed * scale.tick,
                units,
                rate: self.rate,
                part,
                inflow: self.inflow,
                holes: None,
                _niche: false,
            }
        }
    }

    #[inline]
    fn store(&mut self, current: Self) {
        if current.inflow == 0 {
            self.holes = None;
        }
        self.time = current.time;
        self.units = current.units;
        self.part = current.part;
        self.rate = current.rate;
        self.inflow = current.inflow;
    }

    #[inline]
    fn used(&self, _: &QuotaCheck<'_>) -> u64 {
        u64::from(self.units) + u64::from(self.part > 0)
    }

    #[inline]
    fn time_until(&self, check: &QuotaCheck<'_>, target: u64) -> u64 {
        let scale = self.scale(check);
        let over = self.level(scale).saturating_sub(target * scale.whole);
        let ticks = over.div_ceil(scale.rate.into());
        (ticks * scale.tick).saturating_sub(check.now - self.time)
    }

    fn windows(&self) -> u64 {
        let used = u64::from(self.units) + u64::from(self.part > 0);
        used.div_ceil(self.rate.max(1).into()).max(1)
    }

    #[inline]
    fn charge(&mut self, check: &QuotaCheck<'_>, cost: u64) -> bool {
        let is_beyond = self.used(check) + cost > check.limit.into();
        self.rate = check.limit.max(if is_beyond { self.rate } else { 0 });
        let room = max_level(self.rate).saturating_sub(self.units);
        let cost = saturate(cost).min(room);
        self.units += cost;
        let inflow = self.inflow.checked_add(cost);
        if inflow.is_none() {
            self.holes = None;
        }
        self.inflow = inflow.unwrap_or(cost);
        inflow.is_none()
    }

    #[inline]
    fn position(&self, _: &QuotaCheck<'_>) -> u64 {
        self.inflow.into()
    }

    /// Units drain in the order in which they were charged, so the level minus the units charged later is the
    /// most that can be left of the charge.
    fn refund(&mut self, check: &QuotaCheck<'_>, charge: Charge, units: u64) {
        let scale = self.scale(check);
        let end = charge.receipt.position;
        let inflow = u64::from(self.inflow);
        if end > inflow {
            // The charge belongs to an earlier generation, which began in the same microsecond.
            return;
        }
        let returned = self
            .holes
            .as_deref()
            .map_or(0, |holes| holes.units_after(end));
        let after = (inflow - end).saturating_sub(returned);
        let level = self.level_at(check, scale);
        let left = level.saturating_sub(after.saturating_mul(scale.whole));
        let taken = left.min(units.saturating_mul(scale.whole));
        if taken == 0 {
            return;
        }
        self.lower(scale, taken);
        let taken = taken / scale.whole;
        if taken > 0 {
            let holes = self.holes.get_or_insert_default();
            let start = end.saturating_sub(charge.cost.into());
            holes.add(start, end, taken, charge.is_open);
            holes.drop_drained(inflow, self.units.into());
        }
    }

    /// Removes the oldest units, which would drain next.
    fn credit(&mut self, check: &QuotaCheck<'_>, units: u64) {
        let scale = self.scale(check);
        self.lower(scale, units * scale.whole);
    }

    #[cfg(feature = "redis")]
    fn from_numbers(numbers: &[u64]) -> Option<Self> {
        let &[time, units, part, inflow, rate] = numbers else {
            return None;
        };
        let units = u32::try_from(units).ok()?;
        let rate = u32::try_from(rate).ok()?;
        // No script stores a higher level, and its product with a window may exceed all numbers.
        if units > max_level(rate) {
            return None;
        }
        Some(Self {
            time,
            units,
            rate,
            part,
            inflow: u32::try_from(inflow).ok()?,
            ..Self::default()
        })
    }

    #[cfg(feature = "redis")]
    fn remove_latest(&mut self, units: u64) {
        let units = saturate(units);
        self.units = self.units.saturating_sub(units);
        self.inflow = self.inflow.saturating_sub(units);
    }
}
