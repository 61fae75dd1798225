//! The one sender of checks.
//!
//! Checks stand in a queue, one for each target. A turn is a task that takes as many as fit into a call and sends them. So no
//! call, and no line of a server, waits for a caller that does something else meanwhile.

use std::collections::HashMap;
use std::mem;
use std::pin::{Pin, pin};
use std::sync::{Arc, MutexGuard};
use std::time::{Duration, Instant};

use tokio::runtime::Handle;

use super::queue::{Queue, QueueEntry};
use super::waiters::{Waiter, Waiters};
use crate::decision::Answers;
use crate::error::{Act, Error};
use crate::lock::Mutex;
use crate::store::future::StoreFuture;
use crate::store::redis::client::Client;
use crate::store::redis::protocol::{BatchEntry, errors as error};
use crate::store::redis::real_time::{Deadline, Moment, RunningClock, RunningTime};
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
    for_all_keys: Arc<SendQueue>,
    /// A cluster refuses a call with keys of several slots. There are at most 16 384.
    by_slot: Mutex<HashMap<u16, Arc<SendQueue>>>,
}

/// The checks for one target: a server; on a cluster, a slot.
struct SendQueue {
    /// The way to the server. It has a slot on a cluster that was opened as one.
    route: Route,
    /// Whether the checks are of one slot.
    has_one_slot: bool,
    state: Mutex<SendState>,
}

