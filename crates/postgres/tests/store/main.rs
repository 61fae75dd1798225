//! The store on a real server. `TOLLGATE_POSTGRES_BIN` is the directory of another version of
//! Postgres, `TOLLGATE_PGBOUNCER` a program to put in front of it.

#[path = "../../../../tests/support/algorithms.rs"]
mod algorithms;
mod blocked;
#[expect(dead_code, reason = "other tests use the rest")]
#[path = "../../../../tests/support/cases.rs"]
mod cases;
mod conformance;
mod contention;
mod cut;
#[path = "../../../../tests/support/killed_processes.rs"]
mod killed_processes;
mod leases;
mod limiter;
#[expect(dead_code, reason = "other tests use the rest")]
#[path = "../../../../tests/support/malformed_urls.rs"]
mod malformed_urls;
#[path = "../../../../tests/support/notes.rs"]
mod notes;
mod parity;
#[path = "../../../../tests/support/process.rs"]
mod process;
mod processes;
#[path = "../../../../tests/support/running.rs"]
mod running;
mod server;
#[path = "../../../../tests/support/several_processes.rs"]
mod several_processes;
#[path = "../../../../tests/support/spans.rs"]
mod spans;
#[path = "../../../../tests/support/standing_still.rs"]
mod standing_still;
mod stopped;
