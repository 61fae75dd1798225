//! Checks of several keys: every level is charged, or none.

#[cfg(feature = "redis")]
#[macro_use]
#[path = "../support/each_algorithm.rs"]
mod each_algorithm;
#[path = "../support/mod.rs"]
mod support;

mod all_or_nothing;
mod combinations;
mod ended_tasks;
#[cfg(feature = "redis")]
mod first;
mod grouped;
mod groups;
#[cfg(all(feature = "axum-08", feature = "grpc", feature = "redis"))]
mod layer;
mod lost_groups;
mod ownership;
#[cfg(feature = "redis")]
mod parity;
#[cfg(all(feature = "redis", feature = "serde"))]
mod peeking;
#[cfg(feature = "redis")]
mod redis;
mod settling;
#[cfg(all(feature = "axum-08", feature = "grpc", feature = "redis"))]
mod skipping;
mod slots;
mod surface;

use tollgate::Decision;

use support::several_processes::used;

/// The names of the limiters that refused.
fn refusing(decision: &Decision) -> Vec<&str> {
    let levels = decision.levels();
    let refusing = levels.filter(|level| level.is_asked() && !level.is_allowed());
    refusing.map(|level| level.limiter()).collect()
}

/// The names of the limiters that were not asked.
fn not_asked(decision: &Decision) -> Vec<&str> {
    let levels = decision.levels().filter(|level| !level.is_asked());
    levels.map(|level| level.limiter()).collect()
}
