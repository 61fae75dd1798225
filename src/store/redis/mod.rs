//! The store in Redis: one atomic Lua call for each check.
//!
//! The only folder that names `redis::`.

mod call;
mod connection;
mod error;
mod managed;
mod names;
mod script;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use ::redis::{Cmd, Value};
use tokio::runtime::Handle;

use super::{Answer, Check, Refund, Reset, Store, StoreFuture};
use crate::{ConfigError, Error, ErrorKind};
use call::Entry;
use connection::Connection;
use names::Prefix;
use script::{Script, Scripts};

/// How long a call may take unless told otherwise: a hundred times a call to a healthy server near
/// by, and little beside what people notice.
const DEFAULT_DEADLINE: Duration = Duration::from_millis(100);

/// Counts in Redis, exact over all processes that share it.
///
/// Each check is one call of one Lua script, which Redis runs as one step, on its own clock: the
/// clocks of the clients do not matter. Cloning is cheap; clones share a connection.
///
/// Runs on Redis 6.0 and later, and on Valkey.
///
/// # Connections
///
/// [`open`](Self::open) does not connect, so that a service starts while Redis is down: the first
/// check connects, and lost connections are made anew. One connection carries all checks of a tokio
/// runtime, interleaved; no pool is needed. A store may outlive the runtime that first used it.
///
/// Every call has a [`deadline`](Self::deadline). What may have been executed is never asked again,
/// so that nothing is charged twice.
///
/// # Keys
///
/// A count is stored under `prefix:v1:{limiter,key}:log:window`, in printable ASCII, with a TTL of
/// two windows and a second. All counts of a check are in one slot. Run Redis with
/// `maxmemory-policy noeviction`: where it evicts a key, that client gets a fresh quota.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use tollgate::{Quota, RateLimitLayer, RedisStore};
///
/// let store = RedisStore::open("redis://127.0.0.1:6379")?
///     .prefix("shop")
///     .deadline(Duration::from_millis(50));
/// let layer = RateLimitLayer::new(store, Quota::per_minute(100));
/// # Ok::<(), tollgate::ConfigError>(())
/// ```
#[derive(Clone)]
pub struct RedisStore {
    connection: Arc<Connection>,
    scripts: Arc<Scripts>,
    prefix: Prefix,
    deadline: Duration,
}

impl RedisStore {
    /// The store at a URL: `redis://[user][:password@]host[:port][/database]`, or
    /// `unix:///path/to/redis.sock`. Speaks RESP3 unless the URL says `?protocol=resp2`.
    ///
    /// # Errors
    ///
    /// When the URL is malformed. That the server is there is not looked at; see
    /// [`ping`](Self::ping).
    pub fn open(url: &str) -> Result<Self, ConfigError> {
        Ok(Self::on(Connection::open(url)?))
    }

    /// The store on a connection that the application already has: a
    /// [`ConnectionManager`](redis::aio::ConnectionManager), a
    /// [`MultiplexedConnection`](redis::aio::MultiplexedConnection), or any other of redis 1.x.
    ///
    /// It is cloned for each call. Its settings stay as they are, and whether it connects again
    /// when it is lost is its own business; the deadline holds all the same.
    #[cfg(feature = "redis-1")]
    #[cfg_attr(docsrs, doc(cfg(feature = "redis-1")))]
    pub fn with_connection<C>(connection: C) -> Self
    where
        C: redis::aio::ConnectionLike + Clone + Send + Sync + 'static,
    {
        Self::on(Connection::given(connection))
    }

    fn on(connection: Connection) -> Self {
        Self {
            connection: Arc::new(connection),
            scripts: Scripts::shared(),
            prefix: Prefix::default(),
            deadline: DEFAULT_DEADLINE,
        }
    }

    /// Puts `prefix` before every stored key, `tollgate` unless said otherwise: what keeps apart the
    /// services that share a server.
    #[must_use]
    pub fn prefix(mut self, prefix: &str) -> Self {
        self.prefix = Prefix::new(prefix);
        self
    }

