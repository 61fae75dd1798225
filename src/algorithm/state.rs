//! The stored state of one count of a key, for any algorithm.

use super::bytes::Bytes;
use super::counter_state::CounterState;
use super::fixed_window::FixedWindow;
use super::gcra::Gcra;
use super::in_flight::InFlight;
use super::log::Log;
use super::quota_check::{Changes, Charge, QuotaCheck, Verdict};
use super::sliding_counter::SlidingCounter;
use super::sorted_set_log::SortedSetLog;
use crate::quota::Algorithm;

/// The state of a log, or of a counter of one algorithm and window.
#[derive(Clone, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize, serde::Serialize))]
pub(crate) enum CountState {
    /// The log of `SlidingLog` and of `SlidingBuckets`.
    Log(Log),
    SortedSetLog(SortedSetLog),
    SlidingCounter(CounterState<SlidingCounter>),
    FixedWindow(CounterState<FixedWindow>),
    Gcra(CounterState<Gcra>),
    InFlight(InFlight),
}

impl CountState {
    /// Appends the bytes of the state. They do not say of which algorithm it is.
    pub(crate) fn write(&self, bytes: &mut Vec<u8>) {
        match self {
            Self::Log(log) => log.write(bytes),
            Self::SortedSetLog(log) => log.write(bytes),
            Self::SlidingCounter(counter) => counter.write(bytes),
            Self::FixedWindow(window) => window.write(bytes),
            Self::Gcra(meter) => meter.write(bytes),
            Self::InFlight(slots) => slots.write(bytes),
        }
    }

    /// Takes the state of an algorithm from the front of the bytes. `None` if they are none.
    pub(crate) fn read(algorithm: Algorithm, bytes: &mut &[u8]) -> Option<Self> {
        Some(match algorithm {
            Algorithm::SlidingLog | Algorithm::SlidingBuckets(_) => Self::Log(Bytes::read(bytes)?),
            Algorithm::SortedSetLog => Self::SortedSetLog(Bytes::read(bytes)?),
            Algorithm::SlidingCounter => Self::SlidingCounter(Bytes::read(bytes)?),
            Algorithm::FixedWindow => Self::FixedWindow(Bytes::read(bytes)?),
            Algorithm::Gcra => Self::Gcra(Bytes::read(bytes)?),
            Algorithm::InFlight => Self::InFlight(Bytes::read(bytes)?),
        })
    }

    pub(crate) fn empty(algorithm: Algorithm) -> Self {
        match algorithm {
            Algorithm::SlidingLog | Algorithm::SlidingBuckets(_) => Self::Log(Log::default()),
            Algorithm::SortedSetLog => Self::SortedSetLog(SortedSetLog::default()),
            Algorithm::SlidingCounter => Self::SlidingCounter(CounterState::default()),
            Algorithm::FixedWindow => Self::FixedWindow(CounterState::default()),
            Algorithm::Gcra => Self::Gcra(CounterState::default()),
            Algorithm::InFlight => Self::InFlight(InFlight::default()),
        }
    }

    /// Creates the state of a counter from its numbers, in the order of the script; `None` for another algorithm, or
    /// if numbers are missing or too large.
    #[cfg(feature = "redis")]
    #[inline]
    pub(crate) fn of_counter(
        algorithm: Algorithm,
        generation: u64,
        numbers: &[u64],
    ) -> Option<Self> {
        Some(match algorithm {
            Algorithm::SlidingCounter => {
                Self::SlidingCounter(CounterState::from_numbers(generation, numbers)?)
            }
            Algorithm::FixedWindow => {
                Self::FixedWindow(CounterState::from_numbers(generation, numbers)?)
            }
            Algorithm::Gcra => Self::Gcra(CounterState::from_numbers(generation, numbers)?),
            _ => return None,
        })
    }

    /// Removes units that were charged to a counter at the time of its last charge. Other algorithms keep them.
    #[cfg(feature = "redis")]
    pub(crate) fn remove_latest(&mut self, units: u64) {
        match self {
            Self::SlidingCounter(counter) => counter.remove_latest(units),
            Self::FixedWindow(window) => window.remove_latest(units),
            Self::Gcra(meter) => meter.remove_latest(units),
            Self::Log(_) | Self::SortedSetLog(_) | Self::InFlight(_) => {}
        }
    }

