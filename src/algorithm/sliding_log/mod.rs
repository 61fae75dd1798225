//! The sliding log, stored as runs of units that were charged in the same microsecond.

mod runs;
mod sliding_log;

pub(super) use sliding_log::SlidingLog;
