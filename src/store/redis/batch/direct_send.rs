//! The direct send: a check in a call of its own, without the queue.

use std::sync::Arc;

use tokio::runtime::Handle;

use super::batcher::Batcher;
use super::batchers::Batchers;
use super::worker::start_worker_if_needed;
use crate::store::redis::connection::Connection;

/// The permit for a caller to send its own check. Counts as a call in flight. On drop, a worker
/// takes over the checks that were queued meanwhile.
pub(in crate::store::redis) struct DirectSend {
    batchers: Arc<Batchers>,
    batcher: Arc<Batcher>,
}

impl DirectSend {
    /// Returns a permit if the batcher is idle.
    pub(in crate::store::redis) fn start(
        batchers: &Arc<Batchers>,
        batcher: &Arc<Batcher>,
    ) -> Option<Self> {
        let mut state = batcher.lock();
        state.is_idle().then(|| {
            state.in_flight = 1;
            Self {
                batchers: Arc::clone(batchers),
                batcher: Arc::clone(batcher),
            }
        })
    }

    /// Returns the connection of the batcher, unless the caller is polled on another runtime than
    /// the one that its check was made on: that runtime, and the connection with it, may have
    /// ended.
    pub(in crate::store::redis) fn connection(&self) -> Option<&Connection> {
        let current = Handle::try_current().ok()?;
        (current.id() == self.batchers.runtime.id()).then_some(&self.batcher.connection)
    }
}

impl Drop for DirectSend {
    fn drop(&mut self) {
        let mut state = self.batcher.lock();
        state.in_flight -= 1;
        start_worker_if_needed(&self.batchers, &self.batcher, state);
    }
}
