//! How units are counted: pure functions of a state, a quota, a time and a cost.
//!
//! One file per algorithm, named as its twin in `lua/`, which does the same step for step: what is
//! written here in Rust is the executable specification of what Redis runs. Times are whole
//! microseconds of one clock, the store's.

mod arithmetic;
mod fixed_window;
mod gcra;
mod sliding_buckets;
mod sliding_counter;
mod sliding_log;
mod sorted_set_log;
mod tally;

use crate::decision::{Answer, QuotaAnswer, Receipt, Wait};
use crate::quota::{Algorithm, Quota};
use fixed_window::FixedWindow;
use gcra::Gcra;
use sliding_buckets::SlidingBuckets;
use sliding_counter::SlidingCounter;
use sliding_log::SlidingLog;
use sorted_set_log::SortedSetLog;
use tally::Kept;

/// What is stored for one algorithm and window of one key.
#[derive(Debug)]
pub(crate) enum State {
    SlidingLog(SlidingLog),
    SortedSetLog(SortedSetLog),
    SlidingCounter(Kept<SlidingCounter>),
    SlidingBuckets(Kept<SlidingBuckets>),
    FixedWindow(Kept<FixedWindow>),
    Gcra(Kept<Gcra>),
}

impl State {
    pub(crate) fn empty(algorithm: Algorithm) -> Self {
        match algorithm {
            Algorithm::SlidingLog => Self::SlidingLog(SlidingLog::default()),
            Algorithm::SortedSetLog => Self::SortedSetLog(SortedSetLog::default()),
            Algorithm::SlidingCounter => Self::SlidingCounter(Kept::default()),
            Algorithm::SlidingBuckets(_) => Self::SlidingBuckets(Kept::default()),
            Algorithm::FixedWindow => Self::FixedWindow(Kept::default()),
            Algorithm::Gcra => Self::Gcra(Kept::default()),
        }
    }

    /// Asks whether the cost fits, and forgets what no longer counts. A cost of 0 only looks.
    pub(crate) fn ask(&mut self, question: Question) -> Asked {
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
    pub(crate) fn check(&mut self, question: Question, answer: &mut Answer) -> Checked {
        match self {
            Self::SlidingLog(log) | Self::SortedSetLog(log) => log.check(question).put(answer),
            Self::SlidingCounter(counter) => counter.check(question).put(answer),
            Self::SlidingBuckets(buckets) => buckets.check(question).put(answer),
            Self::FixedWindow(window) => window.check(question).put(answer),
            Self::Gcra(meter) => meter.check(question).put(answer),
        }
    }

    /// Whether all units have returned.
    pub(crate) fn is_idle(&self, question: Question) -> bool {
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
    pub(crate) fn refund(&mut self, question: Question, charge: Charge, units: u32) -> bool {
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
    pub(crate) fn give(&mut self, question: Question, units: u32) -> bool {
        match self {
            Self::SlidingLog(log) | Self::SortedSetLog(log) => log.give(question, units),
            Self::SlidingCounter(counter) => counter.give(question, units),
            Self::SlidingBuckets(buckets) => buckets.give(question, units),
            Self::FixedWindow(window) => window.give(question, units),
            Self::Gcra(meter) => meter.give(question, units),
        }
    }

    /// Charges a cost that every quota admitted; whether that renews the time to live.
    #[must_use]
    pub(crate) fn charge(&mut self, question: Question) -> bool {
        match self {
            Self::SlidingLog(log) | Self::SortedSetLog(log) => log.charge(question),
            Self::SlidingCounter(counter) => counter.charge(question),
            Self::SlidingBuckets(buckets) => buckets.charge(question),
            Self::FixedWindow(window) => window.charge(question),
            Self::Gcra(meter) => meter.charge(question),
        }
    }
}

/// One quota's part of a check: what fits into which window, and when.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Question {
    pub(crate) limit: u32,
    pub(crate) window: u64,
    /// Into how many parts the window is divided, where it is.
    pub(crate) parts: u64,
    pub(crate) cost: u32,
    pub(crate) now: u64,
}

impl Question {
    #[inline(always)]
    pub(crate) fn new(quota: &Quota, cost: u32, now: u64) -> Self {
        Self {
            limit: quota.limit(),
            window: quota.window_micros(),
            parts: quota.counted_by().parts(),
            cost,
            now,
        }
    }
}

/// What a charge left behind, by which it is found again.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Charge {
    pub(crate) time: u64,
    pub(crate) receipt: Receipt,
    /// How many units it was.
    pub(crate) cost: u32,
    /// Whether more of them may be given back later.
    pub(crate) is_open: bool,
}

/// What a quota says of a check.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asked {
    pub(crate) used: u32,
    pub(crate) wait: Wait,
    pub(crate) reset: u64,
    /// Whether the step changed the state in a way that renews its time to live.
    pub(crate) renewed: bool,
    /// By what a charge that was made just now is found again.
    pub(crate) receipt: Receipt,
}

/// What of an answer is noted with its count.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Checked {
    pub(crate) used: u32,
    pub(crate) admitted: bool,
    pub(crate) renewed: bool,
}

impl Asked {
    /// Puts what is answered into its place, and says what is noted.
    #[inline(always)]
    fn put(self, answer: &mut Answer) -> Checked {
        answer.push(self.into());
        Checked {
            used: self.used,
            admitted: self.wait == Wait::Zero,
            renewed: self.renewed,
        }
    }
}

impl From<Asked> for QuotaAnswer {
    #[inline(always)]
    fn from(asked: Asked) -> Self {
        Self::from_micros(asked.used, asked.wait, asked.reset).with_receipt(asked.receipt)
    }
}

fn saturate(units: u64) -> u32 {
    u32::try_from(units).unwrap_or(u32::MAX)
}

/// How long a stored count is kept after it was last renewed, in milliseconds: a log without a trim
/// may grow for one window and then counts for another. The second more keeps brief windows from
/// being at the mercy of a millisecond.
pub(crate) fn time_to_live_millis(window: u64) -> u64 {
    (2 * window).div_ceil(1_000) + 1_000
}
