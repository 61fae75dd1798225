//! The [`Rows`] trait.

use std::sync::Arc;

use super::batch::Batch;
use crate::error::Error;

/// Rows of bytes that processes change together: all that a database needs to be a store.
///
/// [`StoreOn`](super::StoreOn) makes a [`Store`](crate::Store) of it. It has every rule: algorithms, refunds, slots in
/// flight, blocked keys, the deadline, the circuit breaker, the refusal cache. It passes many requests to one call, so
/// that a busy process sends few statements.
///
/// # Examples
///
/// Rows in the memory of the process. The example `own_store` in the repository keeps them in SQLite, and the package
/// `tollgate-postgres` in Postgres.
///
/// ```
/// use std::collections::HashMap;
/// use std::sync::{Mutex, PoisonError};
/// use std::time::{SystemTime, UNIX_EPOCH};
/// use tollgate::store::{Batch, Rows, StoreOn, Written};
/// use tollgate::{Error, Quota, RateLimiter};
///
/// #[derive(Default)]
/// struct InMemory(Mutex<HashMap<String, Vec<u8>>>);
///
/// impl Rows for InMemory {
///     async fn change(&self, batch: &mut Batch) -> Result<Written, Error> {
///         let mut rows = self.0.lock().unwrap_or_else(PoisonError::into_inner);
///         let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
///         let values = batch.names().map(|name| rows.get(name.as_str()).cloned()).collect();
///         for write in batch.decide(now.as_micros() as i64, values) {
///             match write.value {
///                 Some(value) => rows.insert(write.name.to_string(), value),
///                 None => rows.remove(write.name.as_str()),
///             };
///         }
///         Ok(Written::All)
///     }
///
///     fn answers_at_once(&self) -> bool {
///         true
///     }
/// }
///
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
/// let limiter = RateLimiter::new(StoreOn::new(InMemory::default()), Quota::per_day(2));
/// assert!(limiter.check_n("ada", 2).await?.is_allowed());
/// assert!(!limiter.check("ada").await?.is_allowed());
/// # Ok::<(), Error>(())
/// # }).unwrap();
/// ```
pub trait Rows: Send + Sync + 'static {
    /// Reads the [named](Batch::names) rows, lets the batch [decide](Batch::decide), and writes what it returns, in one
    /// transaction.
    ///
    /// - Between reading and writing, no other call may write these rows. Either lock them in the order of their names. Or
    ///   write only rows that are as they were read, and return the [groups](super::Write::group) of the others.
    /// - Read the time inside the transaction, after the locks, from one clock for all processes.
    /// - If nothing is to be written, do not write.
    ///
    /// One call may decide several times: the batch then forgets what it has decided before. The same requests may also come
    /// in a further call, which [`Batch::attempt`] tells. One call for counts and one for blocked keys are under way at a time,
    /// unless the rows [answer at once](Self::answers_at_once).
    ///
    /// # Errors
    ///
    /// An error before `decide` has returned a write has changed nothing. If it is of kind
    /// [`Unavailable`](crate::ErrorKind::Unavailable), the call is repeated once. After a write was returned, it is unknown
    /// whether the rows are written, and the callers get the error. If the database says that it wrote nothing, as after a
    /// deadlock, return [`Written::Nothing`] instead.
    fn change(&self, batch: &mut Batch) -> impl Future<Output = Result<Written, Error>> + Send;

    /// Removes some expired rows. Returns whether there may be more.
    ///
    /// Called about once a second while there are checks, beside [`change`](Self::change). The default does nothing, for a
    /// database that removes rows on its own, and for a `change` that does it in passing. An expired row that is read does no
    /// harm.
    ///
    /// # Errors
    ///
    /// An error ends this removal. The next one tries again.
    fn remove_expired(&self) -> impl Future<Output = Result<bool, Error>> + Send {
        async { Ok(false) }
    }

    /// Called when there has been no check for a second: a good time to return a connection to its pool.
    fn rest(&self) {}

    /// Returns whether [`change`](Self::change) never waits: its future is ready when it is first polled.
    ///
    /// Then each request is decided at once, on the thread of its caller, and threads call `change` at the same time. For a
    /// database in the process. The default is `false`.
    fn answers_at_once(&self) -> bool {
        false
    }
}

impl<R: Rows> Rows for Arc<R> {
    async fn change(&self, batch: &mut Batch) -> Result<Written, Error> {
        (**self).change(batch).await
    }

    async fn remove_expired(&self) -> Result<bool, Error> {
        (**self).remove_expired().await
    }

    fn rest(&self) {
        (**self).rest();
    }

    fn answers_at_once(&self) -> bool {
        (**self).answers_at_once()
    }
}

/// The extent to which a [change](Rows::change) has been written.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(
    clippy::exhaustive_enums,
    reason = "a database has written all, some or nothing"
)]
pub enum Written {
    /// Every row is written, or none was to be written.
    All,
    /// The rows of these [groups](super::Write::group) are not written, because another process wrote one of them meanwhile.
    /// Their requests are decided again. All other rows are written.
    Except(Vec<usize>),
    /// No row is written, because the database has rolled the transaction back. All requests are decided again.
    Nothing,
}
