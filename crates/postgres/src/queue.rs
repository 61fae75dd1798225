//! The requests that wait, and the task that asks Postgres for all of them.

use std::collections::VecDeque;
use std::mem;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use sqlx::pool::PoolConnection;
use sqlx::{Executor, PgPool, Postgres, raw_sql};
use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio::time::{Instant, timeout};
use tollgate::store::{self, StoreFuture};
use tollgate::{Error, ErrorKind};

use crate::batch::{self, Mode};
use crate::error::{ended, failed, timed_out};
use crate::names::Names;
use crate::request::Request;

/// The most requests of a batch: the read rows of so many quiet keys take Postgres about 2 ms.
const MAX_BATCH: usize = 500;

/// How long the task keeps its connection without a request.
const IDLE: Duration = Duration::from_secs(1);

/// How long the task waits for a batch at least. Its callers give up at their deadline, but a connection that is only
/// slow is not worth replacing.
const MIN_PATIENCE: Duration = Duration::from_secs(1);

/// The time between two removals of expired rows, and the most rows of one statement, so that none takes long.
const CLEAN_INTERVAL: Duration = Duration::from_secs(1);
const CLEAN_ROWS: u32 = 1_000;

/// The most statements of one removal.
const CLEAN_STATEMENTS: usize = 50;

/// The queue of one store. One batch is under way at a time, so that the requests of a process do not lose rows to each
/// other.
pub(crate) struct Queue {
    pool: PgPool,
    names: Names,
    patience: Duration,
    waiting: Mutex<Waiting>,
    arrival: Notify,
}

#[derive(Default)]
struct Waiting {
    requests: VecDeque<Box<dyn Request>>,
    runtime: Option<Handle>,
    has_task: bool,
    cleaned_at: Option<Instant>,
}

/// Ends with the task. If the task did not end on its own, its runtime did: then the next request starts one on another.
struct TaskGuard {
    queue: Arc<Queue>,
    has_ended: bool,
}

impl Drop for TaskGuard {
    fn drop(&mut self) {
        if !self.has_ended {
            let mut waiting = self.queue.waiting();
            waiting.has_task = false;
            waiting.runtime = None;
            // Their callers learn that nobody answers.
            let lost = mem::take(&mut waiting.requests);
            drop(waiting);
            drop(lost);
        }
    }
}

impl Queue {
    pub(crate) fn new(pool: PgPool, names: Names, deadline: Duration) -> Arc<Self> {
        let waiting = Waiting {
            runtime: Handle::try_current().ok(),
            ..Waiting::default()
        };
        Arc::new(Self {
            pool,
            names,
            patience: deadline.max(MIN_PATIENCE),
            waiting: Mutex::new(waiting),
            arrival: Notify::new(),
        })
    }

    pub(crate) fn pool(&self) -> &PgPool {
        &self.pool
    }

    pub(crate) fn names(&self) -> &Names {
        &self.names
    }

    /// Adds a request. Fails outside a tokio runtime.
    pub(crate) fn push(self: &Arc<Self>, request: Box<dyn Request>) -> Result<(), Error> {
        let runtime = self.runtime()?;
        let mut waiting = self.waiting();
        waiting.requests.push_back(request);
        let has_task = mem::replace(&mut waiting.has_task, true);
        drop(waiting);
        if has_task {
            self.arrival.notify_one();
        } else {
            let guard = TaskGuard {
                queue: Arc::clone(self),
                has_ended: false,
            };
            drop(runtime.spawn(Self::run(guard)));
        }
        Ok(())
    }

