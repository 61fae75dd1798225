//! Units that a process reserves: held until they are used or returned, also if it dies.

#[path = "../support/mod.rs"]
mod support;

mod parity;
