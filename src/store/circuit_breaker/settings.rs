//! The settings of a circuit breaker.

use std::sync::Arc;
use std::time::Duration;

use crate::clock::Clock;
use crate::store::future::StoreFuture;
use crate::store::memory::DEFAULT_MAX_KEYS;
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
    /// Whether the store applies the deadline and records its calls itself.
    pub(super) recorded_by_store: bool,
    pub(super) fallback_keys: usize,
    /// Whether the store is the memory of this process.
    pub(super) is_in_process: bool,
    /// Asks the server while no check does.
    pub(super) probe: Option<Arc<Probe>>,
}

pub(super) type Probe = dyn Fn() -> StoreFuture<()> + Send + Sync;

impl Default for Settings {
    fn default() -> Self {
        Self {
            name: "other".into(),
            meter: StoreMeter::unnamed(),
            clock: Clock::monotonic(),
            deadline: DEFAULT_DEADLINE,
            recorded_by_store: false,
            fallback_keys: DEFAULT_MAX_KEYS,
            is_in_process: false,
            probe: None,
        }
    }
}
