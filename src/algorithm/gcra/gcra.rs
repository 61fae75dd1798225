//! The generic cell rate algorithm, as a meter: units flow in when they are charged and drain evenly,
//! a limit of them in a window. Up to the limit may stand in the meter at once.
//!
//! The limit per window after a burst of at most the limit, so below twice the limit in any span as
//! long as the window. Where the limits of one key differ between callers, that is the largest limit
//! that charged within the span. Counts in whole parts of a unit, so that nothing drifts where the
//! limit does not divide the window. Twin of `lua/gcra.lua`.
//!
//! The meter keeps its level when a lower limit asks. While the level is above the limit of the caller, it
//! drains by the limit of the last charge, so no caller waits longer than a window.
//!
//! Units leave in the order in which they came. A charge is found again by its position: how many
//! units had flowed in after it. Of those that flowed in later, the ones that were given back are
//! listed as [`Holes`], so that a refund of one charge takes nothing from another.

use std::borrow::Cow;

use super::super::arithmetic::saturate;
use super::holes::Holes;
use crate::algorithm::arithmetic::{tick, ticks, ticks_up};
use crate::algorithm::counter_state::CountingRule;
use crate::algorithm::{Charge, QuotaCheck};

/// The level of a meter at a time.
#[derive(Clone, Debug, Default)]
pub(crate) struct Gcra {
    time: u64,
    /// Whole units that stood in the meter.
    units: u32,
    /// How many units drain in a window, as the last charge had it: its limit. Of a level that was brought
    /// up to a question, as the question has it.
    rate: u32,
    /// The part of one more unit, in units × microseconds: a whole unit is a window of them.
    part: u64,
    /// How many units have flowed in since the meter was empty or this was full.
    poured: u32,
    /// Always false. Its spare values hold the discriminant of `State`, which would take 8 bytes more of
    /// every key.
    _room: bool,
    /// Boxed, since most meters never have one.
    holes: Option<Box<Holes>>,
}

/// In which parts of a unit the meter is read: a unit is `whole` of them, and `rate` of them drain
/// each tick.
#[derive(Clone, Copy)]
struct Scale {
    tick: u64,
    whole: u64,
    rate: u32,
}

impl Scale {
    #[inline(always)]
    fn new(rate: u32, window: u64) -> Self {
        let tick = tick(rate.into(), window);
        let whole = ticks_up(window, tick);
        Self { tick, whole, rate }
    }

    /// A level as whole units, and what is left of one more.
    #[inline(always)]
    fn split(self, level: u64) -> (u32, u64) {
        let units = level / self.whole;
        (saturate(units), (level - units * self.whole) * self.tick)
    }
}

impl Gcra {
    /// The scale of a meter as it is stored. It drains under a limit of 0 too.
    #[inline(always)]
    fn scale(&self, question: &QuotaCheck) -> Scale {
        let rate = if self.units > question.limit {
            self.rate
        } else {
            question.limit
        };
        Scale::new(rate.max(1), question.window)
    }

    #[inline(always)]
    fn level(&self, scale: Scale) -> u64 {
        u64::from(self.units) * scale.whole + ticks_up(self.part, scale.tick)
    }

    /// Returns the level that is left at the time of a question.
    #[inline(always)]
    fn level_at(&self, question: &QuotaCheck, scale: Scale) -> u64 {
        let passed = ticks(question.now.saturating_sub(self.time), scale.tick);
        self.level(scale)
            .saturating_sub(passed.saturating_mul(scale.rate.into()))
    }

    /// Lowers the level as it is stored.
    fn lower(&mut self, scale: Scale, taken: u64) {
        let level = self.level(scale).saturating_sub(taken);
        (self.units, self.part) = scale.split(level);
    }
}

impl CountingRule for Gcra {
    fn is_after(&self, question: &QuotaCheck) -> bool {
        self.time > question.now
    }

    /// Without the holes, which time does not change.
    #[inline(always)]
    fn at(&self, question: &QuotaCheck) -> Cow<'_, Self> {
        let scale = self.scale(question);
        let level = self.level(scale);
        let time = self.time.min(question.now);
        let passed = ticks(question.now - time, scale.tick);
        let drained = passed.saturating_mul(scale.rate.into());
        Cow::Owned(if drained >= level {
            Self {
                time: question.now,
                rate: question.limit,
                ..Self::default()
            }
        } else {
            let (units, part) = scale.split(level - drained);
            Self {
                // Not now: the rest of a tick goes on counting.
                time: time + passed * scale.tick,
                units,
                rate: scale.rate,
                part,
                poured: self.poured,
                holes: None,
                _room: false,
            }
        })
    }

    #[inline(always)]
    fn become_now(&mut self, now: Self) {
        if now.poured == 0 {
            self.holes = None;
        }
        (self.time, self.units, self.part) = (now.time, now.units, now.part);
        (self.rate, self.poured) = (now.rate, now.poured);
    }

    fn used(&self, _: &QuotaCheck) -> u64 {
        u64::from(self.units) + u64::from(self.part > 0)
    }

    #[inline(always)]
    fn until(&self, question: &QuotaCheck, target: u64) -> u64 {
        let scale = Scale::new(self.rate, question.window);
        let over = self.level(scale).saturating_sub(target * scale.whole);
        let ticks = over.div_ceil(scale.rate.into());
        (ticks * scale.tick).saturating_sub(question.now - self.time)
    }

    fn is_idle(&self, question: &QuotaCheck) -> bool {
        let limit = self.rate;
        let question = QuotaCheck { limit, ..*question };
        self.at(&question).used(&question) == 0
    }

    #[inline(always)]
    fn add(&mut self, question: &QuotaCheck, cost: u64) -> bool {
        let cost = saturate(cost);
        self.units = self.units.saturating_add(cost);
        self.rate = question.limit;
        let poured = self.poured.checked_add(cost);
        if poured.is_none() {
            self.holes = None;
        }
        self.poured = poured.unwrap_or(cost);
        poured.is_none()
    }

    /// The position of the end of the charge.
    fn mark(&self, _: &QuotaCheck) -> u64 {
        self.poured.into()
    }

    /// Units drain in the order in which they flowed in. So the level minus all that flowed in after a charge
    /// is the most that can be left of it.
    fn take(&mut self, question: &QuotaCheck, charge: Charge, units: u64) -> bool {
        let scale = self.scale(question);
        let (end, poured) = (charge.receipt.position, u64::from(self.poured));
        if end > poured {
            // It flowed into another meter, which began in the same microsecond.
            return false;
        }
        let given_back = self.holes.as_deref().map_or(0, |holes| holes.after(end));
        let after = (poured - end).saturating_sub(given_back);
        let level = self.level_at(question, scale);
        let left = level.saturating_sub(after * scale.whole);
        let taken = left.min(units * scale.whole);
        if taken == 0 {
            return false;
        }
        self.lower(scale, taken);
        let taken = taken / scale.whole;
        if taken > 0 {
            let holes = self.holes.get_or_insert_default();
            let start = end.saturating_sub(charge.cost.into());
            holes.add(start, end, taken, charge.is_open);
            holes.forget_drained(poured, self.units.into());
        }
        true
    }

    /// The oldest units go, which would drain next.
    fn credit(&mut self, question: &QuotaCheck, units: u64) {
        let scale = self.scale(question);
        let left = u64::from(self.units).saturating_sub(units);
        if self.units > question.limit && left <= question.limit.into() {
            // From here on it drains slower for this limit. What has drained until now stays so.
            let rate = self.rate;
            self.settle(question);
            (self.time, self.rate) = (question.now, rate);
        }
        self.lower(scale, units * scale.whole);
    }
}
