//! What the algorithms have in common that keep a few numbers rather than each unit. Twin of
//! `lua/tally.lua`.
//!
//! A tally is stored as it was last charged; what time has made of it since is worked out when it
//! is asked. So a refusal writes nothing.

use super::{Asked, Charge, Question};
use crate::decision::{Receipt, Wait};

/// A few numbers that stand for the units charged.
pub(crate) trait Tally: Clone + Default {
    /// Whether it was charged after now, by a clock that has stepped back since.
    fn is_after(&self, question: &Question) -> bool;

    /// What time has made of it: as if charged now, if it was charged after now.
    #[must_use]
    fn at(&self, question: &Question) -> Self;

    /// The units that count, of a tally as it is now.
    fn used(&self, question: &Question) -> u64;

    /// How long until at most `target` units count, which is less than now.
    fn until(&self, question: &Question, target: u64) -> u64;

    /// Charges units to a tally as it is now.
    fn add(&mut self, question: &Question, cost: u64);

    /// Where in a tally the units are that were charged just now.
    fn mark(&self, question: &Question) -> u64;

    /// How many units were given back to it.
    fn back(&self) -> u64 {
        0
    }

    /// Whether charges by this quota go on with the tally; else it begins anew with what it holds.
    fn is_of(&self, _: &Question) -> bool {
        true
    }

    /// Takes back up to so many of the units of a charge from a tally as it is stored, as far as
    /// they still count. What time makes of the rest stays as it is. False where none counts.
    fn take(&mut self, question: &Question, charge: Charge, units: u64) -> bool;
}

/// A tally as it is stored.
#[derive(Debug, Default)]
pub(crate) struct Kept<T> {
    tally: T,
    /// When it began: a tally that was empty in between is another, whose units are not those of
    /// charges before.
    born: u64,
}

impl<T: Tally> Kept<T> {
    pub(super) fn ask(&mut self, question: Question) -> Asked {
        let now = self.tally.at(&question);
        let renewed = question.cost > 0 && self.tally.is_after(&question);
        if renewed {
            self.tally = now.clone();
            self.born = question.now;
        }
        let (limit, cost) = (u64::from(question.limit), u64::from(question.cost));
        let used = now.used(&question);
        let wait = if cost > limit {
            Wait::Never
        } else if used + cost <= limit {
            Wait::Zero
        } else {
            Wait::Micros(now.until(&question, limit - cost))
        };
        // One unit more is left when one fewer counts, or one fewer than a limit that was lowered.
        let fewer = used.min(limit).checked_sub(1);
        Asked {
            used: super::saturate(used),
            wait,
            reset: fewer.map_or(0, |target| now.until(&question, target)),
            renewed,
            receipt: Receipt {
                stamp: self.born,
                mark: now.mark(&question),
                back: now.back(),
            },
        }
    }

    /// Renews the time to live.
    pub(super) fn charge(&mut self, question: Question) -> bool {
        let mut now = self.tally.at(&question);
        if now.used(&question) == 0 || !self.tally.is_of(&question) {
            self.born = question.now;
        }
        now.add(&question, question.cost.into());
        self.tally = now;
        true
    }

    pub(super) fn idle_after(&self, question: Question) -> u64 {
        self.tally.at(&question).until(&question, 0)
    }

    /// After a step back of the clock, where units were charged is no longer where they stand:
    /// nothing is found again.
    pub(super) fn refund(&mut self, question: Question, charge: Charge, units: u32) -> bool {
        self.born == charge.receipt.stamp
            && !self.tally.is_after(&question)
            && self.tally.at(&question).used(&question) > 0
            && self.tally.take(&question, charge, units.into())
    }
}
