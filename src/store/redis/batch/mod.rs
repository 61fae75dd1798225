//! Batches: checks that wait at the same time share one call.
//!
//! No check waits for others to join it. A check that finds no call in flight is sent at once, on
//! its own: the direct send. Any other check is queued. A worker sends the queue as soon as fewer
//! calls are in flight than allowed. So the busier Redis is, the more checks share the cost of a
//! call.

mod batcher;
mod queue;
mod waiters;

pub(super) use batcher::{Batchers, MAX_IN_FLIGHT};
