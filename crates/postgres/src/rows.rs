//! The rows in Postgres.

use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::sync::{Mutex, PoisonError};

use sqlx::postgres::{PgConnectOptions, PgConnection, PgPoolOptions};
use sqlx::{Executor, PgPool, Row as _, raw_sql};
use tollgate::store::{Batch, Rows, StoreOn, Written};
use tollgate::{Error, ErrorKind};

use crate::connection::OwnConnection;
use crate::doctor::examine;
use crate::error::{failed, is_rolled_back, malformed, not_locked};
use crate::names::{Names, TableNames};

/// The most rows of one removal, so that none takes long.
const CLEAN_ROWS: u32 = 1_000;

/// The most connections of the pool that [`PostgresRows::open`] creates. One asks for all checks; the others are for the
/// blocked keys and for removing rows.
const POOL: u32 = 3;

/// A store in Postgres, which all processes of a service share.
///
/// Limits are exact for any number of processes, on the clock of the server. All waiting checks of a process are decided
/// together: one statement reads their rows, [`StoreOn`] decides, and one statement writes the rows that nobody else has
/// written meanwhile. Rows that another process was faster to write are decided once more, under a lock. Refused checks write
/// nothing.
///
/// [`PostgresRows`] creates it, and has the settings of the tables.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use tollgate::{Quota, RateLimiter};
/// use tollgate_postgres::PostgresRows;
///
/// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
/// let rows = PostgresRows::open("postgres://shop:secret@127.0.0.1/shop")?.schema("limits");
/// // At deployment: rows.migrate().await?;
/// let store = rows.into_store().deadline(Duration::from_millis(50));
/// let limiter = RateLimiter::new(store, Quota::per_minute(100));
/// # Ok::<(), tollgate::Error>(())
/// # }).unwrap();
/// ```
pub type PostgresStore = StoreOn<PostgresRows>;

/// The tables of a [`PostgresStore`], and their settings.
///
/// Every statement is a simple query, so that the server may be behind a pooler that changes the connection between two
/// statements. The server keeps the plans, since the statements only call functions.
pub struct PostgresRows {
    pool: PgPool,
    names: Names,
    /// The connection of the last change of counts.
    kept: Mutex<Option<OwnConnection>>,
}

/// The way in which a change reads its rows.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ReadMode {
    /// Without a lock. Loses the groups of which another process has written a row meanwhile.
    Optimistic,
    /// Under locks that are held until the rows are written. Loses none.
    Locked,
}

/// The reply to the statement that reads rows.
#[derive(Default)]
struct ReadRows {
    now: i64,
    versions: Vec<i64>,
    values: Vec<Option<Vec<u8>>>,
}

impl PostgresRows {
    /// Creates the rows of a store on a pool of connections.
    ///
    /// While there are checks, the store keeps one connection of the pool, however many checks there are. It takes others
    /// for a moment: once a second to remove expired rows and to read the blocked keys. So the pool needs at least two. It
    /// may lead to a pooler such as `PgBouncer`, in transaction mode too.
    #[must_use]
    pub fn new(pool: PgPool) -> Self {
        Self {
            pool,
            names: Names::default(),
            kept: Mutex::default(),
        }
    }

    /// Creates the rows of a store with a pool of its own, for a URL such as `postgres://user:password@host:5432/database`.
    /// Connects at the first check.
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
            .max_lifetime(None)
            .idle_timeout(None);
        Ok(Self::new(pool.connect_lazy_with(options)))
    }

    /// Sets the schema of the tables and functions. The default is `public`. [`migrate`](Self::migrate) creates another one
    /// if it is missing.
    #[must_use]
    pub fn schema(mut self, schema: &str) -> Self {
        schema.clone_into(&mut self.names.schema);
        self
    }

    /// Sets the beginning of the names of tables and functions. The default is `tollgate`: the tables are
    /// `tollgate_counts` and `tollgate_blocked`.
    ///
    /// Give each service that shares a schema its own prefix. Otherwise, limiters of the same name in two services share
    /// their counts.
    #[must_use]
    pub fn prefix(mut self, prefix: &str) -> Self {
        prefix.clone_into(&mut self.names.prefix);
        self
    }

    /// Makes [`migrate`](Self::migrate) create a table of counts that a crash of the server does not empty.
    ///
    /// The default is an `UNLOGGED` table: it costs no WAL and no wait for the disk, but after a crash of the server (not
    /// after a restart) and after a failover, all limits begin anew. To change a table that exists, run
    /// `ALTER TABLE tollgate_counts SET LOGGED`.
    #[must_use]
    pub fn logged(mut self) -> Self {
        self.names.is_logged = true;
        self
    }

    /// Creates the store, with the name `postgres` in metrics and events. It has the deadline and further settings.
    #[must_use]
    pub fn into_store(self) -> PostgresStore {
        StoreOn::new(self).name("postgres")
    }

    /// Returns the SQL that [`migrate`](Self::migrate) runs, for your own tool of migrations.
    ///
    /// The user of the service needs the right to `SELECT`, `INSERT`, `UPDATE` and `DELETE` in both tables, and no other.
    #[must_use]
    pub fn sql(&self) -> String {
        self.names.sql()
    }

    /// Creates the tables and functions that are missing. Call it at deployment, or whenever the service starts.
    ///
    /// Processes that call it together wait for each other.
    ///
    /// # Errors
    ///
    /// Returns an error if Postgres cannot be reached, or if the user must not create tables.
    pub async fn migrate(&self) -> Result<(), Error> {
        let migrated = self.pool.execute(raw_sql(&self.sql())).await;
        migrated.map(drop).map_err(failed)
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
    /// println!("{}", store.rows().doctor().await?.join("\n"));
    /// # Ok(())
    /// # }
    /// ```
    pub async fn doctor(&self) -> Result<Vec<String>, Error> {
        examine(&self.pool, &self.names).await
    }

    /// Returns the connection of the last change, or another one of the pool.
    async fn connection(&self) -> Result<OwnConnection, Error> {
        let kept = self.keep(None);
        match kept {
            Some(kept) => Ok(kept),
            None => OwnConnection::acquire(&self.pool).await,
        }
    }

    /// Keeps a connection, and returns the one that was kept.
    fn keep(&self, connection: Option<OwnConnection>) -> Option<OwnConnection> {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::replace(&mut kept, connection)
    }
}

