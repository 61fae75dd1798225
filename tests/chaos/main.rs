//! What becomes of a service when Redis has a bad day: real servers, real faults, a load that does
//! not wait, and figures that must hold.
//!
//! Short here; `tests/run chaos` takes its time, and prints the table.

#[path = "../support/drive.rs"]
mod drive;
#[path = "../support/proxy.rs"]
mod proxy;
mod suite;
#[path = "../support/mod.rs"]
mod support;

mod blackhole;
mod cancelled;
mod cluster;
// A preloaded library and /proc are of Linux.
#[cfg(target_os = "linux")]
mod clock;
mod down;
mod failover;
mod full;
mod hung;
mod impostors;
mod lost_replies;
#[cfg(target_os = "linux")]
mod many_keys;
mod misconfigured;
mod storm;
