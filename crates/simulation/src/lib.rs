//! Runs tollgate's real code and real Lua in a deterministic world, of which every seed replays.
#![doc = include_str!("../README.md")]
#![cfg(target_os = "linux")]

pub mod server;
pub mod wire;
