//! Leases: units that a process takes in advance and admits from memory.

#[path = "../support/mod.rs"]
mod support;

mod parity;
mod redis;
