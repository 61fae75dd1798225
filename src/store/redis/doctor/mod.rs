//! The report of [`RedisStore::doctor`](crate::RedisStore::doctor), which examines whether a Redis server is
//! set up for exact limits.
//!
//! A [`Report`] has one [`Finding`] for each topic, such as the eviction policy or missing permissions, and
//! the remedy if something is wrong. Call the doctor when you set up a server, and when checks fail. In a clone,
//! the program `tollgate-doctor` prints a report: `cargo run --package tollgate-doctor -- redis://127.0.0.1:6379`
//!
//! # Permissions
//!
//! The doctor works with the permissions that [a store needs](crate::RedisStore#permissions). A topic that
//! needs more is reported as [`Unknown`](Severity::Unknown).
//!
//! For a complete report, add `+info +config|get +acl|whoami`. Before Redis 7.0, `+config` is needed in place
//! of `+config|get`; note that it also permits `CONFIG SET`.

#[cfg(feature = "cluster")]
mod capacity;
mod coverage;
mod durability;
mod examination;
mod info;
mod memory;
mod permissions;
mod remedies;
mod report;
mod scratch_key;
mod script_clock;
mod script_trial;
mod server;
mod session;
mod timing;

pub use report::{Finding, Report, Severity};
