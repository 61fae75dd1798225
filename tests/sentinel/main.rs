//! Redis Sentinel: masters that change.

#[path = "../support/mod.rs"]
mod support;

mod masters;
