//! Fault tests: real servers, real faults, a load that does not wait for responses, and bounds that must
//! hold.
//!
//! `cargo test` runs a short form. `tests/run chaos` runs the full form and prints the table.

#[path = "../support/drive.rs"]
mod drive;
#[path = "../support/notes.rs"]
mod notes;
#[path = "../support/spans.rs"]
mod spans;
mod suite;
#[path = "../support/mod.rs"]
mod support;

mod blackhole;
mod cancelled;
mod cluster;
// A preloaded library and /proc are of Linux.
#[cfg(target_os = "linux")]
mod calendar;
#[cfg(target_os = "linux")]
mod clock;
mod down;
mod failover;
mod full;
mod hung;
mod impostors;
mod in_flight;
mod levels;
mod lost_replies;
#[cfg(target_os = "linux")]
mod many_keys;
mod misconfigured;
mod reservations;
mod storm;
mod streams;