struct SendState {
    /// Looked at once a step while a check waits.
    clock: RunningClock,
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
        let queue = SendQueue::new(route, false, client.deadline);
        Arc::new(Self {
            client,
            runtime,
            for_all_keys: Arc::new(queue),
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
        let (sender, future) = StoreFuture::channel();
        let mut state = queue.lock();
        let now = state.clock.look();
        state
            .queue
            .push(levels, Waiter::new(sender, now, self.client.deadline));
        self.start_turn_if_due(&queue, state);
        future
    }

    fn queue(&self, subject: Subject<'_>) -> Arc<SendQueue> {
        if !self.client.has_slots() {
            return Arc::clone(&self.for_all_keys);
        }
        let slot = self.client.names.slot(subject);
        let mut queues = self.by_slot.lock();
        let queue = queues.entry(slot).or_insert_with(|| {
            // A cluster behind one address finds the server of a slot on its own.
            let is_cluster = self.client.deployment.is_cluster();
            let route = self.for_all_keys.route.to_slot(is_cluster.then_some(slot));
            Arc::new(SendQueue::new(route, true, self.client.deadline))
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
            let turn = SendTurn {
                sender: Arc::clone(self),
                queue: Arc::clone(queue),
                is_over: false,
            };
            self.runtime.spawn(turn.run());
        }
    }

    fn late_error(
        &self,
        queue: &SendQueue,
        waiter: &Waiter,
        now: Moment,
        sent_at: Instant,
    ) -> Error {
        let late = now.late(waiter.since, waiter.deadline, self.client.deadline);
        self.client.late_error(&queue.route, late, Some(sent_at))
    }

    /// Returns the error of a check that was never sent and has reached its deadline. It has not failed, and gets one more
    /// deadline, if this process stood still for half of the first one.
    fn unsent_error(&self, queue: &SendQueue, waiter: &mut Waiter, now: Moment) -> Option<Error> {
        let deadline = self.client.deadline;
        let late = now.late(waiter.since, waiter.deadline, deadline);
        if late.is_standstill(deadline) && waiter.renew(now, deadline) {
            return None;
        }
        Some(self.client.late_error(&queue.route, late, None))
    }
}

impl SendState {
    fn look(&mut self) -> (Moment, Option<RunningTime>) {
        (self.clock.look(), self.queue.next_deadline())
    }
}

impl SendQueue {
    fn new(route: Route, has_one_slot: bool, deadline: Duration) -> Self {
        let state = SendState {
            clock: RunningClock::new(deadline),
            queue: Queue::default(),
            turns: 0,
            is_taking: false,
        };
        Self {
            route,
            has_one_slot,
            state: Mutex::new(state),
        }
    }

    fn lock(&self) -> MutexGuard<'_, SendState> {
        self.state.lock()
    }
}

/// The right to send the next call of a queue.
struct SendTurn {
    sender: Arc<Sender>,
    queue: Arc<SendQueue>,
    is_over: bool,
}

impl SendTurn {
    /// Sends calls until no check waits, or another turn takes over.
    async fn run(mut self) {
        while !self.is_over {
            // Lets tasks that are ready queue their checks first, else these would miss this call.
            tokio::task::yield_now().await;
            // Checks are taken once they can be sent. Those that are cancelled before are never
            // sent.
            let Some(line) = self.reserve().await else {
                self.end_if_idle();
                continue;
            };
            let (entries, now) = self.take();
            if !entries.is_empty() {
                self.send(line, entries, now).await;
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
        let (now, first) = queue.lock().look();
        let first = first?;
        let mut deadline = Deadline::new(sender.client.deadline);
        let reserved = pin!(queue.route.reserve(&mut deadline));
        match self
            .expiring(reserved, Awaited::Line, now, Some(first))
            .await
        {
            Ok(line) => Some(line),
            // The time of the first check is over. Later ones wait for their own.
            Err(failure) if failure.is_late() => None,
            Err(failure) => {
                let waiting = mem::take(&mut queue.lock().queue);
                waiting.fail(&sender.client.unsent(&queue.route, failure));
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
            self.is_over = true;
        }
    }

    /// Takes the checks that fit into one call, and the time at which they are taken. Ends if there are none, in the same
    /// step: a later check then finds one turn less.
    fn take(&mut self) -> (Vec<QueueEntry>, Moment) {
        let Self {
            sender,
            queue,
            is_over,
        } = self;
        let margin = sender.client.reply_margin(&queue.route);
        let mut state = queue.lock();
        let now = state.clock.look();
        let entries = state.queue.take(now.running.after(margin), &|waiter| {
            sender.unsent_error(queue, waiter, now)
        });
        state.is_taking = false;
        if entries.is_empty() {
            state.turns -= 1;
            *is_over = true;
        }
        sender.start_turn_if_due(queue, state);
        (entries, now)
    }

    /// Goes on to take the next checks, or ends if another turn is about to.
    fn continue_unless_replaced(&mut self) {
        let mut state = self.queue.lock();
        if state.is_taking {
            state.turns -= 1;
            self.is_over = true;
        }
        state.is_taking = true;
    }

    async fn send(&self, line: Line, mut entries: Vec<QueueEntry>, now: Moment) {
        let Sender { client, .. } = &*self.sender;
        let route = &self.queue.route;
        let (call, mut waiters): (Vec<BatchEntry<'_>>, Vec<&mut Waiters>) =
            entries.iter_mut().map(QueueEntry::parts_mut).unzip();
        client
            .meter
            .record_batch(call.iter().map(|entry| entry.count).sum());
        let awaited = Awaited::Reply(&mut waiters);
        let replies = self
            .expiring(pin!(client.decide(route, line, &call)), awaited, now, None)
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
        let now = self.queue.lock().clock.look();
        let is_final = entries.len() == 1 || self.queue.has_one_slot;
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
                entry.move_to(now, state.clock.look());
                state.queue.push_entry(entry);
                self.sender.start_turn_if_due(&queue, state);
            }
        }
    }

    /// Waits for a call or for its line, and fails each waiter that reaches its deadline: of the call, and in the queue, of
    /// which `queued` is the first. Before any of them fails, what the server has sent is read once.
    ///
    /// The call is awaited to its end even if all of its waiters have gone. Until then this turn sends no other call. That
    /// bounds what is sent to a server that hangs.
    async fn expiring<T>(
        &self,
        mut call: Pin<&mut impl Future<Output = T>>,
        mut awaited: Awaited<'_, '_>,
        mut now: Moment,
        mut queued: Option<RunningTime>,
    ) -> T {
        let sent_at = now.at;
        loop {
            let first = awaited.next_deadline().into_iter().chain(queued).min();
            let is_over = first.is_some_and(|first| first <= now.running);
            let outcome = if is_over {
                Deadline::last_read(call.as_mut()).await
            } else {
                now.wait(first, call.as_mut()).await
            };
            if let Some(outcome) = outcome {
                return outcome;
            }
            if is_over {
                self.fail_late(&mut awaited, now, sent_at);
            }
            (now, queued) = self.queue.lock().look();
        }
    }

    /// Fails the waiters past their deadline: of the call that was sent at `sent_at`, and in the queue.
    fn fail_late(&self, awaited: &mut Awaited<'_, '_>, now: Moment, sent_at: Instant) {
        let Self { sender, queue, .. } = self;
        awaited.expire(now.running, &|waiter| {
            Some(sender.late_error(queue, waiter, now, sent_at))
        });
        let expired = queue.lock().queue.expire(now.running, &|waiter| {
            sender.unsent_error(queue, waiter, now)
        });
        if let (Awaited::Line, Some(error)) = (awaited, expired) {
            // The server let no call through in this time. That counts once, however many checks it fails.
            sender.client.record(&queue.route, None, Err(&error));
        }
    }
}

/// The event that a turn waits for.
enum Awaited<'a, 'b> {
    Line,
    /// The reply to a call with the checks of these waiters.
    Reply(&'a mut [&'b mut Waiters]),
}

impl Awaited<'_, '_> {
    fn next_deadline(&self) -> Option<RunningTime> {
        match self {
            Self::Line => None,
            Self::Reply(waiters) => waiters
                .iter()
                .filter_map(|waiters| waiters.next_deadline())
                .min(),
        }
    }

    fn expire(&mut self, until: RunningTime, late_error: &impl Fn(&mut Waiter) -> Option<Error>) {
        if let Self::Reply(waiters) = self {
            for waiters in &mut **waiters {
                waiters.expire(until, late_error);
            }
        }
    }
}

impl Drop for SendTurn {
    fn drop(&mut self) {
        if self.is_over {
            return;
        }
        // The runtime of the sender is shutting down, and no other turn will send the queue.
        let mut state = self.queue.lock();
        state.turns -= 1;
        state.is_taking = false;
        let unsent = mem::take(&mut state.queue);
        drop(state);
        // Outside of the lock, because this wakes the waiters.
        drop(unsent);
    }
}
