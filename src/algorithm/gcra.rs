//! The generic cell rate algorithm, as a meter that drains: units flow out evenly, a limit of them
//! in a window, and up to the limit may stand in it at once.
//!
//! The limit per window after a burst of at most the limit, so below twice the limit in any span as
//! long as the window. Counts in whole parts of a unit, so that nothing drifts where the limit does
//! not divide the window. Twin of `lua/gcra.lua`.

use std::borrow::Cow;

use super::arithmetic::{tick, ticks, ticks_up};
use super::tally::Tally;
use super::{Charge, Question, saturate};

/// How full the meter was at a time.
#[derive(Clone, Debug, Default)]
pub(crate) struct Gcra {
    time: u64,
    /// Whole units: no more than a limit.
    units: u32,
    /// What is left of one more, in units × microseconds: a whole unit is a window of them.
    part: u64,
    /// The units that were given back since it was empty or its limit changed, parts as whole ones.
    back: u64,
    /// The limit by which it was charged last: how fast it drains.
    limit: u32,
}

/// In which parts of a unit the meter is read: a unit is `whole` of them, and a limit of them flows
/// out each tick.
#[derive(Clone, Copy)]
struct Scale {
    tick: u64,
    whole: u64,
}

impl Scale {
    #[inline(always)]
    fn of(question: &Question) -> Self {
        let tick = tick(question.limit.into(), question.window);
        let whole = ticks_up(question.window, tick);
        Self { tick, whole }
    }

    /// A level as whole units, and what is left of one more.
    #[inline(always)]
    fn split(self, level: u64) -> (u32, u64) {
        let units = level / self.whole;
        (saturate(units), (level - units * self.whole) * self.tick)
    }
}

impl Gcra {
    /// What stands in the meter: no more than the limit, so that none waits longer than a window
    /// where the limit was lowered.
    #[inline(always)]
    fn level(&self, question: &Question, scale: Scale) -> u64 {
        let most = u64::from(question.limit) * scale.whole;
        if self.units >= question.limit {
            return most;
        }
        most.min(u64::from(self.units) * scale.whole + ticks_up(self.part, scale.tick))
    }

    /// Lowers the level as it is stored, by what is given back.
    fn lower(&mut self, question: &Question, scale: Scale, taken: u64) {
        let level = self.level(question, scale).saturating_sub(taken);
        (self.units, self.part) = scale.split(level);
        self.back += taken.div_ceil(scale.whole);
    }
}

impl Tally for Gcra {
    fn is_after(&self, question: &Question) -> bool {
        self.time > question.now
    }

    #[inline(always)]
    fn at(&self, question: &Question) -> Cow<'_, Self> {
        let scale = Scale::of(question);
        let level = self.level(question, scale);
        let time = self.time.min(question.now);
        let passed = ticks(question.now - time, scale.tick);
        let drained = passed.saturating_mul(question.limit.into());
        Cow::Owned(if drained >= level {
            Self {
                time: question.now,
                ..Self::default()
            }
        } else {
            let (units, part) = scale.split(level - drained);
            Self {
                // Not now: the rest of a tick goes on counting.
                time: time + passed * scale.tick,
                units,
                part,
                ..*self
            }
        })
    }

    fn used(&self, _: &Question) -> u64 {
        u64::from(self.units) + u64::from(self.part > 0)
    }

    #[inline(always)]
    fn until(&self, question: &Question, target: u64) -> u64 {
        let scale = Scale::of(question);
        let over = self.level(question, scale) - target * scale.whole;
        let ticks = over.div_ceil(question.limit.into());
        ticks * scale.tick - (question.now - self.time)
    }

    fn is_idle(&self, question: &Question) -> bool {
        let limit = self.limit;
        let question = Question { limit, ..*question };
        self.at(&question).used(&question) == 0
    }

    fn add(&mut self, question: &Question, cost: u64) {
        if !self.is_of(question) {
            self.limit = question.limit;
            self.back = 0;
        }
        self.units = self.units.saturating_add(saturate(cost));
    }

    fn mark(&self, _: &Question) -> u64 {
        self.part
    }

    fn back(&self) -> u64 {
        self.back
    }

    fn is_of(&self, question: &Question) -> bool {
        self.limit == question.limit
    }

    /// What stood in the meter before a charge drains before it. So of a charge is left at most what
    /// of all that stood there has neither drained nor been given back since, whoever gave it.
    fn take(&mut self, question: &Question, charge: Charge, units: u64) -> bool {
        let scale = Scale::of(question);
        let part = charge.receipt.mark;
        let then = Self {
            units: charge.used.saturating_sub(u32::from(part > 0)),
            part,
            ..Self::default()
        };
        let ticks = question
            .now
            .saturating_sub(charge.time)
            .div_ceil(scale.tick);
        let drained = ticks.saturating_mul(question.limit.into());
        let back = self.back.saturating_sub(charge.receipt.back) * scale.whole;
        let left = then
            .level(question, scale)
            .saturating_sub(drained)
            .saturating_sub(back)
            .min(self.at(question).level(question, scale));
        let taken = left.min(units * scale.whole);
        if taken == 0 {
            return false;
        }
        self.lower(question, scale, taken);
        true
    }

    fn give(&mut self, question: &Question, units: u64) {
        let scale = Scale::of(question);
        self.lower(question, scale, units * scale.whole);
    }
}
