//! The way of checks to Redis: whatever waits when a call can be sent travels in it.
//!
//! Nothing waits for company. A check that finds no call on its way is one by itself, without a
//! detour. Another one is sent as soon as fewer calls are on their way than may be, with all that are
//! ready at the same moment. So the busier Redis is, the more is decided by one call, and what a call
//! costs is shared.

use std::future::Future;
use std::iter::{repeat, repeat_with};
use std::pin::pin;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::time;
use tokio::time::Instant;

use super::queue::{OwnedCheck, Queue, QueueEntry};
use super::waiters::{Waiter, Waiters};
use crate::decision::Answer;
use crate::error::Error;
use crate::store::redis::connection::{ConnectionHandle, ConnectionIndex};
use crate::store::redis::protocol::errors as error;
use crate::store::redis::protocol::{BatchEntry, EntryReply};
use crate::store::redis::redis_store::Shared;
use crate::store::refusal_cache::Sent;
use crate::store::requests::Check;

/// How many calls are on their way at once: one that Redis works on, and one that is written or read
/// meanwhile.
const CALLS: usize = 2;

/// The checks of one runtime that are on their way over one connection.
#[derive(Debug)]
pub(crate) struct Batcher {
    way: ConnectionIndex,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    queue: Queue,
    /// How many calls are on their way, or being made: so many tasks send them, or callers theirs.
    senders: usize,
    /// Whether one of them is about to take what waits.
    taking: bool,
}

impl Batcher {
    pub(crate) fn new(way: ConnectionIndex) -> Self {
        Self {
            way,
            state: Mutex::default(),
        }
    }

    /// Has a check sent with the next call.
    pub(crate) fn push(
        self: &Arc<Self>,
        store: &Arc<Shared>,
        runtime: &Handle,
        check: Check<'_>,
    ) -> oneshot::Receiver<Result<Answer, Error>> {
        let (answer, receiver) = oneshot::channel();
        let caller = Waiter::new(answer, Instant::now() + store.client.deadline);
        let mut state = self.lock();
        state.queue.push(check, caller);
        self.see_to_sender(state, store, runtime);
        receiver
    }

    /// Has one more task send calls, if that is wanted.
    fn see_to_sender(
        self: &Arc<Self>,
        mut state: MutexGuard<'_, State>,
        store: &Arc<Shared>,
        runtime: &Handle,
    ) {
        if state.taking || state.senders == CALLS || state.queue.is_empty() {
            return;
        }
        state.senders += 1;
        state.taking = true;
        // A runtime that is ending drops the task at once, which takes the lock.
        drop(state);
        let sender = BatchWorker {
            lane: Arc::clone(self),
            store: Arc::clone(store),
            has_ended: false,
        };
        runtime.spawn(sender.run());
    }

