//! The sliding log in its usual form: in Redis, a sorted set of units by time, which other programs can read.
//!
//! It makes the same decisions as the [sliding log](super::sliding_log), and in memory the two are the same.
//! In Redis: `lua/sorted_set_log.lua`.

pub(super) use super::sliding_log::SlidingLog as SortedSetLog;
