//! The one sender of checks.
//!
//! Checks that wait stand in a queue, one for each target. A turn takes as many as fit into a call and sends them. A caller
//! that finds its queue without a turn, and a line that is free, drives the call of its own check: that saves the way to
//! another thread and back. Tasks do all else, so no check waits for a caller that may do something else meanwhile.

use std::collections::HashMap;
use std::mem;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use tokio::runtime::Handle;

use super::queue::{Queue, QueueEntry};
use super::waiters::{Waiter, Waiters};
use crate::decision::Answers;
use crate::error::{Act, Error};
use crate::store::future::StoreFuture;
use crate::store::redis::client::{Client, current_runtime};
use crate::store::redis::protocol::{BatchEntry, errors as error};
use crate::store::redis::real_time::timeout_at;
use crate::store::redis::transport::{Line, Route};
use crate::store::requests::{Check, Subject};

/// The limit on calls in flight to one target: Redis works on one while the other is written or
/// read.
pub(in crate::store::redis) const MAX_IN_FLIGHT: usize = 2;

/// The sender of one runtime.
pub(in crate::store::redis) struct Sender {
    client: Arc<Client>,
    runtime: Handle,
    /// The checks of all keys, unless Redis is a cluster.
    of_all: Arc<SendQueue>,
    /// A cluster refuses a call with keys of several slots. There are at most 16 384.
    by_slot: Mutex<HashMap<u16, Arc<SendQueue>>>,
}

/// The checks for one target: a server; on a cluster, a slot.
struct SendQueue {
    /// The way to the server. It has a slot on a cluster that was opened as one.
    route: Route,
    /// Whether the checks are of one slot.
    is_of_slot: bool,
    state: Mutex<SendState>,
}

#[derive(Default)]
struct SendState {
    /// Empty if there is no turn.
    queue: Queue,
    /// The turns that wait for a line, or whose call is in flight.
    turns: usize,
    /// Whether a turn is about to take checks from the queue.
    is_taking: bool,
}

impl Sender {
    pub(in crate::store::redis) fn new(client: Arc<Client>, runtime: Handle) -> Arc<Self> {
        let route = client.route_from(&runtime, None);
        Arc::new(Self {
            client,
            runtime,
            of_all: Arc::new(SendQueue::new(route, false)),
            by_slot: Mutex::default(),
        })
    }

