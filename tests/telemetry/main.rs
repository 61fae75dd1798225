//! Metrics and events of checks.

#[path = "../support/mod.rs"]
mod support;

mod outcomes;
mod permits;
mod spans;
