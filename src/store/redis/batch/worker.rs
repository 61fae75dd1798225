//! The workers, which send the checks of a queue in batches.

use std::future::Future;
use std::iter::{repeat, repeat_with};
use std::pin::pin;
use std::sync::Arc;

use tokio::time::{self, Instant};

use super::batcher::{Batcher, Batchers};
use super::queue::{Queue, QueueEntry};
use super::waiters::Waiters;
use crate::error::Error;
use crate::store::redis::connection::Acquired;
use crate::store::redis::protocol::{BatchEntry, EntryReply, errors as error};
use crate::store::requests::OwnedCheck;

/// Starts a worker, which was counted as a call in flight.
pub(super) fn spawn_worker(batchers: &Arc<Batchers>, batcher: &Arc<Batcher>) {
    let worker = BatchWorker {
        batchers: Arc::clone(batchers),
        batcher: Arc::clone(batcher),
        has_ended: false,
    };
    batchers.runtime.spawn(worker.run());
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

    /// Waits for the connection for as long as checks wait for it. Checks that reach their deadline
    /// fail meanwhile, and all of them fail with the attempt to connect.
    async fn acquire_connection(&self) -> Option<Acquired> {
        let (client, connection) = (&self.batchers.client, &self.batcher.connection);
        if let Some(acquired) = connection.try_acquire(client.deadline) {
            return Some(acquired);
        }
        let timeout_error = || client.timeout_error();
        let mut acquired = pin!(connection.acquire(client.deadline));
        loop {
            let deadline = {
                let mut state = self.batcher.lock();
                state.queue.expire(Instant::now(), &timeout_error);
                state.queue.next_deadline()?
            };
            match time::timeout_at(deadline, acquired.as_mut()).await {
                Ok(Ok(acquired)) => return Some(acquired),
                Ok(Err(error)) => {
                    let queue = std::mem::take(&mut self.batcher.lock().queue);
                    queue.fail(&error::from_redis(error));
                    return None;
                }
                Err(_) => {}
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
        let mut state = self.batcher.lock();
        let entries = state.queue.take(&|| self.batchers.client.timeout_error());
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
    async fn send(&self, connection: &Acquired, entries: Vec<QueueEntry>) {
        let (checks, mut waiters): (Vec<OwnedCheck>, Vec<Waiters>) =
            entries.into_iter().map(QueueEntry::into_parts).unzip();
        let call: Vec<BatchEntry<'_>> = checks.iter().zip(&waiters).map(batch_entry).collect();
        let decided = self.batchers.client.decide(connection, &call);
        let Some(outcome) = self.within_deadlines(decided, &mut waiters).await else {
            return;
        };
        let entries = checks.iter().zip(waiters);
        match outcome {
            Err(error) if error::is_cross_slot(&error) && entries.len() > 1 => {
                self.requeue_by_slot(entries);
            }
            Err(error) => {
                entries.for_each(|(_, waiters)| waiters.answer(repeat(Err(error.clone()))));
            }
            Ok(replies) => {
                for ((_, waiters), reply) in entries.zip(replies) {
                    answer(waiters, reply);
                }
            }
        }
    }

    /// Queues entries again that a cluster has not run, because their keys are in several slots.
    fn requeue_by_slot<'a>(&self, entries: impl Iterator<Item = (&'a OwnedCheck, Waiters)>) {
        self.batchers.topology.learn_cluster();
        for (check, waiters) in entries {
            let batcher = self.batchers.find(check.check().subject);
            let mut state = batcher.lock();
            state.queue.push_entry(check.clone(), waiters);
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
        waiters: &mut [Waiters],
    ) -> Option<T> {
        let timeout_error = || self.batchers.client.timeout_error();
        let call_deadline = Instant::now() + self.batchers.client.deadline;
        let mut call = pin!(call);
        // Queued checks came later than the first of these waiters.
        let mut queue_deadline = None;
        loop {
            let waiter_deadline = waiters.iter().filter_map(Waiters::next_deadline).min();
            let deadlines = [Some(call_deadline), waiter_deadline, queue_deadline];
            let deadline = deadlines.into_iter().flatten().min()?;
            if let Ok(outcome) = time::timeout_at(deadline, call.as_mut()).await {
                return Some(outcome);
            }
            let now = Instant::now();
            for waiters in &mut *waiters {
                waiters.expire(now, &timeout_error);
            }
            let mut state = self.batcher.lock();
            state.queue.expire(now, &timeout_error);
            queue_deadline = state.queue.next_deadline();
            if now >= call_deadline {
                return None;
            }
        }
    }
}

fn batch_entry<'a>((check, waiters): (&'a OwnedCheck, &Waiters)) -> BatchEntry<'a> {
    BatchEntry {
        check: check.check(),
        count: u32::try_from(waiters.len()).unwrap_or(u32::MAX),
    }
}

/// Answers the waiters of an entry: the first ones are admitted, the others get the same refusal.
fn answer(waiters: Waiters, reply: Result<EntryReply, Error>) {
    match reply {
        Err(error) => waiters.answer(repeat(Err(error))),
        Ok(EntryReply { admitted, refused }) => {
            let rest = refused.or_else(|| admitted.last().cloned());
            let rest = repeat_with(|| rest.clone());
            let all = admitted.into_iter().map(Some).chain(rest);
            waiters.answer(all.map_while(|answer| answer.map(Ok)));
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
