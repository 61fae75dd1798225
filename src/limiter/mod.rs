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
pub(crate) use check::{CheckProgress, PendingCheck};
pub use failure_policy::FailurePolicy;
pub use limiter::RateLimiter;
pub(crate) use limiter::backoff_after;