    /// Decides checks together: in a call of their own if their queue has no turn, else with those that wait.
    pub(in crate::store::redis) fn check(self: &Arc<Self>, levels: &[Check<'_>]) -> StoreFuture {
        let Some(first) = levels.first() else {
            return StoreFuture::ready(Ok(Answers::default()));
        };
        let subjects = levels.iter().map(|level| level.subject);
        if self.client.has_slots() && self.client.names.are_in_several_slots(subjects) {
            return StoreFuture::ready(Err(error::several_slots()));
        }
        let queue = self.queue(first.subject);
        let (answerer, future) = StoreFuture::channel();
        let waiter = Waiter::new(answerer, self.client.deadline);
        let mut state = queue.lock();
        if state.turns == 0
            && let Some(line) = queue.route.try_reserve()
        {
            state.turns = 1;
            drop(state);
            let turn = Turn {
                sender: Arc::clone(self),
                queue,
                progress: Progress::Driven,
            };
            return future.driving(turn.drive(line, QueueEntry::new(levels, waiter)));
        }
        state.queue.push(levels, waiter);
        self.start_turn_if_due(&queue, state);
        future
    }

    /// Returns the queue for the checks of a key.
    fn queue(&self, subject: Subject<'_>) -> Arc<SendQueue> {
        if !self.client.has_slots() {
            return Arc::clone(&self.of_all);
        }
        let slot = self.client.names.slot(subject);
        let mut queues = self.by_slot.lock().unwrap_or_else(PoisonError::into_inner);
        let queue = queues.entry(slot).or_insert_with(|| {
            // A cluster behind one address finds the server of a slot on its own.
            let is_cluster = self.client.deployment.is_cluster();
            let route = self.of_all.route.to_slot(is_cluster.then_some(slot));
            Arc::new(SendQueue::new(route, true))
        });
        Arc::clone(queue)
    }

    /// Starts a turn if one more call may be sent and no other turn is about to send it.
    fn start_turn_if_due(
        self: &Arc<Self>,
        queue: &Arc<SendQueue>,
        mut state: MutexGuard<'_, SendState>,
    ) {
        if !state.is_taking && state.turns < MAX_IN_FLIGHT && !state.queue.is_empty() {
            state.turns += 1;
            state.is_taking = true;
            // A runtime that is shutting down drops the task at once, and that takes the lock.
            drop(state);
            let turn = Turn {
                sender: Arc::clone(self),
                queue: Arc::clone(queue),
                progress: Progress::InTask,
            };
            self.runtime.spawn(turn.run());
        }
    }

    /// Returns the error of a check of the time `since` that has reached its deadline before it was sent.
    fn late_error(&self, queue: &SendQueue, since: Instant) -> Error {
        self.client.late_error(&queue.route, since, None)
    }
}

impl SendQueue {
    fn new(route: Route, is_of_slot: bool) -> Self {
        Self {
            route,
            is_of_slot,
            state: Mutex::default(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, SendState> {
        // Consistent after a panic: each step leaves it so.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The right to send the next call of a queue.
struct Turn {
    sender: Arc<Sender>,
    queue: Arc<SendQueue>,
    progress: Progress,
}

#[derive(PartialEq, Eq)]
enum Progress {
    /// A caller sends its own check.
    Driven,
    /// A task sends checks of the queue.
    InTask,
    Ended,
}

impl Turn {
    /// Sends the check of the caller that drives this. A task sends what waits when this is dropped.
    async fn drive(self, line: Line, mut entry: QueueEntry) {
        let late_error = |since| self.sender.late_error(&self.queue, since);
        // The caller may have been away.
        if entry.is_waiting(Instant::now(), &late_error) {
            match self.line_from_here(line).await {
                Ok((route, line)) => self.send(&route, line, vec![entry]).await,
                Err(error) => entry.fail(&error),
            }
        }
    }

    /// Returns the line, or one from the current runtime: that of the sender, and its connections, may have ended.
    async fn line_from_here(&self, line: Line) -> Result<(Route, Line), Error> {
        let (Sender { client, .. }, route) = (&*self.sender, &self.queue.route);
        let current = current_runtime()?;
        if current.id() == self.sender.runtime.id() {
            return Ok((route.clone(), line));
        }
        let route = client.route_from(&current, route.slot);
        let line = client.begin(&route).await?;
        Ok((route, line))
    }

    /// Sends calls until no check waits, or another turn takes over.
    async fn run(mut self) {
        while self.progress != Progress::Ended {
            // Lets tasks that are ready queue their checks first, else these would miss this call.
            tokio::task::yield_now().await;
            // Checks are taken once they can be sent. Those that are cancelled before are never
            // sent.
            let Some(line) = self.reserve().await else {
                self.end_if_idle();
                continue;
            };
            let entries = self.take();
            if !entries.is_empty() {
                self.send(&self.queue.route, line, entries).await;
                self.continue_unless_replaced();
            }
        }
    }

    /// Waits for a line, if checks wait for it. Checks that reach their deadline fail meanwhile, and all of them fail with
    /// the attempt to connect.
    async fn reserve(&self) -> Option<Line> {
        let Self { sender, queue, .. } = self;
        if let Some(line) = queue.route.try_reserve() {
            return Some(line);
        }
        let first = queue.lock().queue.next_deadline()?;
        let reserved = pin!(queue.route.reserve(Instant::now() + sender.client.deadline));
        match self.expiring(reserved, &mut [], Some(first)).await {
            Ok(line) => Some(line),
            // The time of the first check is over. Later ones wait for their own.
            Err(failure) if failure.is_late() => None,
            Err(failure) => {
                let waiting = mem::take(&mut queue.lock().queue);
                waiting.fail(&sender.client.unsent(&queue.route, Instant::now(), failure));
                None
            }
        }
    }

    /// Ends if no check waits, in the same step: a later check then finds one turn less.
    fn end_if_idle(&mut self) {
        let mut state = self.queue.lock();
        if state.queue.next_deadline().is_none() {
            // The entries that are left have no waiters.
            state.queue = Queue::default();
            state.is_taking = false;
            state.turns -= 1;
            self.progress = Progress::Ended;
        }
    }

    /// Takes the checks that fit into one call. Ends if there are none, in the same step: a later
    /// check then finds one turn less.
    fn take(&mut self) -> Vec<QueueEntry> {
        let Self {
            sender,
            queue,
            progress,
        } = self;
        let late_error = |since| sender.late_error(queue, since);
        let until = Instant::now() + sender.client.reply_margin(&queue.route);
        let mut state = queue.lock();
        let entries = state.queue.take(until, &late_error);
        state.is_taking = false;
        if entries.is_empty() {
            state.turns -= 1;
            *progress = Progress::Ended;
        }
        sender.start_turn_if_due(queue, state);
        entries
    }

    /// Goes on to take the next checks, or ends if another turn is about to.
    fn continue_unless_replaced(&mut self) {
        let mut state = self.queue.lock();
        if state.is_taking {
            state.turns -= 1;
            self.progress = Progress::Ended;
        }
        state.is_taking = true;
    }

    /// Sends one call, and answers the waiters.
    async fn send(&self, route: &Route, line: Line, mut entries: Vec<QueueEntry>) {
        let client = &self.sender.client;
        let (call, mut waiters): (Vec<BatchEntry<'_>>, Vec<&mut Waiters>) =
            entries.iter_mut().map(QueueEntry::parts_mut).unzip();
        client
            .meter
            .record_batch(call.iter().map(|entry| entry.count).sum());
        // Queued checks came later than the first of these waiters.
        let replies = self
            .expiring(pin!(client.decide(route, line, &call)), &mut waiters, None)
            .await;
        match replies {
            Err(error) if error.act() == Act::SeveralSlots => self.divide(entries, &error),
            Err(error) => entries.iter_mut().for_each(|entry| entry.fail(&error)),
            Ok(replies) => {
                for (entry, reply) in entries.iter_mut().zip(replies) {
                    entry.answer(reply);
                }
            }
        }
    }

    /// Queues entries again that a cluster has not run, because their keys are in several slots: each queue sends its own
    /// at once. Fails those whose own levels are in several slots.
    ///
    /// If an entry was alone, or the queue has only sent keys of one slot, the same call would fail again: something in front
    /// of the server does not know hash tags, as the error says.
    fn divide(&self, entries: Vec<QueueEntry>, error: &Error) {
        let client = &self.sender.client;
        let is_final = entries.len() == 1 || self.queue.is_of_slot;
        for mut entry in entries {
            let mut subjects = entry.levels().iter().map(|level| level.check().subject);
            if client.names.are_in_several_slots(subjects.clone()) {
                client.deployment.learn_slots();
                entry.fail(&error::several_slots());
            } else if is_final {
                entry.fail(error);
            } else if let Some(first) = subjects.next() {
                client.deployment.learn_slots();
                let queue = self.sender.queue(first);
                let mut state = queue.lock();
                state.queue.push_entry(entry);
                self.sender.start_turn_if_due(&queue, state);
            }
        }
    }

    /// Waits for a call or for its line, and fails each waiter that reaches its deadline: of the call, and in the queue, of
    /// which `queue_deadline` is the first.
    ///
    /// The call is awaited to its end even if all of its waiters have gone. Until then this turn sends no other call. That
    /// bounds what is sent to a server that hangs.
    async fn expiring<T>(
        &self,
        mut call: Pin<&mut impl Future<Output = T>>,
        waiters: &mut [&mut Waiters],
        mut queue_deadline: Option<Instant>,
    ) -> T {
        let Self { sender, queue, .. } = self;
        let (client, sent_at) = (&sender.client, Instant::now());
        let late_error = |since| client.late_error(&queue.route, since, Some(sent_at));
        loop {
            let waiting = waiters.iter().filter_map(|waiters| waiters.next_deadline());
            let deadline = waiting.chain(queue_deadline).min();
            // Checks may join the queue meanwhile.
            let until = deadline.unwrap_or_else(|| Instant::now() + client.deadline);
            if let Some(outcome) = timeout_at(until, call.as_mut()).await {
                return outcome;
            }
            let now = Instant::now();
            for waiters in &mut *waiters {
                waiters.expire(now, &late_error);
            }
            let mut state = queue.lock();
            let late_error = |since| sender.late_error(queue, since);
            state.queue.expire(now, &late_error);
            queue_deadline = state.queue.next_deadline();
        }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let mut state = match self.progress {
            Progress::Ended => return,
            Progress::Driven | Progress::InTask => self.queue.lock(),
        };
        state.turns -= 1;
        if self.progress == Progress::Driven {
            // At its end, or because the caller has gone where no task can take over.
            return self.sender.start_turn_if_due(&self.queue, state);
        }
        // The runtime of the sender is shutting down, and no other turn will send the queue.
        state.is_taking = false;
        let unsent = mem::take(&mut state.queue);
        drop(state);
        // Outside of the lock, because this wakes the waiters.
        drop(unsent);
    }
}
