//! Examines whether a Redis server is fit to count on.
//!
//! [`RedisStore::doctor`](crate::RedisStore::doctor) returns a [`Report`].
//!
//! The example `doctor` prints a report: `cargo run --example doctor -- redis://127.0.0.1:6379`
//!
//! # Permissions
//!
//! The permissions that [a store needs](crate::RedisStore#rights) are enough. What the user may not
//! read is reported as [`Unknown`](Severity::Unknown).
//!
//! With `+info +config|get +acl|whoami` the report says more. Before Redis 7.0, `+config` takes the
//! place of `+config|get`, and allows `CONFIG SET` as well.

mod durability;
mod examination;
mod info;
mod memory;
mod permissions;
mod remedies;
mod report;
mod scratch_key;
mod script_trial;
mod server;
mod session;
mod timing;

pub use report::{Finding, Report, Severity};
