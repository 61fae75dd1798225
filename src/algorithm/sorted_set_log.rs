//! The exact sliding window as the literature has it: a sorted set of the units by time.
//!
//! It decides as the [sliding log](super::sliding_log) does, to the microsecond. What differs is how
//! Redis keeps it, which other tools can read there; in memory the two are one. The twin in Lua is
//! `lua/sorted_set_log.lua`.

pub(super) use super::sliding_log::SlidingLog as SortedSetLog;
