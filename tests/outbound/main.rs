//! Clients of other services: what an upstream says is obeyed by all processes.

#[path = "../support/mod.rs"]
mod support;

mod default_pause;
mod exhausted;
mod fresh_list;
mod headers;
mod layer;
mod pauses;
mod pool;
mod processes;
