//! The batchers of one runtime: a check is sent on its own, or queued for the next call of a worker.
//!
//! Both count as calls in flight of one target, under one lock, so both are in one file.

use std::collections::HashMap;
use std::iter::repeat;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use tokio::runtime::Handle;

use super::queue::{OwnedLevels, Queue, QueueEntry, owned};
use super::waiters::{Waiter, Waiters};
use crate::decision::Answers;
use crate::error::Error;
use crate::store::future::StoreFuture;
use crate::store::redis::client::{Client, Progress};
use crate::store::redis::connection::{
    AcquiredConnection, Connection, PerConnection, noting_asked,
};
use crate::store::redis::protocol::{BatchEntry, errors as error};
use crate::store::redis::real_time::timeout_at;
use crate::store::redis::topology::Topology;
use crate::store::requests::{Check, Subject};

/// The limit on calls in flight to one target: Redis works on one while the other is written or
/// read.
pub(in crate::store::redis) const MAX_IN_FLIGHT: usize = 2;

/// The batchers of one runtime. Each sends to one target: a connection; on a cluster, a slot.
pub(in crate::store::redis) struct Batchers {
    client: Client,
    topology: Topology,
    runtime: Handle,
    by_connection: PerConnection<Arc<Batcher>>,
    /// A cluster refuses a call with keys of several slots. There are at most 16 384.
    by_slot: Mutex<HashMap<u16, Arc<Batcher>>>,
}

/// The checks of one runtime that are sent to one target.
struct Batcher {
    connection: Connection,
    /// The slot of the checks, on a cluster that was opened as one.
    slot: Option<u16>,
    state: Mutex<BatcherState>,
}

#[derive(Default)]
struct BatcherState {
    queue: Queue,
    /// The calls in flight or in preparation. Each belongs to a worker or to a direct send. The queue is
    /// empty if there are none.
    in_flight: usize,
    /// Whether a worker is about to take checks from the queue.
    is_taking: bool,
}

impl Batchers {
    pub(in crate::store::redis) fn new(
        client: Client,
        topology: Topology,
        runtime: Handle,
    ) -> Arc<Self> {
        let connections = &client.connections;
        let of_runtime = connections.of_runtime(&runtime);
        let by_connection = PerConnection::new(connections.count(), |index| {
            Arc::new(Batcher::new(of_runtime.get(index), None))
        });
        Arc::new(Self {
            client,
            topology,
            runtime,
            by_connection,
            by_slot: Mutex::default(),
        })
    }

    /// Decides checks together. Sends them in a call of their own if no call to their target is in flight, else queues
    /// them.
    pub(in crate::store::redis) fn check(self: &Arc<Self>, levels: &[Check<'_>]) -> StoreFuture {
        let Some(first) = levels.first() else {
            return StoreFuture::ready(Ok(Answers::default()));
        };
        if self.are_in_several_slots(levels.iter().map(|level| level.subject)) {
            return StoreFuture::ready(Err(error::several_slots()));
        }
        let batcher = &self.find(first.subject);
        let mut state = batcher.lock();
        if state.in_flight == 0 {
            state.in_flight = 1;
            drop(state);
            let direct = DirectSend {
                batchers: Arc::clone(self),
                batcher: Arc::clone(batcher),
            };
            return StoreFuture::boxed(direct.send(owned(levels)));
        }
        let (answer, future) = StoreFuture::channel();
        let waiter = Waiter::new(answer, self.client.deadline);
        state.queue.push(levels, waiter);
        self.start_worker_if_needed(batcher, state);
        future
    }

    /// Returns whether subjects are in several slots of a cluster.
    fn are_in_several_slots<'a>(&self, subjects: impl Iterator<Item = Subject<'a>>) -> bool {
        self.topology.is_cluster() && self.client.names.are_in_several_slots(subjects)
    }

    /// Returns the batcher for the checks of a key.
    fn find(&self, subject: Subject<'_>) -> Arc<Batcher> {
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
            Arc::new(Batcher::new(&batcher.connection, Some(slot)))
        });
        Arc::clone(batcher)
    }

    /// Starts a worker if one more call may be sent and no other worker is about to send it.
    fn start_worker_if_needed(
        self: &Arc<Self>,
        batcher: &Arc<Batcher>,
        mut state: MutexGuard<'_, BatcherState>,
    ) {
        if !state.is_taking && state.in_flight < MAX_IN_FLIGHT && !state.queue.is_empty() {
            state.in_flight += 1;
            state.is_taking = true;
            // A runtime that is shutting down drops the task at once, and that takes the lock.
            drop(state);
            let worker = BatchWorker {
                batchers: Arc::clone(self),
                batcher: Arc::clone(batcher),
                has_ended: false,
            };
            self.runtime.spawn(noting_asked(worker.run()));
        }
    }
}

