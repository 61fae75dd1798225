//! The store.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use sqlx::{Executor, PgPool, raw_sql};
use tollgate::store::{
    Adjust, Block, Check, CircuitBreaker, Counters, Holding, OwnedCheck, RefusalCache, Source,
    Store, StoreFuture, StoreId, StoreParts, Subject,
};
use tollgate::{Error, ErrorKind, Key};

use crate::blocks::Blocks;
use crate::doctor::examine;
use crate::error::{ended, failed};
use crate::names::Names;
use crate::queue::Queue;
use crate::request::Call;

/// How long a check waits by default: as for Redis, about a hundred times what Postgres takes.
const DEFAULT_DEADLINE: Duration = Duration::from_millis(100);

/// The most connections of the pool that [`PostgresStore::open`] creates. One asks for all checks; the others are for the
/// block list and for removing rows.
const POOL: u32 = 3;

/// A store in Postgres, which all processes of a service share.
///
/// Limits are exact for any number of processes, on the clock of the server. All waiting checks of a process are decided
/// together: one statement reads their rows, [`Counters`] decide, and one statement writes the rows that nobody else has
/// written meanwhile. What another process was faster to write is decided once more, under a lock. Refused checks write
/// nothing.
///
/// # Settings
///
/// Call the settings right after [`new`](Self::new) or [`open`](Self::open), before the store is cloned or given to a
/// limiter: each returns another store.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use tollgate::{Quota, RateLimiter};
/// use tollgate_postgres::PostgresStore;
///
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
/// let store = PostgresStore::open("postgres://shop:secret@127.0.0.1/shop")?
///     .schema("limits")
///     .deadline(Duration::from_millis(50));
/// // At deployment: store.migrate().await?;
/// let limiter = RateLimiter::new(store, Quota::per_minute(100));
/// # Ok::<(), tollgate::Error>(())
/// # }).unwrap();
/// ```
#[derive(Clone)]
pub struct PostgresStore {
    id: StoreId,
    queue: Arc<Queue>,
    blocks: Blocks,
    parts: StoreParts,
    deadline: Duration,
}

impl PostgresStore {
    /// Creates a store on a pool of connections.
    ///
    /// While there are checks, the store keeps one connection of the pool, however many checks there are. It takes others
    /// for a moment: once a second to remove expired rows and to read the blocked keys. So the pool needs at least two. It
    /// may lead to a pooler such as `PgBouncer`, in transaction mode too.
    #[must_use]
    pub fn new(pool: PgPool) -> Self {
        Self::build(pool, Names::default(), DEFAULT_DEADLINE)
    }

    /// Creates a store with a pool of its own for a URL such as `postgres://user:password@host:5432/database`. Connects at
    /// the first check.
    ///
    /// For a URL with `sslmode=require`, enable a TLS feature of sqlx 0.8 in your own `Cargo.toml`, for example
    /// `tls-rustls-ring-webpki`.
    ///
    /// # Errors
    ///
    /// Returns an error of kind [`ErrorKind::Misconfigured`] if the URL is malformed. The text has no part of the URL.
    pub fn open(url: &str) -> Result<Self, Error> {
        // The error of sqlx may show a part of the password.
        let parsed = is_unambiguous(url).then(|| url.parse::<PgConnectOptions>().ok());
        let options = parsed.flatten().ok_or_else(|| {
            let text = "malformed URL: write postgres://user:password@host:5432/database, and percent-encode what is no \
                        letter or digit";
            Error::new(ErrorKind::Misconfigured, text)
        })?;
        // PgBouncer refuses the setting that sqlx would send, and nothing here is a float.
        let options = options.extra_float_digits(None);
        // Without an age, the pool needs no task, and so no runtime yet.
        let pool = PgPoolOptions::new()
            .max_connections(POOL)
            .max_lifetime(None);
        let pool = pool.idle_timeout(None);
        Ok(Self::new(pool.connect_lazy_with(options)))
    }

    fn build(pool: PgPool, names: Names, deadline: Duration) -> Self {
        let queue = Queue::new(pool, names, deadline);
        let blocks = Blocks::new(Arc::clone(&queue));
        let mut parts = StoreParts::default();
        parts.block_list = blocks.list();
        let probed = Arc::clone(&queue);
        let probe = move || probed.spawn(ping(Arc::clone(&probed)));
        let circuit_breaker = CircuitBreaker::new().name("postgres").deadline(deadline);
        parts.circuit_breaker = circuit_breaker.probed_by(probe);
        parts.refusal_cache = Some(RefusalCache::new());
        parts.supports_leases = true;
        Self {
            id: StoreId::unique(),
            queue,
            blocks,
            parts,
            deadline,
        }
    }

    fn with(&self, change: impl FnOnce(&mut Names)) -> Self {
        let mut names = self.queue.names().clone();
        change(&mut names);
        Self::build(self.queue.pool().clone(), names, self.deadline)
    }

    /// Sets the schema of the tables and functions. The default is `public`. [`migrate`](Self::migrate) creates another one
    /// if it is missing.
    #[must_use]
    pub fn schema(self, schema: &str) -> Self {
        self.with(|names| schema.clone_into(&mut names.schema))
    }

    /// Sets the beginning of the names of tables and functions. The default is `tollgate`: the tables are
    /// `tollgate_counts` and `tollgate_blocks`.
    ///
    /// Give each service that shares a schema its own prefix. Otherwise, limiters of the same name in two services share
    /// their counts.
    #[must_use]
    pub fn prefix(self, prefix: &str) -> Self {
        self.with(|names| prefix.clone_into(&mut names.prefix))
    }

