//! Looks whether a Redis is fit to count on: [`RedisStore::doctor`] and its [`Report`].
//!
//! The example `doctor` prints it: `cargo run --example doctor -- redis://127.0.0.1:6379`
//!
//! # Rights
//!
//! Those that [a store needs](RedisStore#rights) are enough: what a user may not look at is
//! [`Unknown`](Severity::Unknown).
//!
//! The doctor tells more where it may also `+info +config|get +acl|whoami` (before Redis 7.0
//! `+config`, which allows `CONFIG SET` as well).

mod doctor;
mod info;
mod memory;
mod replicas;
mod report;
mod rights;
mod scratch;
mod server;
mod timing;
mod trial;
mod trouble;

pub use report::{Finding, Report, Severity};
