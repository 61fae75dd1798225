//! The limiter: a name, a store and quotas.
//!
//! This module uses `store` and the modules below it. It does not know HTTP.

mod admin;
mod again;
mod asked_level;
mod automatic_blocks;
mod check;
mod check_first;
mod checked;
mod conflicts;
mod decision;
mod failure;
mod failure_policy;
mod groups;
mod in_flight;
mod key_status;
mod lease;
mod level_check;
mod limiter;
mod line;
mod pause;
mod pauses;
mod pending_check;
mod record;
#[cfg(feature = "serde")]
mod serde;
mod settle;
mod wait;

pub use admin::Admin;
pub(crate) use asked_level::{AskedLevel, AskedLevels};
pub(crate) use check_first::Alternatives;
pub(crate) use checked::{Checked, DecidedCheck, FailedCheck};
pub(crate) use decision::TakenLevel;
pub use decision::{Decision, DecisionView};
pub use failure_policy::FailurePolicy;
pub(crate) use in_flight::HeldSlots;
pub use in_flight::{Acquired, Permit};
pub use key_status::{BlockReason, KeyStatus};
pub use level_check::LevelCheck;
pub use limiter::RateLimiter;
pub(crate) use line::Place;
pub(crate) use pending_check::{PendingCheck, StartedCheck};
pub(crate) use settle::settle_together;
pub(crate) use wait::OutageWait;
