//! The queue to one target, and its calls in flight.

use std::sync::{Mutex, MutexGuard, PoisonError};

use super::queue::Queue;
use crate::store::redis::connection::Connection;

/// The limit on calls in flight to one target: Redis works on one while the other is written or
/// read.
const MAX_IN_FLIGHT: usize = 2;

/// The checks of one runtime that are sent to one target.
pub(in crate::store::redis) struct Batcher {
    pub(super) connection: Connection,
    state: Mutex<BatcherState>,
}

#[derive(Default)]
pub(super) struct BatcherState {
    pub(super) queue: Queue,
    /// The calls in flight or in preparation. Each belongs to a worker or to a direct send.
    pub(super) in_flight: usize,
    /// Whether a worker is about to take checks from the queue.
    pub(super) is_taking: bool,
}

impl Batcher {
    pub(super) fn new(connection: Connection) -> Self {
        Self {
            connection,
            state: Mutex::default(),
        }
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, BatcherState> {
        // Consistent after a panic: each step leaves it so.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl BatcherState {
    pub(super) fn is_idle(&self) -> bool {
        self.in_flight == 0 && self.queue.is_empty()
    }

    /// Whether one more worker should take checks from the queue.
    pub(super) fn needs_worker(&self) -> bool {
        !self.is_taking && self.in_flight < MAX_IN_FLIGHT && !self.queue.is_empty()
    }
}
