//! The stored state of one quota of one key, whichever algorithm counts it.

use super::counter_state::CounterState;
use super::fixed_window::FixedWindow;
use super::gcra::Gcra;
use super::quota_check::{Charge, Checked, QuotaCheck, Verdict};
use super::sliding_buckets::SlidingBuckets;
use super::sliding_counter::SlidingCounter;
use super::sliding_log::SlidingLog;
use super::sorted_set_log::SortedSetLog;
use crate::decision::Answer;
use crate::quota::Algorithm;

/// What is stored for one algorithm and window of one key.
#[derive(Debug)]
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

    /// Asks whether the cost fits, and forgets what no longer counts. A cost of 0 only looks.
    pub(crate) fn ask(&mut self, question: QuotaCheck) -> Verdict {
        match self {
            Self::SlidingLog(log) | Self::SortedSetLog(log) => log.ask(question),
            Self::SlidingCounter(counter) => counter.ask(question),
            Self::SlidingBuckets(buckets) => buckets.ask(question),
            Self::FixedWindow(window) => window.ask(question),
            Self::Gcra(meter) => meter.ask(question),
        }
    }

    /// Asks, and charges what fits: what [`ask`](Self::ask), [`charge`](Self::charge) and a look
    /// come to where no other quota has a say.
    #[inline(always)]
    pub(crate) fn check(&mut self, question: QuotaCheck, answer: &mut Answer) -> Checked {
        match self {
            Self::SlidingLog(log) | Self::SortedSetLog(log) => log.check(question).put(answer),
            Self::SlidingCounter(counter) => counter.check(question).put(answer),
            Self::SlidingBuckets(buckets) => buckets.check(question).put(answer),
            Self::FixedWindow(window) => window.check(question).put(answer),
            Self::Gcra(meter) => meter.check(question).put(answer),
        }
    }

    /// Whether all units have returned.
    pub(crate) fn is_idle(&self, question: QuotaCheck) -> bool {
        match self {
            Self::SlidingLog(log) | Self::SortedSetLog(log) => log.is_idle(question),
            Self::SlidingCounter(counter) => counter.is_idle(question),
            Self::SlidingBuckets(buckets) => buckets.is_idle(question),
            Self::FixedWindow(window) => window.is_idle(question),
            Self::Gcra(meter) => meter.is_idle(question),
        }
    }

    /// Takes back units that were charged, as far as they still count; whether that renews the time
    /// to live.
    #[must_use]
    pub(crate) fn refund(&mut self, question: QuotaCheck, charge: Charge, units: u32) -> bool {
        match self {
            Self::SlidingLog(log) | Self::SortedSetLog(log) => log.refund(question, charge, units),
            Self::SlidingCounter(counter) => counter.refund(question, charge, units),
            Self::SlidingBuckets(buckets) => buckets.refund(question, charge, units),
            Self::FixedWindow(window) => window.refund(question, charge, units),
            Self::Gcra(meter) => meter.refund(question, charge, units),
        }
    }

    /// Has so many units fewer count, or none where fewer do: as if they had never been charged, whoever
    /// charged them. What is left leaves when it would have. Whether that renews the time to live.
    #[must_use]
    pub(crate) fn credit(&mut self, question: QuotaCheck, units: u32) -> bool {
        match self {
            Self::SlidingLog(log) | Self::SortedSetLog(log) => log.credit(question, units),
            Self::SlidingCounter(counter) => counter.credit(question, units),
            Self::SlidingBuckets(buckets) => buckets.credit(question, units),
            Self::FixedWindow(window) => window.credit(question, units),
            Self::Gcra(meter) => meter.credit(question, units),
        }
    }

    /// Charges a cost that every quota admitted; whether that renews the time to live.
    #[must_use]
    pub(crate) fn charge(&mut self, question: QuotaCheck) -> bool {
        match self {
            Self::SlidingLog(log) | Self::SortedSetLog(log) => log.charge(question),
            Self::SlidingCounter(counter) => counter.charge(question),
            Self::SlidingBuckets(buckets) => buckets.charge(question),
            Self::FixedWindow(window) => window.charge(question),
            Self::Gcra(meter) => meter.charge(question),
        }
    }
}
