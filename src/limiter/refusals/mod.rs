//! Counts refusals, so that keys that are refused too often are blocked.

mod counted;
mod pending;
mod refusal_counter;

pub(crate) use counted::count_refusals;
pub(super) use refusal_counter::RefusalCounter;
