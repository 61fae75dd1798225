//! The steps shared by the algorithms that keep a few numbers rather than each unit. Twin of
//! `lua/counter.lua`.
//!
//! A counter is stored as of its last charge. Each check calculates what has expired since then. So
//! a refusal writes nothing.

use std::borrow::Cow;

use super::arithmetic::saturate;
use super::quota_check::{Changes, Charge, QuotaCheck, Verdict};
use crate::decision::{CountScope, Receipt, Wait};

/// A few numbers that count units, and the rule by which units return.
///
/// *Stored* below means as of the last charge, *current* as of the time of the check.
pub(crate) trait CountingRule: Clone + Default {
    /// Returns whether the last charge lies in the future: the clock has stepped back since.
    fn is_in_future(&self, check: &QuotaCheck) -> bool;

    /// Returns the counter as of now. A charge in the future counts as if it was made now.
    ///
    /// Borrowed if copying would allocate: its other methods then leave out what no longer counts.
    #[must_use]
    fn current(&self, check: &QuotaCheck) -> Cow<'_, Self>;

    /// Stores the counter that [`current`](Self::current) returned.
    fn store(&mut self, current: Self) {
        *self = current;
    }

    /// Brings the stored counter up to now.
    fn advance(&mut self, check: &QuotaCheck) {
        let current = self.current(check).into_owned();
        self.store(current);
    }

    /// Returns the units that count, of a current counter.
    fn used(&self, check: &QuotaCheck) -> u64;

    /// Returns the time until at most `target` units count, which is less than now.
    fn time_until(&self, check: &QuotaCheck, target: u64) -> u64;

    /// Returns whether all units have returned.
    fn is_idle(&self, check: &QuotaCheck) -> bool {
        self.current(check).used(check) == 0
    }

    /// Adds units to a current counter. Returns whether they begin a new generation, in which earlier
    /// charges cannot be found.
    fn charge(&mut self, check: &QuotaCheck, cost: u64) -> bool;

    /// Returns the position in the counter of the units that were charged just now.
    fn position(&self, check: &QuotaCheck) -> u64;

    /// Takes up to `units` of a charge from a stored counter, if they still count. Returns whether any
    /// did. The other units return as before.
    fn refund(&mut self, check: &QuotaCheck, charge: Charge, units: u64) -> bool;

    /// Takes `units`, which are fewer than count, from a stored counter, whichever charges they belong
    /// to. The other units return as before.
    fn credit(&mut self, check: &QuotaCheck, units: u64);
}

/// The stored state of a counter.
#[derive(Clone, Debug, Default)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize, serde::Serialize))]
pub(crate) struct CounterState<T> {
    counter: T,
    /// The time at which the counter was last empty and then charged. A receipt of an earlier
    /// generation finds no units.
    generation: u64,
}

impl<T: CountingRule> CounterState<T> {
    /// Evaluates the check, and charges it if it fits.
    #[inline(always)]
    pub(super) fn check(&mut self, check: QuotaCheck) -> Verdict {
        let changes = self.rewind(&check);
        let current = self.counter.current(&check);
        let used = current.used(&check);
        let cost = u64::from(check.cost);
        if cost == 0 || used + cost > check.limit.into() {
            let verdict = judge(&*current, used, self.generation, check);
            return Verdict { changes, ..verdict };
        }
        match current {
            Cow::Owned(current) => self.counter.store(current),
            Cow::Borrowed(_) => self.counter.advance(&check),
        }
        if self.counter.charge(&check, cost) || used == 0 {
            self.generation = check.now;
        }
        let peek = QuotaCheck { cost: 0, ..check };
        let verdict = judge(&self.counter, used + cost, self.generation, peek);
        let changes = changes | Changes::CHARGED;
        Verdict { changes, ..verdict }
    }

    /// Evaluates the check without charging it.
    pub(super) fn evaluate(&mut self, check: QuotaCheck) -> Verdict {
        let changes = self.rewind(&check);
        let current = self.counter.current(&check);
        let verdict = judge(&*current, current.used(&check), self.generation, check);
        Verdict { changes, ..verdict }
    }

    /// Moves charges in the future to now: the first check with a cost after the clock stepped back
    /// does.
    #[inline(always)]
    fn rewind(&mut self, check: &QuotaCheck) -> Changes {
        let is_in_future = check.cost > 0 && self.counter.is_in_future(check);
        if is_in_future {
            self.counter.advance(check);
            self.generation = check.now;
        }
        Changes::REWOUND.only_if(is_in_future)
    }

    /// Charges the cost.
    pub(super) fn charge(&mut self, check: QuotaCheck) -> Changes {
        self.counter.advance(&check);
        let was_empty = self.counter.used(&check) == 0;
        if self.counter.charge(&check, check.cost.into()) || was_empty {
            self.generation = check.now;
        }
        Changes::CHARGED
    }

    /// Returns whether nothing was charged since the counter was cleared.
    pub(super) fn is_blank(&self) -> bool {
        self.generation == 0
    }

    pub(super) fn is_idle(&self, check: QuotaCheck) -> bool {
        self.counter.is_idle(&check)
    }

    /// Takes units of a charge back. Finds none after the clock stepped back: the charge then does not
    /// stand where its receipt says.
    pub(super) fn refund(&mut self, check: QuotaCheck, charge: Charge, units: u32) -> bool {
        self.generation == charge.receipt.generation
            && !self.counter.is_in_future(&check)
            && self.counter.current(&check).used(&check) > 0
            && self.counter.refund(&check, charge, units.into())
    }

    /// Takes any units back, after the clock stepped back too. Clears the counter if no unit is left;
    /// else the generation stays, and earlier charges can still be found.
    pub(super) fn credit(&mut self, check: QuotaCheck, units: u32) -> bool {
        let used = self.counter.current(&check).used(&check);
        let units = u64::from(units);
        if units >= used {
            if used > 0 {
                *self = Self::default();
            }
            return false;
        }
        if units > 0 {
            self.counter.credit(&check, units);
        }
        units > 0
    }
}

/// Compares a current counter, of which `used` units count, with the quota.
#[inline(always)]
fn judge<T: CountingRule>(current: &T, used: u64, generation: u64, check: QuotaCheck) -> Verdict {
    let (limit, cost) = (u64::from(check.limit), u64::from(check.cost));
    let wait = if cost > limit {
        Wait::Never
    } else if used + cost <= limit {
        Wait::Zero
    } else {
        Wait::Micros(current.time_until(&check, limit - cost))
    };
    // One unit more is left when one fewer counts, or one fewer than a limit that was lowered.
    let fewer = used.min(limit).checked_sub(1);
    Verdict {
        used: saturate(used),
        wait,
        reset: match fewer {
            Some(fewer) => current.time_until(&check, fewer),
            None => 0,
        },
        changes: Changes::NONE,
        receipt: Receipt {
            generation,
            position: current.position(&check),
            scope: CountScope::Own,
        },
    }
}