    /// Makes [`migrate`](Self::migrate) create a table of counts that a crash of the server does not empty.
    ///
    /// The default is an `UNLOGGED` table: it costs no WAL and no wait for the disk, but after a crash of the server (not
    /// after a restart) and after a failover, all limits begin anew. To change a table that exists, run
    /// `ALTER TABLE tollgate_counts SET LOGGED`.
    #[must_use]
    pub fn logged(self) -> Self {
        self.with(|names| names.is_logged = true)
    }

    /// Sets how long a check waits for the store. The default is 100 ms.
    #[must_use]
    pub fn deadline(self, deadline: Duration) -> Self {
        Self::build(
            self.queue.pool().clone(),
            self.queue.names().clone(),
            deadline,
        )
    }

    /// Returns the SQL that [`migrate`](Self::migrate) runs, for your own tool of migrations.
    ///
    /// The user of the service needs the right to `SELECT`, `INSERT`, `UPDATE` and `DELETE` in both tables, and no other.
    #[must_use]
    pub fn sql(&self) -> String {
        self.queue.names().sql()
    }

    /// Creates the tables and functions that are missing. Call it at deployment, or whenever the service starts.
    ///
    /// Processes that call it together wait for each other.
    ///
    /// # Errors
    ///
    /// Returns an error if Postgres cannot be reached, or if the user must not create tables.
    pub async fn migrate(&self) -> Result<(), Error> {
        let migrated = self.queue.pool().execute(raw_sql(&self.sql())).await;
        migrated.map(drop).map_err(failed)
    }

    /// Verifies that the server answers, and that it has the tables and functions.
    ///
    /// # Errors
    ///
    /// Returns an error if Postgres cannot be reached, or if [`migrate`](Self::migrate) has not run.
    pub async fn ping(&self) -> Result<(), Error> {
        ping(Arc::clone(&self.queue)).await
    }

    /// Examines the server. Returns a line for each topic, which begins with `ok` or `warning`.
    ///
    /// # Errors
    ///
    /// Returns an error if Postgres cannot be reached, or if [`migrate`](Self::migrate) has not run.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// # async fn example(store: tollgate_postgres::PostgresStore) -> Result<(), tollgate::Error> {
    /// // warning  transactions: one is open for 4711 s: until it ends, …
    /// println!("{}", store.doctor().await?.join("\n"));
    /// # Ok(())
    /// # }
    /// ```
    pub async fn doctor(&self) -> Result<Vec<String>, Error> {
        examine(self.queue.pool(), self.queue.names()).await
    }

    /// Sends a request that changes or reads the counters of its keys.
    fn ask<'a, T: Send + 'static>(
        &self,
        keys: impl IntoIterator<Item = (&'a Key, &'a Key)>,
        run: impl FnMut(&mut [Counters], u64) -> (T, bool) + Send + 'static,
    ) -> StoreFuture<T> {
        let (call, answer) = Call::new(keys, run);
        if let Err(error) = self.queue.push(Box::new(call)) {
            return StoreFuture::ready(Err(error));
        }
        StoreFuture::boxed(async move { answer.await.unwrap_or_else(|_| Err(ended())) })
    }
}

impl Store for PostgresStore {
    fn id(&self) -> StoreId {
        self.id
    }

    fn check(&self, checks: &[Check<'_>]) -> StoreFuture {
        if let Err(error) = Check::verify_distinct(checks) {
            return StoreFuture::ready(Err(error));
        }
        let keys = checks.iter().map(|check| (check.limiter, check.key));
        let owned: Vec<_> = checks.iter().map(Check::owned).collect();
        self.ask(keys, move |counters, now| {
            let checks: Vec<_> = owned.iter().map(OwnedCheck::check).collect();
            let decided = Counters::decide(counters, &checks, Source::Other, now);
            (decided.answers, decided.is_changed)
        })
    }

    fn adjust(&self, adjust: Adjust<'_>) -> StoreFuture<()> {
        let owned = adjust.owned();
        self.ask([(adjust.limiter, adjust.key)], move |counters, now| {
            for counters in counters {
                counters.adjust(owned.adjust(), now);
            }
            ((), true)
        })
    }

    fn block(&self, block: Block<'_>) -> StoreFuture<bool> {
        self.blocks.block(block)
    }

    fn refresh_blocks(&self, _: Duration) -> StoreFuture<()> {
        self.blocks.refresh()
    }

    fn holders(&self, subject: Subject<'_>) -> StoreFuture<Vec<Holding>> {
        self.ask([(subject.limiter, subject.key)], |counters, now| {
            let holders = counters
                .iter_mut()
                .flat_map(|counters| counters.holders(now));
            (holders.collect(), false)
        })
    }

    fn parts(&self) -> StoreParts {
        self.parts.clone()
    }
}

async fn ping(queue: Arc<Queue>) -> Result<(), Error> {
    let sql = queue.names().read([]);
    let pinged = queue.pool().execute(raw_sql(&sql)).await;
    pinged.map(drop).map_err(failed)
}

/// Whether a URL has its user and password where sqlx looks for them. Otherwise they would be the name of a database, which the
/// server shows in its errors: in `postgres:/user:password@host`, or with a `/` in the password.
fn is_unambiguous(url: &str) -> bool {
    let Some((_, behind)) = url.split_once("://") else {
        return false;
    };
    let authority = behind.split(['/', '?', '#']).next().unwrap_or_default();
    let rest = behind.get(authority.len()..).unwrap_or_default();
    !rest.contains(['@', '#']) && !url.trim().contains(char::is_control)
}

impl fmt::Debug for PostgresStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PostgresStore")
            .field("names", self.queue.names())
            .field("deadline", &self.deadline)
            .finish_non_exhaustive()
    }
}
