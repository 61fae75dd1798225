//! Batches: checks that wait at the same time travel in one call.

mod batcher;
mod batchers;
mod queue;
mod waiters;

pub(crate) use batcher::{Alone, Lane};
pub(crate) use batchers::Lanes;
pub(crate) use queue::Asked;
