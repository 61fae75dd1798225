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
use crate::store::future::{Answerer, StoreFuture};
use crate::store::redis::client::{Client, current_runtime};
use crate::store::redis::protocol::{BatchEntry, errors as error};
use crate::store::redis::real_time::timeout_at;
use crate::store::redis::topology::Topology;
use crate::store::redis::transport::{Line, Route};
use crate::store::requests::{Check, Subject};

/// The limit on calls in flight to one target: Redis works on one while the other is written or
/// read.
pub(in crate::store::redis) const MAX_IN_FLIGHT: usize = 2;

/// The batchers of one runtime. Each sends to one target: a server; on a cluster, a slot.
pub(in crate::store::redis) struct Batchers {
    client: Client,
    topology: Topology,
    runtime: Handle,
    /// The checks of all keys, unless Redis is a cluster.
    of_all: Arc<Batcher>,
    /// A cluster refuses a call with keys of several slots. There are at most 16 384.
    by_slot: Mutex<HashMap<u16, Arc<Batcher>>>,
}

/// The checks of one runtime that are sent to one target.
struct Batcher {
    /// Has a slot on a cluster that was opened as one.
    route: Route,
    /// Whether the checks are of one slot.
    is_of_slot: bool,
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
        let route = Route::new(client.transport(&runtime), None);
        Arc::new(Self {
            client,
            topology,
            runtime,
            of_all: Arc::new(Batcher::new(route, false)),
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
        let (answer, future) = StoreFuture::channel();
        let mut state = batcher.lock();
        if state.in_flight == 0 {
            state.in_flight = 1;
            drop(state);
            let direct = DirectSend {
                batchers: Arc::clone(self),
                batcher: Arc::clone(batcher),
                since: Instant::now(),
            };
            return future.driving(direct.run(owned(levels), answer));
        }
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
        } else {
            Arc::clone(&self.of_all)
        }
    }

