//! How messages about slots are sent: by tasks of the table, not of a caller, so that a caller that goes away loses none.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use tokio::runtime::{Handle, Id};
use tokio::sync::oneshot;
use tokio::time::timeout;

use super::message::{Message, Reply, Slots};
use super::permit::Ticket;
use super::state::Waiter;
use super::table::PermitTable;
use crate::decision::Answers;
use crate::error::{Error, ErrorKind};
use crate::key::Fingerprint;
use crate::store::{Check, OwnedChecks, ProtectedStore, StoreFuture, to_owned};

/// A check that wants slots.
#[derive(Clone, Copy)]
pub(in crate::limiter) struct SlotRequest<'a> {
    pub(in crate::limiter) store: &'a ProtectedStore,
    pub(in crate::limiter) checks: &'a [Check<'a>],
    /// The slots that each of them wants, at most those of its quotas.
    pub(in crate::limiter) slots: &'a [u32],
    /// The names of their limiters.
    pub(in crate::limiter) names: &'a [Arc<str>],
    /// How long the check is repeated after a refusal. `None` if it is not.
    pub(in crate::limiter) max_wait: Option<Duration>,
    /// The most checks that wait for a key. Others are not repeated.
    pub(in crate::limiter) line: Option<usize>,
}

impl PermitTable {
    /// Asks the store for slots, and for the units of the same checks. The ticket is the permit if they are admitted.
    pub(in crate::limiter) fn check(
        self: &Arc<Self>,
        request: SlotRequest<'_>,
    ) -> (Ticket, StoreFuture) {
        let (answer, receiver) = oneshot::channel();
        let slots = in_flight(request.checks, request.slots);
        let ids: Vec<_> = slots.iter().map(|(_, id, _)| *id).collect();
        let mut state = self.lock();
        let now = self.clock.now();
        let waits_until = request
            .max_wait
            .map(|wait| now.saturating_add(crate::clock::micros(wait)));
        let waiter = Waiter {
            store: request.store.clone(),
            checks: to_owned(request.checks),
            slots,
            waits_until,
            wait: None,
            answer,
        };
        let meters = state.meters(request.checks, request.names);
        let ticket = self.add(&mut state, waiter, &meters, request.line, now);
        let message = self.next_message(&mut state, ids, now);
        drop(state);
        let ticket = Ticket::new(Arc::clone(self), ticket);
        self.send(message, request.store.is_in_process());
        (ticket, StoreFuture::waiting(receiver))
    }

