//! Keys that are blocked after too many refusals.

#[path = "../support/mod.rs"]
mod support;

mod laws;
mod layer;
mod redis;