impl Batcher {
    fn new(connection: &Connection, slot: Option<u16>) -> Self {
        Self {
            connection: connection.clone(),
            slot,
            state: Mutex::default(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, BatcherState> {
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
    async fn send(self, levels: OwnedLevels) -> Result<Answers, Error> {
        let Batchers {
            client, topology, ..
        } = &*self.batchers;
        let decided = client.decide_alone(&levels, self.connection()).await;
        decided.map_err(|error| topology.explain(error, &client.names, &levels))
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

/// A task that sends calls until the queue is empty or another worker takes over.
struct BatchWorker {
    batchers: Arc<Batchers>,
    batcher: Arc<Batcher>,
    has_ended: bool,
}

impl BatchWorker {
    async fn run(mut self) {
        while !self.has_ended {
            // Lets tasks that are ready queue their checks first, else these would miss this call.
            tokio::task::yield_now().await;
            // Checks are taken once they can be sent. Those that are cancelled before are never
            // sent.
            let Some(connection) = self.acquire_connection().await else {
                self.end_if_idle();
                continue;
            };
            let entries = self.take();
            if !entries.is_empty() {
                self.send(&connection, entries).await;
                self.continue_unless_replaced();
            }
        }
    }

    /// Returns the error of a queued check that was made at `since` and has reached its deadline.
    fn late_error(&self, since: Instant) -> Error {
        let Batcher {
            connection, slot, ..
        } = &*self.batcher;
        let client = &self.batchers.client;
        client.late_error(Progress::queued(since), connection, *slot)
    }

    /// Waits for the connection, and for a turn on it, for as long as checks wait for it. Checks that reach their
    /// deadline fail meanwhile, and all of them fail with the attempt to connect.
    async fn acquire_connection(&self) -> Option<AcquiredConnection> {
        let deadline = self.batchers.client.deadline;
        let Batcher {
            connection, slot, ..
        } = &*self.batcher;
        if let Some(acquired) = connection.try_acquire(deadline, *slot) {
            return Some(acquired);
        }
        let late_error = |since| self.late_error(since);
        let mut acquired = pin!(connection.acquire(deadline, *slot));
        loop {
            let deadline = {
                let mut state = self.batcher.lock();
                state.queue.expire(Instant::now(), &late_error);
                state.queue.next_deadline()?
            };
            match timeout_at(deadline, acquired.as_mut()).await {
                Some(Ok(acquired)) => return Some(acquired),
                Some(Err(error)) => {
                    let queue = std::mem::take(&mut self.batcher.lock().queue);
                    queue.fail(&error::from_connect(error));
                    return None;
                }
                None => {}
            }
        }
    }

    /// Ends if no check waits, in the same step: a later check then finds one call in flight less.
    fn end_if_idle(&mut self) {
        let mut state = self.batcher.lock();
        if state.queue.next_deadline().is_none() {
            // The entries that are left have no waiters.
            state.queue = Queue::default();
            state.is_taking = false;
            state.in_flight -= 1;
            self.has_ended = true;
        }
    }

    /// Takes the checks that fit into one call. Ends if there are none, in the same step: a later
    /// check then finds one call in flight less.
    fn take(&mut self) -> Vec<QueueEntry> {
        let Batcher {
            connection, slot, ..
        } = &*self.batcher;
        let margin = self.batchers.client.reply_margin(connection, *slot);
        let mut state = self.batcher.lock();
        let entries = state
            .queue
            .take(Instant::now() + margin, &|since| self.late_error(since));
        state.is_taking = false;
        if entries.is_empty() {
            state.in_flight -= 1;
            self.has_ended = true;
        }
        self.batchers.start_worker_if_needed(&self.batcher, state);
        entries
    }

    /// Goes on to take the next checks, or ends if another worker is about to.
    fn continue_unless_replaced(&mut self) {
        let mut state = self.batcher.lock();
        if state.is_taking {
            state.in_flight -= 1;
            self.has_ended = true;
        }
        state.is_taking = true;
    }

    /// Sends one call, and answers the waiters.
    async fn send(&self, connection: &AcquiredConnection, mut entries: Vec<QueueEntry>) {
        let (call, mut waiters): (Vec<BatchEntry<'_>>, Vec<&mut Waiters>) =
            entries.iter_mut().map(QueueEntry::parts_mut).unzip();
        let decided = self.batchers.client.decide(connection, &call);
        let Some(outcome) = self.within_deadlines(decided, &mut waiters).await else {
            return;
        };
        match outcome {
            // The batcher of a slot has sent no keys of others: the same call would fail again.
            Err(error)
                if error::is_cross_slot(&error)
                    && waiters.len() > 1
                    && self.batcher.slot.is_none() =>
            {
                self.requeue_by_slot(entries);
            }
            Err(error) if error::is_cross_slot(&error) => {
                let Batchers {
                    client, topology, ..
                } = &*self.batchers;
                for entry in entries {
                    let error = topology.explain(error.clone(), &client.names, entry.levels());
                    entry.fail(&error);
                }
            }
            Err(error) => {
                for waiters in waiters {
                    waiters.answer(repeat(Err(error.clone())));
                }
            }
            Ok(replies) => {
                for (waiters, reply) in waiters.into_iter().zip(replies) {
                    match reply {
                        Ok(answers) => waiters.answer(answers.into_iter().map(Ok)),
                        Err(error) => waiters.answer(repeat(Err(error))),
                    }
                }
            }
        }
    }

    /// Queues entries again that a cluster has not run, because their keys are in several slots. Fails those
    /// whose own levels are.
    fn requeue_by_slot(&self, entries: Vec<QueueEntry>) {
        self.batchers.topology.learn_cluster();
        for entry in entries {
            let mut subjects = entry.levels().iter().map(|level| level.check().subject);
            if self.batchers.are_in_several_slots(subjects.clone()) {
                entry.fail(&error::several_slots());
                continue;
            }
            let Some(first) = subjects.next() else {
                continue;
            };
            let batcher = self.batchers.find(first);
            let mut state = batcher.lock();
            state.queue.push_entry(entry);
            self.batchers.start_worker_if_needed(&batcher, state);
        }
    }

    /// Waits for a call, and fails each waiter that reaches its deadline.
    ///
    /// The call is awaited for a whole deadline even if all of its waiters have gone. Until then
    /// this worker sends no other call. That bounds what is sent to a server that hangs, and has
    /// the hang noticed.
    async fn within_deadlines<T>(
        &self,
        call: impl Future<Output = T>,
        waiters: &mut [&mut Waiters],
    ) -> Option<T> {
        let Batcher {
            connection, slot, ..
        } = &*self.batcher;
        let (client, sent_at) = (&self.batchers.client, Instant::now());
        let call_deadline = sent_at + client.deadline;
        let late_error =
            |since| client.late_error(Progress::sent_at(since, sent_at), connection, *slot);
        let mut call = pin!(call);
        // Queued checks came later than the first of these waiters.
        let mut queue_deadline = None;
        loop {
            let waiter_deadline = waiters
                .iter()
                .filter_map(|waiters| waiters.next_deadline())
                .min();
            let deadlines = [Some(call_deadline), waiter_deadline, queue_deadline];
            let deadline = deadlines.into_iter().flatten().min()?;
            if let Some(outcome) = timeout_at(deadline, call.as_mut()).await {
                return Some(outcome);
            }
            let now = Instant::now();
            for waiters in &mut *waiters {
                waiters.expire(now, &late_error);
            }
            let mut state = self.batcher.lock();
            state.queue.expire(now, &|since| self.late_error(since));
            queue_deadline = state.queue.next_deadline();
            if now >= call_deadline {
                return None;
            }
        }
    }
}

impl Drop for BatchWorker {
    /// Fails the queue if the worker is dropped before its end. Its runtime is shutting down then,
    /// and no other worker will send the queue.
    fn drop(&mut self) {
        if self.has_ended {
            return;
        }
        let mut state = self.batcher.lock();
        state.in_flight -= 1;
        state.is_taking = false;
        let unsent = std::mem::take(&mut state.queue);
        drop(state);
        // Outside of the lock, because this wakes the waiters.
        drop(unsent);
    }
}
