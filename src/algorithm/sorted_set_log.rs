//! The sliding log as the literature describes it: a sorted set of the units by time.
//!
//! It decides as the [sliding log](super::sliding_log) does, to the microsecond. Only the storage in
//! Redis differs, which other tools can read; in memory the two are the same. Twin of
//! `lua/sorted_set_log.lua`.

pub(super) use super::sliding_log::SlidingLog as SortedSetLog;
