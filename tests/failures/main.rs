//! Stores that fail: policies, waiting, the outage log and the recovery.

#[path = "../support/mod.rs"]
mod support;

#[cfg(feature = "redis")]
mod lateness;
#[cfg(feature = "redis")]
mod outage_log;
mod policies;
mod recorded;
#[cfg(feature = "redis")]
mod recovery;
#[cfg(feature = "redis")]
mod redis;
#[cfg(feature = "redis")]
mod standing_still;
#[cfg(feature = "redis")]
mod waiting;
