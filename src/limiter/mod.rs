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
mod refusals;
mod settle;
mod wait;

pub use admin::{Admin, BlockReason, BlockedKey, KeyStatus};
pub(crate) use check::{CheckProgress, PendingCheck};
pub use failure_policy::FailurePolicy;
pub use levels::LevelCheck;
pub(crate) use levels::{LevelsError, LevelsProgress, PendingLevels, record_levels, start_levels};
pub use limiter::RateLimiter;
pub(crate) use refusals::count_refusals;
pub(crate) use wait::backoff_after;