    /// The right to send a check by oneself, where nothing else is on its way.
    pub(crate) fn enter(
        self: &Arc<Self>,
        store: &Arc<Shared>,
        runtime: &Handle,
    ) -> Option<DirectSend> {
        let mut state = self.lock();
        let is_idle = state.senders == 0 && state.queue.is_empty();
        is_idle.then(|| {
            state.senders = 1;
            DirectSend {
                lane: Arc::clone(self),
                store: Arc::clone(store),
                runtime: runtime.clone(),
            }
        })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // It is whole between any two of its steps.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A caller who sends its own check. When that has been answered or given up, those that have come
/// meanwhile are seen to.
pub(crate) struct DirectSend {
    lane: Arc<Batcher>,
    store: Arc<Shared>,
    runtime: Handle,
}

impl DirectSend {
    /// The way that is to be taken.
    pub(crate) fn way(&self) -> ConnectionIndex {
        self.lane.way
    }
}

impl Drop for DirectSend {
    fn drop(&mut self) {
        let mut state = self.lane.lock();
        state.senders -= 1;
        self.lane.see_to_sender(state, &self.store, &self.runtime);
    }
}

/// A task that sends calls until nothing waits, or another one sees to it.
struct BatchWorker {
    lane: Arc<Batcher>,
    store: Arc<Shared>,
    has_ended: bool,
}

impl BatchWorker {
    async fn run(mut self) {
        while !self.has_ended {
            // Those that are ready to ask do so first: else they would be the next call's.
            tokio::task::yield_now().await;
            // Taken when they can be sent: who goes while there is no connection is not asked for.
            let Some(live) = self.connection().await else {
                self.end_if_idle();
                continue;
            };
            let entries = self.take();
            if !entries.is_empty() {
                self.send(&live, entries).await;
                self.take_next();
            }
        }
    }

    /// The connection, unless nobody waits for it any more: who does is told when it is late, or why
    /// there is none.
    async fn connection(&self) -> Option<ConnectionHandle> {
        let (client, way) = (&self.store.client, self.lane.way);
        if let Some(live) = client.get(way) {
            return Some(live);
        }
        let late = || client.late();
        let mut live = pin!(client.wait(way));
        loop {
            let deadline = {
                let mut state = self.lane.lock();
                state.queue.expire(Instant::now(), &late);
                state.queue.next_deadline()?
            };
            match time::timeout_at(deadline, live.as_mut()).await {
                Ok(Ok(live)) => return Some(live),
                Ok(Err(error)) => {
                    let waiting = std::mem::take(&mut self.lane.lock().queue);
                    waiting.fail(&error);
                    return None;
                }
                Err(_) => {}
            }
        }
    }

    /// Ends in the step that finds nothing.
    fn end_if_idle(&mut self) {
        let mut state = self.lane.lock();
        if state.queue.next_deadline().is_none() {
            // Those who wait no more need no call.
            state.queue = Queue::default();
            state.taking = false;
            state.senders -= 1;
            self.has_ended = true;
        }
    }

    /// Takes what fits into a call. Ends in the same step if there is nothing: what comes then finds
    /// one sender less.
    fn take(&mut self) -> Vec<QueueEntry> {
        let mut state = self.lane.lock();
        let entries = state.queue.take(&|| self.store.client.late());
        state.taking = false;
        if entries.is_empty() {
            state.senders -= 1;
            self.has_ended = true;
        }
        self.lane
            .see_to_sender(state, &self.store, &Handle::current());
        entries
    }

    /// Is the one who takes what waits next, or ends if another one is about to.
    fn take_next(&mut self) {
        let mut state = self.lane.lock();
        if state.taking {
            state.senders -= 1;
            self.has_ended = true;
        }
        state.taking = true;
    }

    /// Sends one call, and tells the callers what came of it.
    async fn send(&self, live: &ConnectionHandle, entries: Vec<QueueEntry>) {
        let Shared {
            client, denials, ..
        } = &*self.store;
        let (asked, mut callers): (Vec<OwnedCheck>, Vec<Waiters>) =
            entries.into_iter().map(QueueEntry::into_parts).unzip();
        let call: Vec<BatchEntry<'_>> = asked.iter().zip(&callers).map(entry).collect();
        let sent: Vec<Sent> = asked
            .iter()
            .map(|asked| denials.sending(asked.check()))
            .collect();
        let Some(outcome) = self.in_time(client.decide(live, &call), &mut callers).await else {
            return;
        };
        let asked_by = asked.iter().zip(callers);
        match outcome {
            Err(error) if error::is_cross_slot(&error) && asked_by.len() > 1 => {
                self.send_by_slot(asked_by);
            }
            Err(error) => {
                asked_by.for_each(|(_, callers)| callers.answer(repeat(Err(error.clone()))));
            }
            Ok(outcomes) => {
                for (((asked, callers), granted), sent) in asked_by.zip(outcomes).zip(sent) {
                    if let Some(last) = granted.as_ref().ok().and_then(EntryReply::last) {
                        denials.note(asked.check(), last, sent);
                    }
                    answer(callers, granted);
                }
            }
        }
    }

    /// Sends entries again that a cluster has not run, because their keys are in several slots.
    fn send_by_slot<'a>(&self, entries: impl Iterator<Item = (&'a OwnedCheck, Waiters)>) {
        let Self { store, .. } = self;
        let runtime = Handle::current();
        store.is_cluster.store(true, Ordering::Relaxed);
        for (asked, callers) in entries {
            let lane = store.lane(&runtime, asked.check().subject);
            let mut state = lane.lock();
            state.queue.push_entry(asked.clone(), callers);
            lane.see_to_sender(state, store, &runtime);
        }
    }

    /// Waits for a call, and tells each caller who is late.
    ///
    /// Until it is answered, or has been on its way for as long as a caller may wait, this sender
    /// sends no other one, though all of its callers may have gone: what is sent to a server that hangs
    /// is bounded so, and that it hangs is not overlooked.
    async fn in_time<T>(
        &self,
        call: impl Future<Output = T>,
        callers: &mut [Waiters],
    ) -> Option<T> {
        let late = || self.store.client.late();
        let given_up = Instant::now() + self.store.client.deadline;
        let mut call = pin!(call);
        // Who waits in the queue came later than the first of these.
        let mut of_queue = None;
        loop {
            let of_callers = callers.iter().filter_map(Waiters::next_deadline).min();
            let deadlines = [Some(given_up), of_callers, of_queue];
            let deadline = deadlines.into_iter().flatten().min()?;
            if let Ok(outcome) = time::timeout_at(deadline, call.as_mut()).await {
                return Some(outcome);
            }
            let now = Instant::now();
            for callers in &mut *callers {
                callers.expire(now, &late);
            }
            let mut state = self.lane.lock();
            state.queue.expire(now, &late);
            of_queue = state.queue.next_deadline();
            if now >= given_up {
                return None;
            }
        }
    }
}

fn entry<'a>((asked, callers): (&'a OwnedCheck, &Waiters)) -> BatchEntry<'a> {
    BatchEntry {
        check: asked.check(),
        count: u32::try_from(callers.len()).unwrap_or(u32::MAX),
    }
}

/// Those who came first are admitted; where not all are, the rest are refused alike.
fn answer(callers: Waiters, granted: Result<EntryReply, Error>) {
    match granted {
        Err(error) => callers.answer(repeat(Err(error))),
        Ok(EntryReply { admitted, refused }) => {
            let rest = refused.or_else(|| admitted.last().cloned());
            let rest = repeat_with(|| rest.clone());
            let all = admitted.into_iter().map(Some).chain(rest);
            callers.answer(all.map_while(|answer| answer.map(Ok)));
        }
    }
}

impl Drop for BatchWorker {
    /// Before its end, it is the runtime that ends: nobody will send what waits.
    fn drop(&mut self) {
        if self.has_ended {
            return;
        }
        let mut state = self.lane.lock();
        state.senders -= 1;
        state.taking = false;
        let never_sent = std::mem::take(&mut state.queue);
        drop(state);
        // Outside of the lock: it wakes those who wait.
        drop(never_sent);
    }
}
