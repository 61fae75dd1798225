//! The requests for rows of one kind that wait, and the task that asks the database for all of them.

use std::collections::VecDeque;
use std::mem;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::{Duration, Instant};

use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio::task::unconstrained;

use super::attempts::carry_out;
use super::batch::{Batch, RowKind};
use super::call::{Call, Operation};
use super::requests::{Request, RequestsFor, RowValue};
use super::rows::Rows;
use crate::error::{Error, ErrorKind};
use crate::lock::Mutex;
use crate::store::future::StoreFuture;
use crate::store::real_time::timeout;
use crate::telemetry::StoreMeter;

/// The most requests of a batch: the read rows of so many quiet keys take Postgres about 2 ms.
const MAX_BATCH: usize = 500;

/// How long the task stays without a request.
const IDLE: Duration = Duration::from_secs(1);

/// How long the task waits for a batch at least. Its callers give up at their deadline, but a connection that is only slow
/// is not worth replacing.
const MIN_PATIENCE: Duration = Duration::from_secs(1);

/// The time between two removals of expired rows, and the most calls of one removal.
const CLEAN_INTERVAL: Duration = Duration::from_secs(1);
const CLEAN_CALLS: usize = 50;

/// The rows of a store, which both of its queues ask.
pub(super) struct Database<R> {
    pub(super) rows: Arc<R>,
    patience: Duration,
    meter: StoreMeter,
    /// The runtime of the tasks: connections belong to the runtime that opened them.
    runtime: Mutex<Option<Handle>>,
    cleaned_at: Mutex<Option<Instant>>,
}

impl<R> Database<R> {
    pub(super) fn new(rows: Arc<R>, name: &str, deadline: Duration) -> Self {
        Self {
            rows,
            patience: deadline.max(MIN_PATIENCE),
            meter: StoreMeter::new(name),
            runtime: Mutex::new(Handle::try_current().ok()),
            cleaned_at: Mutex::default(),
        }
    }

    /// Returns the runtime in which the store was created, or else first used.
    fn runtime(&self) -> Result<Handle, Error> {
        let mut runtime = self.runtime.lock();
        if let Some(runtime) = &*runtime {
            return Ok(runtime.clone());
        }
        let text = "a store on rows needs a tokio runtime: call it inside one";
        let current =
            Handle::try_current().map_err(|_| Error::new(ErrorKind::Misconfigured, text))?;
        Ok(runtime.insert(current).clone())
    }

    /// Lets the next request choose another runtime than this one, which has ended.
    fn leave(&self, ended: &Handle) {
        let mut runtime = self.runtime.lock();
        if runtime.as_ref().is_some_and(|own| own.id() == ended.id()) {
            *runtime = None;
        }
    }

    fn is_cleaning_due(&self) -> bool {
        let now = Instant::now();
        let mut cleaned_at = self.cleaned_at.lock();
        let is_due = cleaned_at.is_none_or(|last| now >= last + CLEAN_INTERVAL);
        if is_due {
            *cleaned_at = Some(now);
        }
        is_due
    }
}

impl<R: Rows> Database<R> {
    async fn clean(&self) {
        for _ in 0..CLEAN_CALLS {
            if !self.rows.remove_expired().await.unwrap_or(false) {
                return;
            }
        }
    }
}

/// The queue of one kind of rows. One batch is under way at a time, so that the requests of a process do not lose rows to
/// each other.
pub(super) struct Queue<R, V> {
    database: Arc<Database<R>>,
    kind: RowKind,
    waiting: Mutex<Waiting<V>>,
    arrival: Notify,
    /// Held by a request for blocked keys of rows that answer at once, so that a reading from before a change does not replace
    /// the list of this process after it.
    turn: Mutex<()>,
}

struct Waiting<V> {
    requests: VecDeque<Box<dyn Request<V>>>,
    has_task: bool,
}

/// Ends with the task. If the task did not end on its own, its runtime has ended, or the rows have panicked. Then the next
/// request starts a task.
struct TaskGuard<R, V> {
    queue: Arc<Queue<R, V>>,
    runtime: Handle,
    has_ended: bool,
}

impl<R, V> Drop for TaskGuard<R, V> {
    fn drop(&mut self) {
        if self.has_ended {
            return;
        }
        if !thread::panicking() {
            self.queue.database.leave(&self.runtime);
        }
        let mut waiting = self.queue.waiting.lock();
        waiting.has_task = false;
        // Their callers get the error of a dropped task.
        let lost = mem::take(&mut waiting.requests);
        drop(waiting);
        drop(lost);
    }
}

