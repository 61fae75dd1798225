#![doc = include_str!("../README.md")]
#![cfg(target_os = "linux")]

#[cfg(tollgate_simulation)]
mod branches;
#[cfg(tollgate_simulation)]
mod clocks;
#[cfg(tollgate_simulation)]
pub mod planted;
#[cfg(tollgate_simulation)]
pub mod program;
#[cfg(tollgate_simulation)]
mod random;
pub mod server;
pub mod wire;
#[cfg(tollgate_simulation)]
pub mod world;
