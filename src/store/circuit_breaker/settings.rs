//! The settings of a circuit breaker.

use std::sync::Arc;
use std::time::Duration;

use crate::clock::Clock;
use crate::store::memory::DEFAULT_MAX_KEYS;
use crate::store::requests::Subject;
use crate::telemetry::StoreMeter;

/// The same as for Redis: about a hundred times a call to a healthy server in the same network, and too short
/// for people to notice.
const DEFAULT_DEADLINE: Duration = Duration::from_millis(100);

#[derive(Clone)]
pub(super) struct Settings {
    pub(super) meter: StoreMeter,
    pub(super) clock: Clock,
    pub(super) deadline: Duration,
    /// Whether the store enforces the deadline itself.
    pub(super) store_enforces_deadline: bool,
    pub(super) fallback_keys: usize,
    /// Whether the store is the memory of this process.
    pub(super) is_in_process: bool,
    pub(super) partitions: Partitions,
}

/// The parts of a store that may fail separately, such as servers, and the function that finds the part of a
/// key.
#[derive(Clone)]
pub(super) struct Partitions {
    pub(super) count: usize,
    pub(super) partition_of: Arc<PartitionFn>,
}

type PartitionFn = dyn Fn(Subject<'_>) -> usize + Send + Sync;

impl Default for Settings {
    fn default() -> Self {
        Self {
            meter: StoreMeter::unnamed(),
            clock: Clock::monotonic(),
            deadline: DEFAULT_DEADLINE,
            store_enforces_deadline: false,
            fallback_keys: DEFAULT_MAX_KEYS,
            is_in_process: false,
            partitions: Partitions {
                count: 1,
                partition_of: Arc::new(|_| 0),
            },
        }
    }
}