    /// Holds slots without the store, if `decide` admits them by what this process holds. The store learns it later.
    pub(in crate::limiter) fn hold(
        self: &Arc<Self>,
        store: &ProtectedStore,
        checks: &[Check<'_>],
        slots: &[u32],
        names: &[Arc<str>],
        decide: impl FnOnce(&[Check<'_>]) -> Option<Answers>,
    ) -> Option<(Option<Ticket>, Answers)> {
        let slots = in_flight(checks, slots);
        let mut state = self.lock();
        let now = self.clock.now();
        let meters = state.meters(checks, names);
        let holdings = self.holdings(&mut state, store, checks, &slots, &meters, now);
        let mut checks = checks.to_vec();
        for (check, holding) in checks.iter_mut().zip(&holdings) {
            check.holding = holding.as_ref();
        }
        // Under the lock, so that no two checks see the same slot free.
        let mut answers = decide(&checks)?;
        state.suggest_waits(&slots, &checks, &mut answers);
        let ticket = answers
            .are_admitted()
            .then(|| state.grant_locally(&slots, now));
        drop(state);
        self.wait_for_timers(None);
        let ticket = ticket.map(|ticket| Ticket::new(Arc::clone(self), ticket));
        Some((ticket, answers))
    }

    /// Sends what is due about these keys.
    pub(super) fn send_due(self: &Arc<Self>, ids: impl IntoIterator<Item = Fingerprint>) {
        let mut state = self.lock();
        let now = self.clock.now();
        let message = self.next_message(&mut state, ids, now);
        drop(state);
        let is_in_process = message.as_ref().is_some_and(Message::is_in_process);
        self.send(message, is_in_process);
    }

    /// Sends a message, and has a task wait for the timers.
    fn send(self: &Arc<Self>, message: Option<Message>, is_in_process: bool) {
        if let Some(message) = message {
            if is_in_process {
                // A store in memory answers at once.
                Run::new(self, message, None).now();
            } else {
                self.spawn(None, |runtime| Run::new(self, message, runtime).in_task());
            }
        }
        self.wait_for_timers(None);
    }

    /// Spawns a task on the current runtime, or on another one on which checks were made, but not on one that has ended.
    /// Without a runtime, the task is dropped.
    fn spawn<F: Future<Output = ()> + Send + 'static>(
        &self,
        ended: Option<Id>,
        task: impl FnOnce(Option<Id>) -> F,
    ) {
        let runtime = {
            let mut state = self.lock();
            let current = Handle::try_current().ok();
            if let Some(current) = current.filter(|current| !state.knows(current)) {
                state.runtimes.push(current);
            }
            state.runtimes.retain(|runtime| Some(runtime.id()) != ended);
            let current = Handle::try_current().ok();
            let current = current.filter(|current| Some(current.id()) != ended);
            current.or_else(|| state.runtimes.last().cloned())
        };
        let task = task(runtime.as_ref().map(Handle::id));
        if let Some(runtime) = runtime {
            runtime.spawn(task);
        }
    }

    /// Spawns the task that waits for the timers, unless there is one or there are no timers.
    fn wait_for_timers(self: &Arc<Self>, ended: Option<Id>) {
        {
            let mut state = self.lock();
            let Some(next) = state.next_timer() else {
                return;
            };
            match state.waits_for {
                Some(waits_for) if waits_for <= next => return,
                Some(_) => {
                    state.waits_for = Some(next);
                    drop(state);
                    self.timers_changed.notify_one();
                    return;
                }
                None => {}
            }
            let current = Handle::try_current().ok();
            let mut runtimes = state.runtimes.iter().chain(&current);
            if !runtimes.any(|runtime| Some(runtime.id()) != ended) {
                return;
            }
            state.waits_for = Some(next);
        }
        let table = Arc::clone(self);
        self.spawn(ended, |runtime| Timers { table, runtime }.run());
    }
}

/// A task that sends what is due by a timer. If its runtime ends, another one takes over.
struct Timers {
    table: Arc<PermitTable>,
    runtime: Option<Id>,
}

impl Timers {
    async fn run(self) {
        loop {
            for message in self.due() {
                let is_in_process = message.is_in_process();
                let run = Run::new(&self.table, message, self.runtime);
                if is_in_process {
                    run.now();
                } else {
                    tokio::spawn(run.in_task());
                }
            }
            let Some(next) = self.next() else { return };
            // Whichever comes first.
            let _ = timeout(next, self.table.timers_changed.notified()).await;
        }
    }
}

impl Timers {
    /// Returns the messages that are due.
    fn due(&self) -> Vec<Message> {
        let mut state = self.table.lock();
        let now = self.table.clock.now();
        let due = state.take_due(now).into_iter();
        due.filter_map(|id| self.table.next_message(&mut state, [id], now))
            .collect()
    }

    /// Returns the time until the next timer. Without one, the task ends.
    fn next(&self) -> Option<Duration> {
        let mut state = self.table.lock();
        let next = state.next_timer();
        state.waits_for = next;
        let left = next?.saturating_sub(self.table.clock.now());
        Some(Duration::from_micros(left))
    }
}

impl Drop for Timers {
    fn drop(&mut self) {
        let mut state = self.table.lock();
        if state.waits_for.take().is_some() {
            drop(state);
            self.table.wait_for_timers(self.runtime);
        }
    }
}

/// The message that is under way. Without a reply, its keys may hold slots in the store that nobody has.
struct Run {
    table: Arc<PermitTable>,
    message: Option<Message>,
    runtime: Option<Id>,
}

impl Run {
    fn new(table: &Arc<PermitTable>, message: Message, runtime: Option<Id>) -> Self {
        Self {
            table: Arc::clone(table),
            message: Some(message),
            runtime,
        }
    }

    /// Sends the message, and those that follow it, to a store that answers at once.
    fn now(mut self) {
        while let Some(message) = &self.message {
            let replies = message.ask().into_iter().map(|reply| {
                let reply = reply.try_ready();
                reply.unwrap_or_else(|_| {
                    Err(Error::new(
                        ErrorKind::Unsupported,
                        "a store in this process has to answer at once",
                    ))
                })
            });
            let replies = replies.collect();
            self.complete(replies);
        }
    }

    /// Sends the message, and those that follow it.
    async fn in_task(mut self) {
        while let Some(message) = &self.message {
            let replies = all(message.ask()).await;
            self.complete(replies);
        }
        self.table.wait_for_timers(None);
    }

    /// Takes in the replies. The next message about the same keys follows.
    fn complete(&mut self, replies: Vec<Reply>) {
        let Some(message) = self.message.take() else {
            return;
        };
        let mut state = self.table.lock();
        let now = self.table.clock.now();
        let ids = self.table.complete(&mut state, message, replies, now);
        self.message = self.table.next_message(&mut state, ids, now);
    }
}

impl Drop for Run {
    /// Gives the message up if the runtime ends.
    fn drop(&mut self) {
        if let Some(message) = self.message.take() {
            let mut state = self.table.lock();
            let now = self.table.clock.now();
            self.table.complete(&mut state, message, Vec::new(), now);
            drop(state);
            self.table.wait_for_timers(self.runtime);
        }
    }
}

impl Message {
    fn is_in_process(&self) -> bool {
        self.parts.iter().all(|part| part.store.is_in_process())
    }

    /// Asks the store about each part.
    fn ask(&self) -> Vec<StoreFuture> {
        let ask = |store: &ProtectedStore, checks: &OwnedChecks| {
            let checks: Vec<_> = checks.iter().map(|check| check.check()).collect();
            store.ask_uncached(&checks)
        };
        let parts = self.parts.iter();
        parts.map(|part| ask(&part.store, &part.checks)).collect()
    }
}

/// Returns the slots that checks want of their keys.
fn in_flight(checks: &[Check<'_>], slots: &[u32]) -> Slots {
    let levels = checks.iter().zip(slots).enumerate();
    let in_flight = levels.filter(|(_, (check, _))| check.quotas.min_slots().is_some());
    in_flight
        .map(|(level, (check, slots))| (level, check.counted_key().fingerprint(), *slots))
        .collect()
}

/// Waits for all of these futures at once.
async fn all(futures: Vec<StoreFuture>) -> Vec<Reply> {
    let mut pending: Vec<_> = futures
        .into_iter()
        .map(|future| (Some(future), None))
        .collect();
    poll_fn(|cx| {
        let mut are_ready = true;
        for (future, reply) in &mut pending {
            if let Some(polled) = future {
                match Pin::new(polled).poll(cx) {
                    Poll::Ready(ready) => (*future, *reply) = (None, Some(ready)),
                    Poll::Pending => are_ready = false,
                }
            }
        }
        if are_ready {
            Poll::Ready(())
        } else {
            Poll::Pending
        }
    })
    .await;
    pending.into_iter().filter_map(|(_, reply)| reply).collect()
}
