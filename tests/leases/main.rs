//! Leases: units that a process takes in advance and admits from memory.

#[macro_use]
#[path = "../support/each_algorithm.rs"]
mod each_algorithm;
#[path = "../support/spans.rs"]
mod spans;
#[path = "../support/mod.rs"]
mod support;

mod far;
mod parity;
mod redis;
