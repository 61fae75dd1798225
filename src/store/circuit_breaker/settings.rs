//! The settings of a circuit breaker.

use std::sync::Arc;
use std::time::Duration;

use super::nodes::Nodes;
use crate::clock::Clock;
use crate::store::memory::DEFAULT_MAX_KEYS;
use crate::store::requests::Subject;
use crate::telemetry::StoreMeter;

/// The same as for Redis: about a hundred times a call to a healthy server in the same network, and too short
/// for people to notice.
const DEFAULT_DEADLINE: Duration = Duration::from_millis(100);

#[derive(Clone)]
pub(super) struct Settings {
    /// The name of a store outside this crate. A store of this crate only names its meter.
    pub(super) name: Arc<str>,
    pub(super) meter: StoreMeter,
    pub(super) clock: Clock,
    pub(super) deadline: Duration,
    /// Whether the store enforces the deadline itself.
    pub(super) store_enforces_deadline: bool,
    pub(super) fallback_keys: usize,
    /// Whether the store is the memory of this process.
    pub(super) is_in_process: bool,
    /// `None` if the store is one server, which fails as a whole.
    pub(super) partitions: Option<Partitions>,
}

/// The nodes of a store, which may fail alone, and the slots of keys.
#[derive(Clone)]
pub(super) struct Partitions {
    pub(super) nodes: Arc<Nodes>,
    pub(super) slot_of: Arc<SlotFn>,
}

type SlotFn = dyn Fn(Subject<'_>) -> u16 + Send + Sync;

impl Default for Settings {
    fn default() -> Self {
        Self {
            name: "other".into(),
            meter: StoreMeter::unnamed(),
            clock: Clock::monotonic(),
            deadline: DEFAULT_DEADLINE,
            store_enforces_deadline: false,
            fallback_keys: DEFAULT_MAX_KEYS,
            is_in_process: false,
            partitions: None,
        }
    }
}
