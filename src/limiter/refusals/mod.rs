//! Counts refusals, so that keys that are refused too often are blocked.

mod pending;
mod refusal_counter;

pub(super) use refusal_counter::RefusalCounter;
pub(crate) use refusal_counter::count_refusals;
