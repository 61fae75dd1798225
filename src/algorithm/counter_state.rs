//! What the algorithms have in common that keep a few numbers rather than each unit. Twin of
//! `lua/counter.lua`.
//!
//! A tally is stored as it was last charged; what time has made of it since is worked out when it
//! is asked. So a refusal writes nothing.

use std::borrow::Cow;

use super::arithmetic::saturate;
use super::quota_check::{Charge, QuotaCheck, Verdict};
use crate::decision::{Counted, Receipt, Wait};

/// A few numbers that stand for the units charged.
pub(crate) trait CountingRule: Clone + Default {
    /// Whether it was charged after now, by a clock that has stepped back since.
    fn is_after(&self, question: &QuotaCheck) -> bool;

    /// What time has made of it: as if charged now, if it was charged after now. Borrowed where
    /// copying it would allocate, and its answers leave out what no longer counts.
    #[must_use]
    fn at(&self, question: &QuotaCheck) -> Cow<'_, Self>;

    /// Becomes the tally that [`at`](Self::at) returned.
    fn become_now(&mut self, now: Self) {
        *self = now;
    }

    /// Becomes what time has made of it.
    fn settle(&mut self, question: &QuotaCheck) {
        let now = self.at(question).into_owned();
        self.become_now(now);
    }

    /// The units that count, of a tally as it is now.
    fn used(&self, question: &QuotaCheck) -> u64;

    /// How long until at most `target` units count, which is less than now.
    fn until(&self, question: &QuotaCheck, target: u64) -> u64;

    /// Whether no unit counts any more.
    fn is_idle(&self, question: &QuotaCheck) -> bool {
        self.at(question).used(question) == 0
    }

    /// Charges units to a tally as it is now. Returns whether another tally begins with what it holds, in
    /// which charges before are not found again.
    fn add(&mut self, question: &QuotaCheck, cost: u64) -> bool;

    /// Where in a tally the units are that were charged just now.
    fn mark(&self, question: &QuotaCheck) -> u64;

    /// Takes back up to so many of the units of a charge from a tally as it is stored, as far as
    /// they still count. What time makes of the rest stays as it is. False where none counts.
    fn take(&mut self, question: &QuotaCheck, charge: Charge, units: u64) -> bool;

    /// Takes so many units, which are fewer than count, from a tally as it is stored, whoever charged
    /// them. What time makes of the rest stays as it is.
    fn credit(&mut self, question: &QuotaCheck, units: u64);
}

/// A tally as it is stored.
#[derive(Debug, Default)]
pub(crate) struct CounterState<T> {
    tally: T,
    /// When it began: a tally that was empty in between is another, whose units are not those of
    /// charges before.
    born: u64,
}

impl<T: CountingRule> CounterState<T> {
    /// Asks, and charges what fits.
    #[inline(always)]
    pub(super) fn check(&mut self, question: QuotaCheck) -> Verdict {
        let renewed = self.rewind(&question);
        let now = self.tally.at(&question);
        let used = now.used(&question);
        let cost = u64::from(question.cost);
        if cost == 0 || used + cost > question.limit.into() {
            let asked = judge(&*now, used, self.born, question);
            return Verdict { renewed, ..asked };
        }
        match now {
            Cow::Owned(now) => self.tally.become_now(now),
            Cow::Borrowed(_) => self.tally.settle(&question),
        }
        if self.tally.add(&question, cost) || used == 0 {
            self.born = question.now;
        }
        let look = QuotaCheck {
            cost: 0,
            ..question
        };
        let asked = judge(&self.tally, used + cost, self.born, look);
        let renewed = true;
        Verdict { renewed, ..asked }
    }

    pub(super) fn ask(&mut self, question: QuotaCheck) -> Verdict {
        let renewed = self.rewind(&question);
        let now = self.tally.at(&question);
        let asked = judge(&*now, now.used(&question), self.born, question);
        Verdict { renewed, ..asked }
    }

    /// After a step back of the clock, what was charged is charged now, by the first check with a
    /// cost.
    #[inline(always)]
    fn rewind(&mut self, question: &QuotaCheck) -> bool {
        let is_after = question.cost > 0 && self.tally.is_after(question);
        if is_after {
            self.tally.settle(question);
            self.born = question.now;
        }
        is_after
    }

    /// Renews the time to live.
    pub(super) fn charge(&mut self, question: QuotaCheck) -> bool {
        self.tally.settle(&question);
        let was_empty = self.tally.used(&question) == 0;
        if self.tally.add(&question, question.cost.into()) || was_empty {
            self.born = question.now;
        }
        true
    }

    pub(super) fn is_idle(&self, question: QuotaCheck) -> bool {
        self.tally.is_idle(&question)
    }

    /// After a step back of the clock, where units were charged is no longer where they stand:
    /// nothing is found again.
    pub(super) fn refund(&mut self, question: QuotaCheck, charge: Charge, units: u32) -> bool {
        self.born == charge.receipt.generation
            && !self.tally.is_after(&question)
            && self.tally.at(&question).used(&question) > 0
            && self.tally.take(&question, charge, units.into())
    }

    /// After a step back of the clock too: it does not matter where units stand. Where none is left, the
    /// tally is forgotten; else it stays the same, in which charges before are found again.
    pub(super) fn credit(&mut self, question: QuotaCheck, units: u32) -> bool {
        let used = self.tally.at(&question).used(&question);
        let units = u64::from(units);
        if units >= used {
            if used > 0 {
                *self = Self::default();
            }
            return false;
        }
        if units > 0 {
            self.tally.credit(&question, units);
        }
        units > 0
    }
}

/// What a quota says of a tally as it is now, of which so many units count.
#[inline(always)]
fn judge<T: CountingRule>(now: &T, used: u64, born: u64, question: QuotaCheck) -> Verdict {
    let (limit, cost) = (u64::from(question.limit), u64::from(question.cost));
    let wait = if cost > limit {
        Wait::Never
    } else if used + cost <= limit {
        Wait::Zero
    } else {
        Wait::Micros(now.until(&question, limit - cost))
    };
    // One unit more is left when one fewer counts, or one fewer than a limit that was lowered.
    let fewer = used.min(limit).checked_sub(1);
    Verdict {
        used: saturate(used),
        wait,
        reset: match fewer {
            Some(fewer) => now.until(&question, fewer),
            None => 0,
        },
        renewed: false,
        receipt: Receipt {
            generation: born,
            position: now.mark(&question),
            counted: Counted::Own,
        },
    }
}
