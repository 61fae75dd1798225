//! Batches: checks that wait at the same time share one call.
//!
//! No check waits for others to join it: if no call of its lane is in flight, it is sent at once, in a call of its own.
//! Any other check waits until fewer calls are in flight than allowed. So the busier Redis is, the more checks share the
//! cost of a call.

mod queue;
mod sender;
mod waiters;

pub(super) use sender::{MAX_IN_FLIGHT, Sender};
