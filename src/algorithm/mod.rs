//! How units are counted: pure functions of a state, a quota, a time and a cost.
//!
//! One file per algorithm, named as its twin in `lua/`, which does the same step for step: what is
//! written here in Rust is the executable specification of what Redis runs. Times are whole
//! microseconds of one clock, the store's.

mod sliding_log;

use crate::decision::{QuotaAnswer, Wait};
use crate::quota::{Algorithm, Quota};
use sliding_log::SlidingLog;

/// What is stored for one algorithm and window of one key.
#[derive(Debug)]
pub(crate) enum State {
    SlidingLog(SlidingLog),
}

impl State {
    pub(crate) fn empty(algorithm: Algorithm) -> Self {
        match algorithm {
            Algorithm::SlidingLog => Self::SlidingLog(SlidingLog::default()),
        }
    }

    /// Asks whether `cost` fits, and forgets what no longer counts. A cost of 0 only looks.
    pub(crate) fn ask(&mut self, question: Question) -> Asked {
        match self {
            Self::SlidingLog(log) => log.ask(question),
        }
    }

    /// Charges a cost that every quota admitted; whether that renews the time to live.
    #[must_use]
    pub(crate) fn charge(&mut self, question: Question) -> bool {
        match self {
            Self::SlidingLog(log) => log.charge(question),
        }
    }
}

/// One quota's part of a check: what fits into which window, and when.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Question {
    pub(crate) limit: u32,
    pub(crate) window: u64,
    pub(crate) cost: u32,
    pub(crate) now: u64,
}

impl Question {
    pub(crate) fn new(quota: &Quota, cost: u32, now: u64) -> Self {
        Self {
            limit: quota.limit(),
            window: quota.window_micros(),
            cost,
            now,
        }
    }
}

/// What a quota says before the check is charged.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asked {
    pub(crate) used: u32,
    pub(crate) wait: Wait,
    pub(crate) reset: u64,
    /// What `reset` becomes if the check is charged.
    pub(crate) reset_if_charged: u64,
    /// Whether the step changed the state in a way that renews its time to live.
    pub(crate) renewed: bool,
}

impl Asked {
    /// The answer to a check that was not charged.
    pub(crate) fn uncharged(self) -> QuotaAnswer {
        QuotaAnswer::from_micros(self.used, self.wait, self.reset)
    }

    /// The answer to a check that was charged.
    pub(crate) fn charged(self, cost: u32) -> QuotaAnswer {
        let used = self.used.saturating_add(cost);
        QuotaAnswer::from_micros(used, self.wait, self.reset_if_charged)
    }
}

/// How long a stored count is kept after it was last renewed, in milliseconds: a log without a trim
/// may grow for one window and then counts for another. The second more keeps brief windows from
/// being at the mercy of a millisecond.
pub(crate) fn time_to_live_millis(window: u64) -> u64 {
    (2 * window).div_ceil(1_000) + 1_000
}
