//! The store in this process: the rules of the Redis store, without Redis.

mod counters;
mod entries;
mod locked;
mod memory_counts;
mod memory_store;
mod overflow;
mod shard;
mod table;

// `locked` takes these from here, so that a model checker can bring its own: see tests/interleavings.rs.
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::clock::Clock;
pub(super) use memory_counts::{DEFAULT_MAX_KEYS, MemoryCounts};
pub use memory_store::MemoryStore;

#[cfg(test)]
mod tests;
