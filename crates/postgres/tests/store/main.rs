//! The store on a real server. `TOLLGATE_POSTGRES_BIN` is the directory of another version of Postgres.

mod conformance;
mod contention;
mod limiter;
mod processes;
mod server;
#[path = "../../../../tests/support/spans.rs"]
mod spans;