impl Rows for PostgresRows {
    async fn change(&self, batch: &mut Batch) -> Result<Written, Error> {
        let mode = match batch.attempt() {
            0 => ReadMode::Optimistic,
            _ => ReadMode::Locked,
        };
        // The blocked keys are read once a second, so that they need no connection of their own.
        let is_kept = !batch.is_of_blocks();
        let mut connection = if is_kept {
            self.connection().await?
        } else {
            OwnConnection::acquire(&self.pool).await?
        };
        let table = self.names.table(batch);
        let changed = change(connection.begin()?, batch, &table, mode).await;
        let written = match changed {
            Ok(written) => written,
            // The transaction is over, and has written nothing. In one of several statements, the server waits for its end.
            Err(error) if is_rolled_back(&error) && mode == ReadMode::Optimistic => {
                Written::Nothing
            }
            Err(error) if is_rolled_back(&error) => return Ok(Written::Nothing),
            Err(error) => return Err(error),
        };
        connection.end();
        if is_kept {
            self.keep(Some(connection));
        }
        Ok(written)
    }

    async fn remove_expired(&self) -> Result<bool, Error> {
        let sql = self.names.counts().clean(CLEAN_ROWS);
        let row = self.pool.fetch_one(raw_sql(&sql)).await.map_err(failed)?;
        let removed: i64 = row.try_get(0).map_err(failed)?;
        Ok(removed == i64::from(CLEAN_ROWS))
    }

    fn rest(&self) {
        self.keep(None);
    }
}

async fn change(
    connection: &mut PgConnection,
    batch: &mut Batch,
    table: &TableNames<'_>,
    mode: ReadMode,
) -> Result<Written, Error> {
    let read = read(connection, batch, table, mode).await?;
    let writes = batch.decide(read.now, read.values);
    let mut sql = String::new();
    if !writes.is_empty() {
        sql = table.swap(&writes, &read.versions, new_version());
    }
    if mode == ReadMode::Locked {
        sql.push_str("; COMMIT");
    }
    if sql.is_empty() {
        return Ok(Written::All);
    }
    let mut lost = Vec::new();
    for group in connection.fetch_all(raw_sql(&sql)).await.map_err(failed)? {
        let group: i32 = group.try_get(0).map_err(failed)?;
        lost.push(usize::try_from(group).map_err(|_| malformed())?);
    }
    if mode == ReadMode::Locked && !lost.is_empty() {
        return Err(not_locked());
    }
    Ok(Written::Except(lost))
}

async fn read(
    connection: &mut PgConnection,
    batch: &Batch,
    table: &TableNames<'_>,
    mode: ReadMode,
) -> Result<ReadRows, Error> {
    let sql = match mode {
        ReadMode::Optimistic => table.read(batch.names()),
        ReadMode::Locked => table.lock(batch.names()),
    };
    let mut read = ReadRows::default();
    for row in connection.fetch_all(raw_sql(&sql)).await.map_err(failed)? {
        read.versions.push(row.try_get(0).map_err(failed)?);
        read.values.push(row.try_get(1).map_err(failed)?);
        let now: i64 = row.try_get(2).map_err(failed)?;
        read.now = read.now.max(now);
    }
    Ok(read)
}

/// Returns a version that no row has had: 62 random bits. 0 is no row.
fn new_version() -> i64 {
    let random = RandomState::new().hash_one(0);
    i64::try_from(random >> 2).unwrap_or(i64::MAX).max(1)
}

/// Returns whether a URL has its user and password where sqlx looks for them. Otherwise they would be the name of a database,
/// which the server shows in its errors: in `postgres:/user:password@host`, or with a `/` in the password.
fn is_unambiguous(url: &str) -> bool {
    let Some((_, behind)) = url.split_once("://") else {
        return false;
    };
    let authority = behind.split(['/', '?', '#']).next().unwrap_or_default();
    let rest = behind.get(authority.len()..).unwrap_or_default();
    !rest.contains(['@', '#']) && !url.trim().contains(char::is_control)
}

impl fmt::Debug for PostgresRows {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PostgresRows")
            .field("names", &self.names)
            .finish_non_exhaustive()
    }
}
