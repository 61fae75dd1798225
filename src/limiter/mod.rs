//! The limiter without HTTP: a name, a store and quotas.
//!
//! This room knows `store` and what is below it, and nothing of HTTP.

mod admin;
mod failure;
mod failure_policy;
mod key_operations;
mod limiter;
mod settle;

pub use admin::{Admin, KeyStatus};
pub use failure_policy::FailurePolicy;
pub use limiter::RateLimiter;
pub(crate) use limiter::{CheckProgress, backoff_after};
