//! The store in the memory of this process, with the same rules as the Redis store.

mod entries;
mod locked;
mod memory_counts;
mod memory_store;
mod overflow;
mod shard;
mod table;

// `locked` imports these from here, so that `tests/checks/interleavings.rs` can replace them by a model
// checker's.
use std::sync::MutexGuard;

use crate::clock::Clock;
use crate::lock::Mutex;
pub(super) use memory_counts::{DEFAULT_MAX_KEYS, MemoryCounts};
pub use memory_store::MemoryStore;

#[cfg(test)]
mod lagging_threads;
#[cfg(test)]
mod tests;
