//! A store in SQLite. Several processes of a machine can share the file. Each check is one transaction.
//!
//! `StoreOn` has the rules, the blocked keys and the circuit breaker. `sqlite.rs` only reads and writes rows, as a store in
//! any database with transactions can. `tests/conformance.rs` runs the conformance kits on it.

mod sqlite;

pub use sqlite::{SqliteRows, SqliteStore, open, open_at};
