//! Slots in flight: what runs at the same time, over all processes.

#[path = "../support/mod.rs"]
mod support;

mod layer;
mod parity;
mod permits;
mod redis;
mod stored;
