//! The program: runs the worlds of many seeds, replays one, and makes one smaller.

mod arguments;
mod main;
mod many;
mod shrink;
mod world_process;

pub use main::main;