    /// Runs a future with the pool, where its connections live.
    pub(crate) fn spawn<T: Send + 'static>(
        &self,
        future: impl Future<Output = Result<T, Error>> + Send + 'static,
    ) -> StoreFuture<T> {
        match self.runtime() {
            Err(error) => StoreFuture::ready(Err(error)),
            Ok(runtime) => {
                let task = runtime.spawn(future);
                StoreFuture::boxed(async move { task.await.unwrap_or_else(|_| Err(ended())) })
            }
        }
    }

    /// Returns the runtime of the task. A connection belongs to the runtime that opened it, so that all of the pool are
    /// used on one: where the store was created, or else first used.
    fn runtime(&self) -> Result<Handle, Error> {
        let mut waiting = self.waiting();
        if let Some(runtime) = &waiting.runtime {
            return Ok(runtime.clone());
        }
        let runtime = Handle::try_current().map_err(|_| {
            Error::new(
                ErrorKind::Misconfigured,
                "a Postgres store needs a tokio runtime: call it inside one",
            )
        })?;
        Ok(waiting.runtime.insert(runtime).clone())
    }

    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        // Consistent after a panic: each step leaves it so.
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks Postgres until there has been no request for a while.
    async fn run(mut guard: TaskGuard) {
        let queue = Arc::clone(&guard.queue);
        let mut connection = None;
        loop {
            let mut requests = queue.next_batch();
            if requests.is_empty() {
                if timeout(IDLE, queue.arrival.notified()).await.is_err() && queue.end() {
                    guard.has_ended = true;
                    return;
                }
                continue;
            }
            let batch = queue.ask(&mut connection, &mut requests);
            let outcome = store::timeout(queue.patience, batch).await;
            if let Err(error) = outcome.unwrap_or_else(|| Err(timed_out())) {
                // A transaction may be open, or a reply be under way.
                if let Some(mut broken) = connection.take() {
                    PoolConnection::close_on_drop(&mut broken);
                }
                requests
                    .drain(..)
                    .for_each(|request| request.finish(Err(error.clone())));
            }
            queue.clean_if_due();
        }
    }

    /// Takes the requests of the next batch, without those whose callers have given up.
    fn next_batch(&self) -> Vec<Box<dyn Request>> {
        let mut waiting = self.waiting();
        let mut batch = Vec::new();
        while batch.len() < MAX_BATCH
            && let Some(request) = waiting.requests.pop_front()
        {
            if !request.is_abandoned() {
                batch.push(request);
            }
        }
        batch
    }

    /// Returns whether the task may end: no request has come meanwhile.
    fn end(&self) -> bool {
        let mut waiting = self.waiting();
        waiting.has_task = !waiting.requests.is_empty();
        !waiting.has_task
    }

    /// Decides the requests: without a lock first, and under locks those that have lost.
    async fn ask(
        &self,
        connection: &mut Option<PoolConnection<Postgres>>,
        requests: &mut Vec<Box<dyn Request>>,
    ) -> Result<(), Error> {
        let connection = match connection {
            Some(connection) => connection,
            None => connection.insert(self.pool.acquire().await.map_err(failed)?),
        };
        batch::run(&self.names, connection, requests, Mode::Optimistic).await?;
        if !requests.is_empty() {
            batch::run(&self.names, connection, requests, Mode::Locked).await?;
        }
        Ok(())
    }

    /// Starts a removal of expired rows, on another connection.
    fn clean_if_due(self: &Arc<Self>) {
        let now = Instant::now();
        let mut waiting = self.waiting();
        let is_due = waiting
            .cleaned_at
            .is_none_or(|last| now >= last + CLEAN_INTERVAL);
        if is_due {
            waiting.cleaned_at = Some(now);
            let queue = Arc::clone(self);
            drop(tokio::spawn(async move { queue.clean().await }));
        }
    }

    /// Removes expired rows. After an error, the next removal tries again.
    async fn clean(&self) {
        let sql = self.names.clean(CLEAN_ROWS);
        for _ in 0..CLEAN_STATEMENTS {
            let removed = self.pool.fetch_one(raw_sql(&sql)).await;
            let removed = removed.and_then(|row| sqlx::Row::try_get::<i64, _>(&row, 0));
            if removed.is_ok_and(|removed| removed == i64::from(CLEAN_ROWS)) {
                continue;
            }
            return;
        }
    }
}
