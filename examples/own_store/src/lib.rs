//! A store in SQLite. Several processes of a machine can share the file. Each check is one transaction.
//!
//! [`Counters`] decide checks, refunds and credits by the rules of the crate. This file only loads and saves
//! them, as a store in any database with transactions can. `tests/conformance.rs` runs the conformance kit on
//! it.
//!
//! SQLite answers within tens of microseconds, so a check blocks its thread. A store that waits for a network
//! returns `StoreFuture::boxed` instead.

use std::fmt;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rusqlite::{Connection, OptionalExtension, ToSql, Transaction, TransactionBehavior, params};
use tollgate::store::{
    Adjust, Answers, Block, BlockList, Check, CircuitBreaker, Counters, Holding, Source, Store,
    StoreFuture, StoreId, StoreParts, Subject,
};
use tollgate::{Error, ErrorKind, Key};

/// `counters` is JSON. `expires_at` and `until` are microseconds since the Unix epoch.
const TABLES: &str = "
    CREATE TABLE IF NOT EXISTS counts (
        limiter TEXT NOT NULL, key TEXT NOT NULL, counters TEXT NOT NULL, expires_at INTEGER NOT NULL,
        PRIMARY KEY (limiter, key)
    ) WITHOUT ROWID;
    CREATE INDEX IF NOT EXISTS expiry ON counts (expires_at);
    CREATE TABLE IF NOT EXISTS blocks (
        limiter TEXT NOT NULL, key TEXT NOT NULL, until INTEGER NOT NULL,
        PRIMARY KEY (limiter, key)
    ) WITHOUT ROWID;
";

/// How long a transaction waits for the lock of another process.
const BUSY_TIMEOUT: Duration = Duration::from_millis(100);

/// How often this process reloads the blocked keys.
const BLOCKS_REFRESH: Duration = Duration::from_secs(1);

/// The most blocked keys for an automatic block to be added. The list has room for 10 000; the rest is for operators.
const MAX_AUTOMATIC: i64 = 9_000;

/// The most blocked keys of one limiter, so that a flood at it leaves room for others.
const MAX_AUTOMATIC_PER_LIMITER: i64 = 1_000;

/// How many expired keys a check removes: more than it adds, so that the file does not grow.
const REMOVED_PER_CHECK: u32 = 2;

/// A store in a SQLite file. Clones share one connection.
#[derive(Clone)]
pub struct SqliteStore {
    id: StoreId,
    database: Arc<Database>,
    parts: StoreParts,
}

struct Database {
    connection: Mutex<Connection>,
    /// Returns the time in microseconds since the Unix epoch.
    now: Box<dyn Fn() -> u64 + Send + Sync>,
}

impl SqliteStore {
    /// Opens the file and creates it if it does not exist.
    ///
    /// # Errors
    ///
    /// When the file cannot be opened, or is not a database.
    #[expect(
        clippy::disallowed_methods,
        reason = "the time of this store is the system clock, which all processes of the machine share"
    )]
    pub fn open(path: impl AsRef<Path>) -> Result<Self, Error> {
        Self::open_at(path, || {
            let now = SystemTime::now().duration_since(UNIX_EPOCH);
            micros(now.unwrap_or_default())
        })
    }

    /// Opens the file with another clock, in microseconds since the Unix epoch.
    ///
    /// # Errors
    ///
    /// As [`open`](Self::open).
    pub fn open_at(
        path: impl AsRef<Path>,
        now: impl Fn() -> u64 + Send + Sync + 'static,
    ) -> Result<Self, Error> {
        let connection = connect(path.as_ref()).map_err(|error| failed(&error))?;
        let database = Arc::new(Database {
            connection: Mutex::new(connection),
            now: Box::new(now),
        });
        let mut parts = StoreParts::default();
        parts.block_list = BlockList::shared(BLOCKS_REFRESH);
        parts.circuit_breaker = CircuitBreaker::new().name("sqlite");
        Ok(Self {
            id: StoreId::unique(),
            parts,
            database,
        })
    }
}

fn connect(path: &Path) -> rusqlite::Result<Connection> {
    let connection = Connection::open(path)?;
    connection.busy_timeout(BUSY_TIMEOUT)?;
    // With these settings, a crash of the machine may lose the last charges but does not corrupt the file.
    connection.pragma_update(None, "journal_mode", "wal")?;
    connection.pragma_update(None, "synchronous", "normal")?;
    connection.execute_batch(TABLES)?;
    Ok(connection)
}

