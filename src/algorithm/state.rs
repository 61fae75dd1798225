//! The stored state of one quota of one key, for any algorithm.

use super::counter_state::CounterState;
use super::fixed_window::FixedWindow;
use super::gcra::Gcra;
use super::quota_check::{Changes, Charge, CheckSummary, QuotaCheck, Verdict};
use super::sliding_buckets::SlidingBuckets;
use super::sliding_counter::SlidingCounter;
use super::sliding_log::SlidingLog;
use super::sorted_set_log::SortedSetLog;
use crate::decision::Answer;
use crate::quota::Algorithm;

/// The state of one algorithm and window of one key.
#[derive(Clone, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize, serde::Serialize))]
pub(crate) enum State {
    SlidingLog(SlidingLog),
    SortedSetLog(SortedSetLog),
    SlidingCounter(CounterState<SlidingCounter>),
    SlidingBuckets(CounterState<SlidingBuckets>),
    FixedWindow(CounterState<FixedWindow>),
    Gcra(CounterState<Gcra>),
}

impl State {
    pub(crate) fn empty(algorithm: Algorithm) -> Self {
        match algorithm {
            Algorithm::SlidingLog => Self::SlidingLog(SlidingLog::default()),
            Algorithm::SortedSetLog => Self::SortedSetLog(SortedSetLog::default()),
            Algorithm::SlidingCounter => Self::SlidingCounter(CounterState::default()),
            Algorithm::SlidingBuckets(_) => Self::SlidingBuckets(CounterState::default()),
            Algorithm::FixedWindow => Self::FixedWindow(CounterState::default()),
            Algorithm::Gcra => Self::Gcra(CounterState::default()),
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
            Self::SlidingLog(_) | Self::SortedSetLog(_) | Self::SlidingBuckets(_) => {}
        }
    }

    /// Evaluates the check without charging it. May drop units that no longer count.
    pub(crate) fn evaluate(&mut self, check: QuotaCheck) -> Verdict {
        match self {
            Self::SlidingLog(log) | Self::SortedSetLog(log) => log.evaluate(check),
            Self::SlidingCounter(counter) => counter.evaluate(check),
            Self::SlidingBuckets(buckets) => buckets.evaluate(check),
            Self::FixedWindow(window) => window.evaluate(check),
            Self::Gcra(meter) => meter.evaluate(check),
        }
    }

    /// Evaluates the check, charges it if it fits, and appends the verdict to the answer.
    ///
    /// Only for checks with one quota. With several, call [`evaluate`](Self::evaluate) on each. If all admit,
    /// call [`charge`](Self::charge) on each, and evaluate each again with a cost of 0.
    #[inline(always)]
    pub(crate) fn check(&mut self, check: QuotaCheck, answer: &mut Answer) -> CheckSummary {
        match self {
            Self::SlidingLog(log) | Self::SortedSetLog(log) => log.check(check).write_to(answer),
            Self::SlidingCounter(counter) => counter.check(check).write_to(answer),
            Self::SlidingBuckets(buckets) => buckets.check(check).write_to(answer),
            Self::FixedWindow(window) => window.check(check).write_to(answer),
            Self::Gcra(meter) => meter.check(check).write_to(answer),
        }
    }

    /// Returns whether all units have returned.
    pub(crate) fn is_idle(&self, check: QuotaCheck) -> bool {
        match self {
            Self::SlidingLog(log) | Self::SortedSetLog(log) => log.is_idle(check),
            Self::SlidingCounter(counter) => counter.is_idle(check),
            Self::SlidingBuckets(buckets) => buckets.is_idle(check),
            Self::FixedWindow(window) => window.is_idle(check),
            Self::Gcra(meter) => meter.is_idle(check),
        }
    }

    /// Removes units of a charge that still count. Returns whether that renews the time to live.
    #[must_use]
    pub(crate) fn refund(&mut self, check: QuotaCheck, charge: Charge, units: u32) -> bool {
        match self {
            Self::SlidingLog(log) | Self::SortedSetLog(log) => log.refund(check, charge, units),
            Self::SlidingCounter(counter) => counter.refund(check, charge, units),
            Self::SlidingBuckets(buckets) => buckets.refund(check, charge, units),
            Self::FixedWindow(window) => window.refund(check, charge, units),
            Self::Gcra(meter) => meter.refund(check, charge, units),
        }
    }

    /// Removes up to `units` units of any charges. The other units return when they would have returned
    /// anyway. Returns whether that renews the time to live.
    #[must_use]
    pub(crate) fn credit(&mut self, check: QuotaCheck, units: u32) -> bool {
        match self {
            Self::SlidingLog(log) | Self::SortedSetLog(log) => log.credit(check, units),
            Self::SlidingCounter(counter) => counter.credit(check, units),
            Self::SlidingBuckets(buckets) => buckets.credit(check, units),
            Self::FixedWindow(window) => window.credit(check, units),
            Self::Gcra(meter) => meter.credit(check, units),
        }
    }

    /// Returns whether nothing is stored, as in a new state.
    pub(crate) fn is_blank(&self) -> bool {
        match self {
            Self::SlidingLog(log) | Self::SortedSetLog(log) => log.is_blank(),
            Self::SlidingCounter(counter) => counter.is_blank(),
            Self::SlidingBuckets(buckets) => buckets.is_blank(),
            Self::FixedWindow(window) => window.is_blank(),
            Self::Gcra(meter) => meter.is_blank(),
        }
    }

    /// Charges a cost that all quotas admitted.
    #[must_use]
    pub(crate) fn charge(&mut self, check: QuotaCheck) -> Changes {
        match self {
            Self::SlidingLog(log) | Self::SortedSetLog(log) => log.charge(check),
            Self::SlidingCounter(counter) => counter.charge(check),
            Self::SlidingBuckets(buckets) => buckets.charge(check),
            Self::FixedWindow(window) => window.charge(check),
            Self::Gcra(meter) => meter.charge(check),
        }
    }
}
