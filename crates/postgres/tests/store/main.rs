//! The store on a real server. `TOLLGATE_POSTGRES_BIN` is the directory of another version of
//! Postgres, `TOLLGATE_PGBOUNCER` a program to put in front of it.

mod conformance;
mod contention;
mod limiter;
mod parity;
mod processes;
mod server;
#[path = "../../../../tests/support/spans.rs"]
mod spans;
