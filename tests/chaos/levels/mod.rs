//! Checks by several processes, of several keys or with leases, while processes and servers are killed.
//!
//! Each process notes its answers in a file, which outlives it. The test compares them with the counts.

mod cluster;
mod crowd;
mod hammer;
mod leases;
mod notes;
mod processes;
mod tree;
