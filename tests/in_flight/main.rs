//! Slots in flight: what runs at the same time, over all processes.

#[path = "../support/mod.rs"]
mod support;

#[cfg(feature = "cluster")]
mod cluster;
mod failures;
mod layer;
mod messages;
mod orders;
mod parity;
mod permits;
mod redis;
mod shares;
mod shutdown;
mod stored;
mod surface;