    fn by_slot(&self, slot: u16) -> Arc<Batcher> {
        let mut batchers = self.by_slot.lock().unwrap_or_else(PoisonError::into_inner);
        let batcher = batchers.entry(slot).or_insert_with(|| {
            // A cluster behind one address finds the server of a slot by itself.
            let is_cluster = self.client.deployment.is_cluster();
            let route = self.of_all.route.to_slot(is_cluster.then_some(slot));
            Arc::new(Batcher::new(route, true))
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
            self.runtime.spawn(worker.run());
        }
    }
}

impl Batcher {
    fn new(route: Route, is_of_slot: bool) -> Self {
        Self {
            route,
            is_of_slot,
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
    /// The time of the check.
    since: Instant,
}

impl DirectSend {
    async fn run(self, levels: OwnedLevels, answerer: Answerer<Answers>) {
        let Batchers {
            client, topology, ..
        } = &*self.batchers;
        let route = match self.route() {
            Ok(route) => route,
            Err(error) => return answerer.answer(Err(error)),
        };
        let until = self.since + client.deadline;
        let late_error = |sent_at| client.late_error(&route, self.since, sent_at);
        let line = match route.reserve(until).await {
            Ok(line) => line,
            Err(failure) => {
                return answerer.answer(Err(client.unsent(&route, self.since, failure)));
            }
        };
        let sent_at = Instant::now();
        if sent_at + client.reply_margin(&route) >= until {
            return answerer.answer(Err(late_error(None)));
        }
        if answerer.is_abandoned() {
            return;
        }
        let entries = [BatchEntry::only(&levels)];
        let mut decided = pin!(client.decide(&route, line, &entries));
        let Some(decided) = timeout_at(until, decided.as_mut()).await else {
            answerer.answer(Err(late_error(Some(sent_at))));
            // The call has a whole deadline, also for a caller that waited for a line.
            let _ = decided.await;
            return;
        };
        let answers = decided.and_then(|replies| {
            let answers = replies
                .into_iter()
                .next()
                .transpose()?
                .into_iter()
                .flatten()
                .next();
            answers.ok_or_else(|| error::malformed_reply("no answer", &route.server()))
        });
        answerer.answer(answers.map_err(|error| topology.explain(error, &client.names, &levels)));
    }

    /// Returns the way of the batcher, unless the caller is polled on another runtime than the one that its check was
    /// made on: that runtime, and the connection with it, may have ended.
    fn route(&self) -> Result<Route, Error> {
        let (current, route) = (current_runtime()?, &self.batcher.route);
        if current.id() == self.batchers.runtime.id() {
            return Ok(route.clone());
        }
        Ok(route.over(self.batchers.client.transport(&current)))
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
            let Some(line) = self.reserve().await else {
                self.end_if_idle();
                continue;
            };
            let entries = self.take();
            if !entries.is_empty() {
                self.send(line, entries).await;
                self.continue_unless_replaced();
            }
        }
    }

    /// Returns the error of a queued check that was made at `since` and has reached its deadline.
    fn late_error(&self, since: Instant) -> Error {
        let client = &self.batchers.client;
        client.late_error(&self.batcher.route, since, None)
    }

    /// Waits for a line, for as long as checks wait for it. Checks that reach their deadline fail meanwhile, and all of
    /// them fail with the attempt to connect.
    async fn reserve(&self) -> Option<Line> {
        let Batcher { route, .. } = &*self.batcher;
        if let Some(line) = route.try_reserve() {
            return Some(line);
        }
        let client = &self.batchers.client;
        let late_error = |since| self.late_error(since);
        let mut reserved = pin!(route.reserve(Instant::now() + client.deadline));
        loop {
            let deadline = {
                let mut state = self.batcher.lock();
                state.queue.expire(Instant::now(), &late_error);
                state.queue.next_deadline()?
            };
            match timeout_at(deadline, reserved.as_mut()).await {
                Some(Ok(line)) => return Some(line),
                // The time of the first check is over. Later ones wait for their own.
                Some(Err(failure)) if failure.is_late() => return None,
                Some(Err(failure)) => {
                    let queue = std::mem::take(&mut self.batcher.lock().queue);
                    queue.fail(&client.unsent(route, Instant::now(), failure));
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
        let margin = self.batchers.client.reply_margin(&self.batcher.route);
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
    async fn send(&self, line: Line, mut entries: Vec<QueueEntry>) {
        let (call, mut waiters): (Vec<BatchEntry<'_>>, Vec<&mut Waiters>) =
            entries.iter_mut().map(QueueEntry::parts_mut).unzip();
        let client = &self.batchers.client;
        let decided = client.decide(&self.batcher.route, line, &call);
        match self.expiring(decided, &mut waiters).await {
            // The batcher of a slot has sent no keys of others: the same call would fail again.
            Err(error)
                if error::is_cross_slot(&error)
                    && waiters.len() > 1
                    && !self.batcher.is_of_slot =>
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

    /// Waits for a call, and fails each waiter that reaches its deadline: of the call, and in the queue.
    ///
    /// The call is awaited to its end even if all of its waiters have gone. Until then this worker sends no other call.
    /// That bounds what is sent to a server that hangs.
    async fn expiring<T>(&self, call: impl Future<Output = T>, waiters: &mut [&mut Waiters]) -> T {
        let Batchers { client, .. } = &*self.batchers;
        let sent_at = Instant::now();
        let late_error = |since| client.late_error(&self.batcher.route, since, Some(sent_at));
        let mut call = pin!(call);
        // Queued checks came later than the first of these waiters.
        let mut queue_deadline = None;
        loop {
            let waiting = waiters.iter().filter_map(|waiters| waiters.next_deadline());
            let deadline = waiting.chain(queue_deadline).min();
            // Checks may join the queue meanwhile.
            let deadline = deadline.unwrap_or_else(|| Instant::now() + client.deadline);
            if let Some(outcome) = timeout_at(deadline, call.as_mut()).await {
                return outcome;
            }
            let now = Instant::now();
            for waiters in &mut *waiters {
                waiters.expire(now, &late_error);
            }
            let mut state = self.batcher.lock();
            state.queue.expire(now, &|since| self.late_error(since));
            queue_deadline = state.queue.next_deadline();
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
