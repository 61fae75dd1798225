//! The rows in a SQLite file.

use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rusqlite::{Connection, ErrorCode, OptionalExtension, TransactionBehavior, params};
use tollgate::store::{Batch, Rows, StoreOn, Written};
use tollgate::{Error, ErrorKind};

const TABLE: &str = "
    CREATE TABLE IF NOT EXISTS tollgate (name TEXT PRIMARY KEY, value BLOB NOT NULL, expires_at INTEGER NOT NULL)
    WITHOUT ROWID;
    CREATE INDEX IF NOT EXISTS expiry ON tollgate (expires_at);
";

// page: rows
const READ: &str = "SELECT value FROM tollgate WHERE name = ?";
const WRITE: &str = "INSERT OR REPLACE INTO tollgate (name, value, expires_at) VALUES (?, ?, ?)";
const DELETE: &str = "DELETE FROM tollgate WHERE name = ?";
const EXPIRE: &str =
    "DELETE FROM tollgate WHERE name IN (SELECT name FROM tollgate WHERE expires_at <= ? LIMIT 2)";

impl SqliteRows {
    fn transact(&self, batch: &mut Batch) -> rusqlite::Result<()> {
        let mut connection = self
            .connection
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        // Immediate, because otherwise two transactions could read the same rows.
        let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        // The time is read inside the transaction, so that charges have increasing times.
        let now = (self.now)();
        let mut values = Vec::new();
        for name in batch.names() {
            let mut read = transaction.prepare_cached(READ)?;
            let value = read.query_row([name.as_str()], |row| row.get(0));
            values.push(value.optional()?);
        }
        for write in batch.decide(now, values) {
            let name = write.name.as_str();
            match write.value {
                Some(value) => transaction.prepare_cached(WRITE)?.execute(params![
                    name,
                    value,
                    write.expires_at
                ])?,
                None => transaction.prepare_cached(DELETE)?.execute([name])?,
            };
            // More rows than a check adds, so that the file does not grow.
            transaction.prepare_cached(EXPIRE)?.execute([now])?;
        }
        transaction.commit()
    }
}

impl Rows for SqliteRows {
    async fn change(&self, batch: &mut Batch) -> Result<Written, Error> {
        self.transact(batch).map_err(failed)?;
        Ok(Written::All)
    }

    fn answers_at_once(&self) -> bool {
        true
    }
}
// page: end

/// How long a transaction waits for the lock of another process.
const BUSY_TIMEOUT: Duration = Duration::from_millis(100);

/// A store in a SQLite file. Clones share one connection.
pub type SqliteStore = StoreOn<SqliteRows>;

/// The rows in a SQLite file.
pub struct SqliteRows {
    connection: Mutex<Connection>,
    /// Returns the time in microseconds since the Unix epoch.
    now: Box<dyn Fn() -> i64 + Send + Sync>,
}

impl SqliteRows {
    /// Opens the file with a clock: see [`open_at`].
    ///
    /// # Errors
    ///
    /// As [`open`](crate::open).
    pub fn open(
        path: impl AsRef<Path>,
        now: impl Fn() -> i64 + Send + Sync + 'static,
    ) -> Result<Self, Error> {
        Ok(Self {
            connection: Mutex::new(connect(path.as_ref()).map_err(failed)?),
            now: Box::new(now),
        })
    }
}

/// Opens the file and creates it if it does not exist.
///
/// # Errors
///
/// When the file cannot be opened, or is not a database.
#[expect(
    clippy::disallowed_methods,
    reason = "the time of this store is the system clock, which all processes of the machine share"
)]
pub fn open(path: impl AsRef<Path>) -> Result<SqliteStore, Error> {
    open_at(path, || {
        let now = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        i64::try_from(now.as_micros()).unwrap_or(i64::MAX)
    })
}

/// Opens the file with another clock, in microseconds since the Unix epoch.
///
/// # Errors
///
/// As [`open`].
pub fn open_at(
    path: impl AsRef<Path>,
    now: impl Fn() -> i64 + Send + Sync + 'static,
) -> Result<SqliteStore, Error> {
    Ok(StoreOn::new(SqliteRows::open(path, now)?).name("sqlite"))
}

fn connect(path: &Path) -> rusqlite::Result<Connection> {
    let connection = Connection::open(path)?;
    connection.busy_timeout(BUSY_TIMEOUT)?;
    // With these settings, a crash of the machine may lose the last charges but does not corrupt the file.
    connection.pragma_update(None, "journal_mode", "wal")?;
    connection.pragma_update(None, "synchronous", "normal")?;
    connection.execute_batch(TABLE)?;
    Ok(connection)
}

fn failed(error: rusqlite::Error) -> Error {
    let kind = match error.sqlite_error_code() {
        Some(ErrorCode::DatabaseBusy) => ErrorKind::Timeout,
        Some(ErrorCode::DiskFull) => ErrorKind::Full,
        _ => ErrorKind::Unavailable,
    };
    Error::new(kind, format!("SQLite failed: {error}"))
}
