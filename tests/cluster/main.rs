//! Redis Cluster: slots, moves, seeds and lost nodes.

#[path = "../support/mod.rs"]
mod support;

mod distance;
#[cfg(feature = "cluster")]
mod errors;
#[cfg(feature = "cluster")]
mod failures;
#[cfg(feature = "cluster")]
mod moves;
#[cfg(feature = "cluster")]
mod seeds;
mod slots;
#[cfg(feature = "cluster")]
mod unpolled;