impl<R: Rows, V: RowValue> Queue<R, V> {
    pub(super) fn new(database: &Arc<Database<R>>, kind: RowKind) -> Arc<Self> {
        Arc::new(Self {
            database: Arc::clone(database),
            kind,
            waiting: Mutex::new(Waiting {
                requests: VecDeque::new(),
                has_task: false,
            }),
            arrival: Notify::new(),
            turn: Mutex::default(),
        })
    }

    pub(super) fn ask<O: Operation<Value = V>>(
        self: &Arc<Self>,
        operation: O,
    ) -> StoreFuture<O::Answer> {
        let (caller, answer) = StoreFuture::channel();
        let call = Box::new(Call::new(operation, caller));
        if self.database.rows.answers_at_once() {
            self.carry_out_now(call);
            return match poll_once(answer) {
                Some(answer) => StoreFuture::ready(answer),
                None => StoreFuture::ready(Err(waits())),
            };
        }
        match self.push(call) {
            Ok(()) => answer,
            Err(error) => StoreFuture::ready(Err(error)),
        }
    }

    /// Adds a request. Fails outside a tokio runtime.
    fn push(self: &Arc<Self>, request: Box<dyn Request<V>>) -> Result<(), Error> {
        let runtime = self.database.runtime()?;
        let mut waiting = self.waiting.lock();
        waiting.requests.push_back(request);
        let has_task = mem::replace(&mut waiting.has_task, true);
        drop(waiting);
        if has_task {
            self.arrival.notify_one();
        } else {
            let guard = TaskGuard {
                queue: Arc::clone(self),
                runtime: runtime.clone(),
                has_ended: false,
            };
            drop(runtime.spawn(Self::run(guard)));
        }
        Ok(())
    }

    /// Asks the database until there has been no request for a while.
    async fn run(mut guard: TaskGuard<R, V>) {
        let queue = Arc::clone(&guard.queue);
        loop {
            let requests = queue.next_requests();
            if !requests.is_empty() {
                queue.carry_out_in_time(requests).await;
                continue;
            }
            let arrival = tokio::time::timeout(IDLE, queue.arrival.notified());
            if arrival.await.is_err() && queue.end() {
                guard.has_ended = true;
                if queue.kind == RowKind::Counts {
                    queue.database.rows.rest();
                }
                return;
            }
        }
    }

    fn next_requests(&self) -> Vec<Box<dyn Request<V>>> {
        let mut waiting = self.waiting.lock();
        let count = waiting.requests.len().min(MAX_BATCH);
        waiting.requests.drain(..count).collect()
    }

    /// Returns whether the task may end: no request has come meanwhile.
    fn end(&self) -> bool {
        let mut waiting = self.waiting.lock();
        waiting.has_task = !waiting.requests.is_empty();
        !waiting.has_task
    }

    async fn carry_out_in_time(&self, requests: Vec<Box<dyn Request<V>>>) {
        let Database {
            rows,
            patience,
            meter,
            ..
        } = &*self.database;
        let count = requests.len();
        let mut batch = Batch::new(RequestsFor::new(requests), self.kind);
        let in_time = timeout(*patience, carry_out(&**rows, &mut batch)).await;
        if in_time.is_none() {
            let text =
                "the database did not answer in time: the check may or may not have been charged";
            batch.fail(&Error::new(ErrorKind::Timeout, text));
        }
        if self.kind == RowKind::Counts {
            meter.record_batch(u32::try_from(count).unwrap_or(u32::MAX));
            meter.record_retries(batch.attempt());
            if self.database.is_cleaning_due() {
                let database = Arc::clone(&self.database);
                drop(tokio::spawn(async move { database.clean().await }));
            }
        }
    }

    /// Carries a request out on this thread, for rows that answer at once.
    fn carry_out_now(&self, request: Box<dyn Request<V>>) {
        let turn = (self.kind == RowKind::Blocks).then(|| self.turn.lock());
        let mut batch = Batch::new(RequestsFor::new(vec![request]), self.kind);
        if poll_once(carry_out(&*self.database.rows, &mut batch)).is_none() {
            batch.fail(&waits());
        }
        drop(turn);
        if self.kind == RowKind::Counts {
            self.database.meter.record_retries(batch.attempt());
            if self.database.is_cleaning_due() {
                let _ = poll_once(self.database.clean());
            }
        }
    }
}

fn waits() -> Error {
    let text = "`Rows::change` waits, although `answers_at_once` is true";
    Error::new(ErrorKind::Misconfigured, text)
}

fn poll_once<T>(future: impl Future<Output = T>) -> Option<T> {
    // Otherwise, a caller that has used up its turn in its runtime would make a ready future wait.
    let future = unconstrained(future);
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(value) => Some(value),
        Poll::Pending => None,
    }
}
