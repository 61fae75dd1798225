//! The batchers of one runtime: each sends a check on its own, or queues it for the next call.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::queue::Queue;
use super::waiters::Waiter;
use super::worker::spawn_worker;
use crate::decision::Answer;
use crate::error::Error;
use crate::store::future::StoreFuture;
use crate::store::redis::client::Client;
use crate::store::redis::connection::{Connection, PerConnection};
use crate::store::redis::topology::Topology;
use crate::store::requests::{Check, OwnedCheck, Subject};

/// The limit on calls in flight to one target: Redis works on one while the other is written or
/// read.
const MAX_IN_FLIGHT: usize = 2;

/// The batchers of one runtime. Each sends to one target: a connection; on a cluster, a slot.
pub(in crate::store::redis) struct Batchers {
    pub(super) client: Client,
    pub(super) topology: Topology,
    pub(super) runtime: Handle,
    by_connection: PerConnection<Arc<Batcher>>,
    /// A cluster refuses a call with keys of several slots. There are at most 16 384.
    by_slot: Mutex<HashMap<u16, Arc<Batcher>>>,
}

/// The checks of one runtime that are sent to one target.
pub(super) struct Batcher {
    pub(super) connection: Connection,
    state: Mutex<BatcherState>,
}

#[derive(Default)]
pub(super) struct BatcherState {
    pub(super) queue: Queue,
    /// The calls in flight or in preparation. Each belongs to a worker or to a direct send. The queue is
    /// empty if there are none.
    pub(super) in_flight: usize,
    /// Whether a worker is about to take checks from the queue.
    pub(super) is_taking: bool,
}

impl Batchers {
    pub(in crate::store::redis) fn new(
        client: Client,
        topology: Topology,
        runtime: Handle,
    ) -> Arc<Self> {
        let connections = &client.connections;
        let by_connection = PerConnection::new(connections.count(), |index| {
            Arc::new(Batcher::new(connections.get(index, &runtime)))
        });
        Arc::new(Self {
            client,
            topology,
            runtime,
            by_connection,
            by_slot: Mutex::default(),
        })
    }

    /// Sends a check in a call of its own if no call to its target is in flight, else queues it.
    pub(in crate::store::redis) fn check(self: &Arc<Self>, check: Check<'_>) -> StoreFuture {
        let batcher = self.find(check.subject);
        let mut state = batcher.lock();
        if state.in_flight == 0 {
            state.in_flight = 1;
            drop(state);
            let direct = DirectSend {
                batchers: Arc::clone(self),
                batcher,
            };
            return StoreFuture::boxed(direct.send(OwnedCheck::from(check)));
        }
        let (answer, receiver) = oneshot::channel();
        let waiter = Waiter::new(answer, Instant::now() + self.client.deadline);
        state.queue.push(check, waiter);
        self.start_worker_if_needed(&batcher, state);
        StoreFuture::waiting(receiver)
    }

    /// Returns the batcher for the checks of a subject.
    pub(super) fn find(&self, subject: Subject<'_>) -> Arc<Batcher> {
        if self.topology.is_cluster() {
            self.by_slot(self.client.names.slot(subject))
        } else if let Some(only) = self.by_connection.only() {
            Arc::clone(only)
        } else {
            let index = self.client.connection_index(subject);
            Arc::clone(self.by_connection.get(index))
        }
    }

    fn by_slot(&self, slot: u16) -> Arc<Batcher> {
        let mut batchers = self.by_slot.lock().unwrap_or_else(PoisonError::into_inner);
        let batcher = batchers.entry(slot).or_insert_with(|| {
            let index = self.client.connections.index_for(slot.into());
            let batcher = self.by_connection.get(index);
            Arc::new(Batcher::new(batcher.connection.clone()))
        });
        Arc::clone(batcher)
    }

    /// Starts a worker if one more call may be sent and no other worker is about to send it.
    pub(super) fn start_worker_if_needed(
        self: &Arc<Self>,
        batcher: &Arc<Batcher>,
        mut state: MutexGuard<'_, BatcherState>,
    ) {
        if !state.is_taking && state.in_flight < MAX_IN_FLIGHT && !state.queue.is_empty() {
            state.in_flight += 1;
            state.is_taking = true;
            // A runtime that is shutting down drops the task at once, and that takes the lock.
            drop(state);
            spawn_worker(self, batcher);
        }
    }
}

impl Batcher {
    fn new(connection: Connection) -> Self {
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

/// A check in a call of its own. Counts as a call in flight. On drop, a worker takes over the checks that
/// were queued meanwhile.
struct DirectSend {
    batchers: Arc<Batchers>,
    batcher: Arc<Batcher>,
}

impl DirectSend {
    async fn send(self, check: OwnedCheck) -> Result<Answer, Error> {
        let client = &self.batchers.client;
        let decided = client.decide_alone(check.check(), self.connection());
        client.within_deadline(decided).await
    }

    /// Returns the connection of the batcher, unless the caller is polled on another runtime than
    /// the one that its check was made on: that runtime, and the connection with it, may have
    /// ended.
    fn connection(&self) -> Option<&Connection> {
        let current = Handle::try_current().ok()?;
        (current.id() == self.batchers.runtime.id()).then_some(&self.batcher.connection)
    }
}

impl Drop for DirectSend {
    fn drop(&mut self) {
        let mut state = self.batcher.lock();
        state.in_flight -= 1;
        self.batchers.start_worker_if_needed(&self.batcher, state);
    }
}
