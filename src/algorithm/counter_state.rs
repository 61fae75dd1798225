//! The steps that are common to all algorithms that store a few numbers in place of each unit.
//! `lua/counters.lua` has the same steps.
//!
//! A counter is stored as of its last charge. A check calculates which units have expired since then, so a
//! refusal writes nothing.

use super::algorithm_state::AlgorithmState;
use super::bytes::{Bytes, impl_bytes};
use super::quota_check::{Changes, Charge, QuotaCheck, QuotaOutcome};
use crate::decision::Receipt;

/// A few numbers that count units, and the rule by which the units return.
///
/// A *stored* counter has the values of its last charge, a *current* one those at the time of the check.
pub(crate) trait CountingRule: Clone + Default {
    /// Whether time returns units. If not, a cost without room waits in vain, and there is no reset.
    const UNITS_RETURN: bool = true;

    fn is_in_future(&self, check: &QuotaCheck<'_>) -> bool;

    /// Charges in the future count as if they were made now.
    #[must_use]
    fn current(&self, check: &QuotaCheck<'_>) -> Self;

    fn store(&mut self, current: Self) {
        *self = current;
    }

    fn advance(&mut self, check: &QuotaCheck<'_>) {
        let current = self.current(check);
        self.store(current);
    }

    fn used(&self, check: &QuotaCheck<'_>) -> u64;

    /// The target is lower than the current count.
    fn time_until(&self, check: &QuotaCheck<'_>, target: u64) -> u64;

    fn windows(&self) -> u64 {
        1
    }

    /// Adds units to a current counter, or as many as it can hold. Returns whether a new generation begins, in which
    /// refunds do not find earlier charges.
    fn charge(&mut self, check: &QuotaCheck<'_>, cost: u64) -> bool;

    fn position(&self, check: &QuotaCheck<'_>) -> u64;

    /// Removes up to `units` of a charge from a stored counter, if they still count. The other units return when they
    /// would have returned anyway.
    fn refund(&mut self, check: &QuotaCheck<'_>, charge: Charge, units: u64);

    /// Removes `units` units of any charges from a stored counter. They are fewer than the units that count.
    /// The other units return when they would have returned anyway.
    fn credit(&mut self, check: &QuotaCheck<'_>, units: u64);

    /// Creates a counter from its numbers, in the order in which the script stores them.
    #[cfg(feature = "redis")]
    fn from_numbers(numbers: &[u64]) -> Option<Self>;

    #[cfg(feature = "redis")]
    fn remove_latest(&mut self, units: u64);
}

/// The stored state of a counter.
#[derive(Clone, Debug, Default)]
pub(crate) struct CounterState<T> {
    counter: T,
    /// The time at which this generation began: with the first charge to an empty counter, or when the clock
    /// stepped back. Refunds of earlier generations find no units.
    generation: u64,
}

impl_bytes!(CounterState<T> {
    counter,
    generation
});

impl<T: CountingRule> CounterState<T> {
    /// Moves charges in the future to now. There are such charges after the clock has stepped back.
    #[inline]
    fn bring_to_now(&mut self, check: &QuotaCheck<'_>) -> Changes {
        let is_in_future = self.counter.is_in_future(check);
        if is_in_future {
            self.counter.advance(check);
            self.generation = check.now;
        }
        Changes::RENEWED.only_if(is_in_future)
    }

    #[inline]
    fn add(&mut self, check: &QuotaCheck<'_>, used: u64) {
        if self.counter.charge(check, check.cost.into()) || used == 0 {
            self.generation = check.now;
        }
    }
}

impl<T: CountingRule + Bytes> AlgorithmState for CounterState<T> {
    #[inline]
    fn check(&mut self, check: &QuotaCheck<'_>, _: u64) -> QuotaOutcome {
        let changes = self.bring_to_now(check);
        let current = self.counter.current(check);
        let used = current.used(check);
        let cost = u64::from(check.cost);
        if cost == 0 || used + cost > check.limit.into() {
            let outcome = decide(&current, used, self.generation, *check);
            return QuotaOutcome { changes, ..outcome };
        }
        self.counter.store(current);
        self.add(check, used);
        let peek = QuotaCheck { cost: 0, ..*check };
        let outcome = decide(&self.counter, used + cost, self.generation, peek);
        let changes = changes | Changes::CHARGED;
        QuotaOutcome { changes, ..outcome }
    }

    fn evaluate(&mut self, check: &QuotaCheck<'_>) -> QuotaOutcome {
        let changes = self.bring_to_now(check);
        let current = self.counter.current(check);
        let outcome = decide(&current, current.used(check), self.generation, *check);
        QuotaOutcome { changes, ..outcome }
    }

    fn charge(&mut self, check: &QuotaCheck<'_>, _: u64) -> Changes {
        self.counter.advance(check);
        self.add(check, self.counter.used(check));
        Changes::CHARGED
    }

    fn is_idle(&self, check: &QuotaCheck<'_>) -> bool {
        self.counter.current(check).used(check) == 0
    }

    fn windows(&self) -> u64 {
        self.counter.windows()
    }

    /// Removes units of a charge. Removes none while charges are in the future, after the clock stepped back:
    /// the receipt may then not tell where the charge is.
    fn refund(&mut self, check: &QuotaCheck<'_>, charge: Charge, units: u32) -> Changes {
        if self.generation == charge.receipt.generation
            && !self.counter.is_in_future(check)
            && self.counter.current(check).used(check) > 0
        {
            self.counter.refund(check, charge, units.into());
        }
        Changes::NONE
    }

    /// Removes units of any charges, also after the clock stepped back. The generation stays, so that refunds still
    /// find earlier charges.
    fn credit(&mut self, check: &QuotaCheck<'_>, units: u32) -> Changes {
        let used = self.counter.current(check).used(check);
        let units = u64::from(units);
        if 0 < units && units < used {
            self.counter.credit(check, units);
        }
        Changes::EMPTIED.only_if(used > 0 && units >= used)
    }

    #[cfg(feature = "redis")]
    fn set_numbers(&mut self, generation: u64, numbers: &[u64]) -> Option<()> {
        self.counter = T::from_numbers(numbers)?;
        self.generation = generation;
        Some(())
    }

    #[cfg(feature = "redis")]
    fn remove_latest(&mut self, units: u64) {
        self.counter.remove_latest(units);
    }
}

#[inline]
fn decide<T: CountingRule>(
    current: &T,
    used: u64,
    generation: u64,
    check: QuotaCheck<'_>,
) -> QuotaOutcome {
    let limit = i64::from(check.limit);
    let room = limit.saturating_sub_unsigned(used);
    let receipt = Receipt::new(generation, current.position(&check));
    let outcome = QuotaOutcome::new(&check, room, limit, receipt, |units| {
        current.time_until(&check, limit.abs_diff(units))
    });
    if T::UNITS_RETURN {
        outcome
    } else {
        outcome.without_return()
    }
}