    /// Evaluates the check without charging it. Moves units in the future to now.
    #[inline]
    pub(crate) fn evaluate(&mut self, check: QuotaCheck<'_>) -> Verdict {
        match self {
            Self::Log(log) => log.evaluate(&check),
            Self::SortedSetLog(log) => log.evaluate(&check),
            Self::SlidingCounter(counter) => counter.evaluate(check),
            Self::FixedWindow(window) => window.evaluate(check),
            Self::Gcra(meter) => meter.evaluate(check),
            Self::InFlight(slots) => slots.look(&check),
        }
    }

    /// Moves the units of a log that are in the future to now. The other states do so with each check.
    #[inline]
    #[must_use]
    pub(crate) fn rewind(&mut self, check: &QuotaCheck<'_>) -> Changes {
        match self {
            Self::Log(log) => log.rewind(check),
            _ => Changes::NONE,
        }
    }

    /// Evaluates the check, and charges it if it fits. `expires` is the end of the time to live, in microseconds.
    /// Call [`rewind`](Self::rewind) before.
    ///
    /// Only for checks with one quota. With several, call [`evaluate`](Self::evaluate) on each. If all admit,
    /// call [`charge`](Self::charge) on each count, and evaluate each quota again with a cost of 0.
    #[inline]
    pub(crate) fn check(&mut self, check: QuotaCheck<'_>, expires: u64) -> Verdict {
        match self {
            Self::Log(log) => log.check(&check, expires),
            Self::SortedSetLog(log) => log.check(&check),
            Self::SlidingCounter(counter) => counter.check(check),
            Self::FixedWindow(window) => window.check(check),
            Self::Gcra(meter) => meter.check(check),
            // Without a holder, nothing is charged.
            Self::InFlight(slots) => slots.look(&check),
        }
    }

    /// Charges a cost that all quotas admitted.
    #[must_use]
    pub(crate) fn charge(&mut self, check: QuotaCheck<'_>, expires: u64) -> Changes {
        match self {
            Self::Log(log) => log.charge(&check, expires),
            Self::SortedSetLog(log) => log.charge(&check),
            Self::SlidingCounter(counter) => counter.charge(check),
            Self::FixedWindow(window) => window.charge(check),
            Self::Gcra(meter) => meter.charge(check),
            Self::InFlight(_) => Changes::NONE,
        }
    }

    /// Removes units of a charge that still count.
    #[must_use]
    pub(crate) fn refund(&mut self, check: QuotaCheck<'_>, charge: Charge, units: u32) -> Changes {
        match self {
            Self::Log(log) => return log.refund(&check, charge, units),
            Self::SortedSetLog(log) => return log.refund(&check, charge, units),
            Self::SlidingCounter(counter) => counter.refund(&check, charge, units),
            Self::FixedWindow(window) => window.refund(&check, charge, units),
            Self::Gcra(meter) => meter.refund(&check, charge, units),
            Self::InFlight(_) => {}
        }
        Changes::NONE
    }

    /// Removes up to `units` units of any charges. The other units return when they would have returned anyway.
    #[must_use]
    pub(crate) fn credit(&mut self, check: QuotaCheck<'_>, units: u32) -> Changes {
        match self {
            Self::Log(log) => log.credit(&check, units),
            Self::SortedSetLog(log) => log.credit(&check, units),
            Self::SlidingCounter(counter) => counter.credit(&check, units),
            Self::FixedWindow(window) => window.credit(&check, units),
            Self::Gcra(meter) => meter.credit(&check, units),
            Self::InFlight(_) => Changes::NONE,
        }
    }

    /// Returns the holders of slots, if this is such a count.
    pub(crate) fn slots(&mut self) -> Option<&mut InFlight> {
        match self {
            Self::InFlight(slots) => Some(slots),
            _ => None,
        }
    }

    /// Returns whether all units have returned.
    pub(crate) fn is_idle(&self, check: QuotaCheck<'_>) -> bool {
        match self {
            Self::Log(log) => log.is_idle(check.now),
            Self::SortedSetLog(log) => log.is_idle(check.now),
            Self::SlidingCounter(counter) => counter.is_idle(check),
            Self::FixedWindow(window) => window.is_idle(check),
            Self::Gcra(meter) => meter.is_idle(check),
            Self::InFlight(slots) => slots.is_idle(check.now),
        }
    }

    /// Returns the longest window that charged a log. `None` for other algorithms.
    pub(crate) fn longest_window(&self) -> Option<u64> {
        match self {
            Self::Log(log) => Some(log.longest_window()),
            Self::InFlight(slots) => Some(slots.longest_lease()),
            _ => None,
        }
    }
}
