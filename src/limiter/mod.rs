//! The limiter: a name, a store and quotas.
//!
//! This module uses `store` and the modules below it. It does not know HTTP.

mod admin;
mod check;
mod conflicts;
mod failure;
mod failure_policy;
mod lease;
mod levels;
mod limiter;
mod settle;
mod wait;

pub use admin::{Admin, KeyStatus};
pub(crate) use check::{CheckProgress, PendingCheck};
pub use failure_policy::FailurePolicy;
pub use levels::LevelCheck;
pub(crate) use levels::{LevelsError, LevelsProgress, PendingLevels, record_levels, start_levels};
pub use limiter::RateLimiter;
pub(crate) use wait::backoff_after;