    /// Bounds how long a call may take, connecting included: 100 ms unless said otherwise. A call
    /// that takes longer is an [`Error`] of kind [`ErrorKind::Timeout`].
    #[must_use]
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.deadline = deadline;
        self
    }

    /// Takes the time from another piece of Lua, which defines `now`: for this crate's own tests.
    #[cfg(feature = "test-util")]
    #[doc(hidden)]
    #[must_use]
    pub fn with_clock_source(mut self, clock: &str) -> Self {
        self.scripts = Arc::new(Scripts::with_clock(clock));
        self
    }

    /// Asks the server whether it is there.
    ///
    /// # Errors
    ///
    /// When it does not answer within the deadline, or answers an error.
    pub async fn ping(&self) -> Result<(), Error> {
        self.query(::redis::cmd("PING")).await.map(drop)
    }

    /// Runs a call of the script. Where the server does not know the script, which may be at any
    /// time, it has not run and is sent along.
    async fn run(&self, script: &Script, call: Cmd) -> Result<Value, Error> {
        let reply = self.send(call.clone()).await;
        let reply = match reply {
            Err(failure) if error::is_unknown_script(&failure) => {
                self.send(script.by_text(&call)).await
            }
            reply => reply,
        };
        reply.map_err(error::from_redis)
    }

    async fn query(&self, command: Cmd) -> Result<Value, Error> {
        let reply = self.within_deadline(self.send(command)).await?;
        reply.map_err(error::from_redis)
    }

    async fn send(&self, command: Cmd) -> ::redis::RedisResult<Value> {
        let reply = self.connection.send(command).await;
        if let Err(failure) = &reply
            && error::is_of_setup(failure)
        {
            self.connection.give_up();
        }
        reply
    }

    async fn within_deadline<T>(&self, call: impl Future<Output = T>) -> Result<T, Error> {
        if Handle::try_current().is_err() {
            return Err(Error::new(
                ErrorKind::Misconfigured,
                "a RedisStore can only be asked inside of a tokio runtime",
            ));
        }
        tokio::time::timeout(self.deadline, call)
            .await
            .map_err(|_| {
                Error::new(
                    ErrorKind::Timeout,
                    format!("Redis did not answer within {:?}", self.deadline),
                )
            })
    }
}

impl Store for RedisStore {
    fn check(&self, check: Check<'_>) -> StoreFuture<Answer> {
        let entry = Entry { check, count: 1 };
        let call = call::decide(&self.scripts.decide, &self.prefix, &[entry]);
        let (store, quotas, cost) = (self.clone(), check.quotas().clone(), check.cost());
        StoreFuture::boxed(async move {
            let reply = store
                .within_deadline(store.run(&store.scripts.decide, call))
                .await??;
            let asked = std::iter::once((&quotas, cost, 1));
            let granted = call::decode(reply, asked)?.into_iter().next();
            let granted = granted.unwrap_or_else(|| Err(call::unexpected("nothing")))?;
            let answer = granted.admitted.into_iter().next().or(granted.refused);
            answer.ok_or_else(|| call::unexpected("nothing"))
        })
    }

    fn reset(&self, reset: Reset<'_>) -> StoreFuture<()> {
        let mut command = ::redis::cmd("UNLINK");
        self.prefix.write_names(reset.subject, &mut command);
        let store = self.clone();
        StoreFuture::boxed(async move { store.query(command).await.map(drop) })
    }

    fn refund(&self, refund: Refund<'_>) -> StoreFuture<()> {
        let call = call::refund(&self.scripts.refund, &self.prefix, &refund);
        let store = self.clone();
        StoreFuture::boxed(async move {
            let run = store.run(&store.scripts.refund, call);
            store.within_deadline(run).await?.map(drop)
        })
    }
}

impl fmt::Debug for RedisStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            connection,
            scripts: _,
            prefix,
            deadline,
        } = self;
        f.debug_struct("RedisStore")
            .field("connection", connection)
            .field("prefix", &prefix.as_str())
            .field("deadline", deadline)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
#[path = "../../../tests/support/redis_server.rs"]
#[expect(dead_code, reason = "the tests of other folders use the rest")]
mod redis_server;
#[cfg(test)]
mod tests;