impl Database {
    /// Runs a transaction with the current time.
    fn transact<T>(
        &self,
        run: impl FnOnce(&Transaction<'_>, u64) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let mut connection = self
            .connection
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        // Immediate, because otherwise two transactions could read the same counts.
        let transaction = connection
            .transaction_with_behavior(TransactionBehavior::Immediate)
            .map_err(|error| failed(&error))?;
        // The time is read inside the transaction, so that charges have increasing times.
        let result = run(&transaction, (self.now)())?;
        transaction.commit().map_err(|error| failed(&error))?;
        Ok(result)
    }

    fn adjust(&self, adjust: Adjust<'_>) -> Result<(), Error> {
        self.transact(|transaction, now| {
            let mut counters = read(transaction, &adjust, now)?;
            counters.adjust(adjust, now);
            write(transaction, &adjust, &counters)
        })
    }

    fn check(&self, checks: &[Check<'_>]) -> Result<Answers, Error> {
        self.transact(|transaction, now| {
            let read = |check: &Check<'_>| read(transaction, check, now);
            let counters: Result<Vec<_>, Error> = checks.iter().map(read).collect();
            let mut counters = counters?;
            let decided = Counters::decide(&mut counters, checks, Source::Other, now);
            if decided.is_changed {
                remove_expired(transaction, now)?;
                for (check, counters) in checks.iter().zip(&counters) {
                    write(transaction, check, counters)?;
                }
            }
            Ok(decided.answers)
        })
    }

    /// Returns whether the block took effect: an automatic one does not replace another.
    fn block(&self, block: Block<'_>) -> Result<bool, Error> {
        let (limiter, key) = (block.limiter.as_str(), block.key.as_str());
        self.transact(|transaction, now| {
            let until = signed(now.saturating_add(micros(block.duration)));
            let execute = |sql: &str, params: &[&dyn ToSql]| {
                transaction
                    .execute(sql, params)
                    .map_err(|error| failed(&error))
            };
            execute("DELETE FROM blocks WHERE until <= ?", params![signed(now)])?;
            if block.duration.is_zero() {
                let delete = "DELETE FROM blocks WHERE limiter = ? AND key = ?";
                execute(delete, params![limiter, key])?;
                return Ok(true);
            }
            let insert = match block.is_automatic {
                true => "INSERT OR IGNORE INTO blocks VALUES (?, ?, ?)",
                false => "INSERT OR REPLACE INTO blocks VALUES (?, ?, ?)",
            };
            if block.is_automatic && !has_room(transaction, limiter)? {
                let text = "the block list has no room for more automatic blocks";
                return Err(Error::new(ErrorKind::Full, text));
            }
            Ok(execute(insert, params![limiter, key, until])? > 0)
        })
    }

    /// Reads the blocked keys, each with its limiter and the remaining time.
    fn read_blocks(&self) -> Result<Vec<(Key, Key, Duration)>, Error> {
        self.transact(|transaction, now| {
            let mut blocks = Vec::new();
            let mut read = || -> rusqlite::Result<()> {
                let mut statement =
                    transaction.prepare_cached("SELECT limiter, key, until FROM blocks")?;
                let mut rows = statement.query([])?;
                while let Some(row) = rows.next()? {
                    let (limiter, key): (String, String) = (row.get(0)?, row.get(1)?);
                    let left = unsigned(row.get(2)?).saturating_sub(now);
                    let keys = (Key::from_stored(&limiter), Key::from_stored(&key));
                    if let (Some(limiter), Some(key)) = keys {
                        blocks.push((limiter, key, Duration::from_micros(left)));
                    }
                }
                Ok(())
            };
            read().map_err(|error| failed(&error))?;
            Ok(blocks)
        })
    }
}

/// Returns whether there is room for an automatic block.
fn has_room(transaction: &Transaction<'_>, limiter: &str) -> Result<bool, Error> {
    let count = "SELECT count(*), count(*) FILTER (WHERE limiter = ?) FROM blocks";
    let counts = transaction.query_row(count, [limiter], |row| Ok((row.get(0)?, row.get(1)?)));
    let (blocked, of_limiter): (i64, i64) = counts.map_err(|error| failed(&error))?;
    Ok(blocked < MAX_AUTOMATIC && of_limiter < MAX_AUTOMATIC_PER_LIMITER)
}

/// Reads the counters of a key. They are empty if the key is new or expired.
fn read(transaction: &Transaction<'_>, subject: &Subject<'_>, now: u64) -> Result<Counters, Error> {
    let query = "SELECT counters FROM counts WHERE limiter = ? AND key = ? AND expires_at > ?";
    let found: rusqlite::Result<Option<String>> =
        transaction.prepare_cached(query).and_then(|mut statement| {
            let names = params![subject.limiter.as_str(), subject.key.as_str(), signed(now)];
            statement.query_row(names, |row| row.get(0)).optional()
        });
    match found.map_err(|error| failed(&error))? {
        None => Ok(Counters::new()),
        Some(text) => serde_json::from_str(&text).map_err(|error| {
            let text = format!("cannot parse stored counters: {error}");
            Error::new(ErrorKind::InvalidReply, text)
        }),
    }
}

/// Writes the counters of a key, or deletes the row if they are empty.
fn write(
    transaction: &Transaction<'_>,
    subject: &Subject<'_>,
    counters: &Counters,
) -> Result<(), Error> {
    let names = (subject.limiter.as_str(), subject.key.as_str());
    let written = match counters.expires_at() {
        None => transaction
            .prepare_cached("DELETE FROM counts WHERE limiter = ? AND key = ?")
            .and_then(|mut statement| statement.execute([names.0, names.1])),
        Some(expires_at) => {
            let text = serde_json::to_string(counters)
                .map_err(|error| Error::new(ErrorKind::InvalidReply, error.to_string()))?;
            transaction
                .prepare_cached("INSERT OR REPLACE INTO counts VALUES (?, ?, ?, ?)")
                .and_then(|mut statement| {
                    statement.execute(params![names.0, names.1, text, signed(expires_at)])
                })
        }
    };
    written.map(drop).map_err(|error| failed(&error))
}

fn remove_expired(transaction: &Transaction<'_>, now: u64) -> Result<(), Error> {
    let removed = transaction
        .prepare_cached(
            "DELETE FROM counts WHERE (limiter, key) IN
             (SELECT limiter, key FROM counts WHERE expires_at <= ? LIMIT ?)",
        )
        .and_then(|mut statement| statement.execute(params![signed(now), REMOVED_PER_CHECK]));
    removed.map(drop).map_err(|error| failed(&error))
}

impl Store for SqliteStore {
    fn id(&self) -> StoreId {
        self.id
    }

    fn check(&self, checks: &[Check<'_>]) -> StoreFuture {
        StoreFuture::ready(self.database.check(checks))
    }

    fn adjust(&self, adjust: Adjust<'_>) -> StoreFuture<()> {
        StoreFuture::ready(self.database.adjust(adjust))
    }

    fn block(&self, block: Block<'_>) -> StoreFuture<bool> {
        // This process applies the block at once, other processes at their next refresh. The database has decided.
        let put = || {
            let block = Block::new(block.limiter, block.key, block.duration);
            self.parts.block_list.put(block)
        };
        let blocked = self.database.block(block);
        StoreFuture::ready(blocked.and_then(|took_effect| Ok(took_effect && put()?)))
    }

    fn refresh_blocks(&self, _: Duration) -> StoreFuture<()> {
        let list = &self.parts.block_list;
        StoreFuture::ready(
            self.database
                .read_blocks()
                .map(|blocks| list.replace(blocks)),
        )
    }

    fn holders(&self, subject: Subject<'_>) -> StoreFuture<Vec<Holding>> {
        let holders = self
            .database
            .transact(|transaction, now| Ok(read(transaction, &subject, now)?.holders(now)));
        StoreFuture::ready(holders)
    }

    fn parts(&self) -> StoreParts {
        self.parts.clone()
    }
}

impl fmt::Debug for SqliteStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SqliteStore").finish_non_exhaustive()
    }
}

fn failed(error: &rusqlite::Error) -> Error {
    let kind = match error.sqlite_error_code() {
        Some(rusqlite::ErrorCode::DatabaseBusy) => ErrorKind::Timeout,
        Some(rusqlite::ErrorCode::DiskFull) => ErrorKind::Full,
        _ => ErrorKind::Unavailable,
    };
    Error::new(kind, format!("SQLite failed: {error}"))
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

/// SQLite's integers are signed.
fn signed(micros: u64) -> i64 {
    i64::try_from(micros).unwrap_or(i64::MAX)
}

fn unsigned(micros: i64) -> u64 {
    u64::try_from(micros).unwrap_or(0)
}
