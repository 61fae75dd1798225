//! The limiter without HTTP: a name, a store and quotas.
//!
//! This room knows `store` and what is below it, and nothing of HTTP.

mod admin;
mod check;
mod failure;
mod failure_policy;
mod limiter;
mod settle;

pub use admin::{Admin, KeyStatus};
pub(crate) use check::{CheckProgress, PendingCheck, backoff_after};
pub use failure_policy::FailurePolicy;
pub use limiter::RateLimiter;
