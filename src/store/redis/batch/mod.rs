//! Batches: checks that wait at the same time travel in one call.

mod batcher;
mod batchers;
mod queue;
mod waiters;

pub(crate) use batcher::{Batcher, DirectSend};
pub(crate) use batchers::Batchers;
pub(crate) use queue::OwnedCheck;
