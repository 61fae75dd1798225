//! The counting rules in Rust: pure functions of a state, a quota, a time and a cost.
//!
//! One file per algorithm, named as its twin in `lua/`, which does the same steps. Times are whole
//! microseconds of the store's clock. This room knows `decision` and `quota`; it neither reads a
//! clock nor locks.

mod arithmetic;
mod counter_state;
mod fixed_window;
mod gcra;
mod quota_check;
mod sliding_buckets;
mod sliding_counter;
mod sliding_log;
mod sorted_set_log;
mod state;

pub(crate) use arithmetic::time_to_live_millis;
pub(crate) use quota_check::{Changes, Charge, QuotaCheck, Verdict};
pub(crate) use state::State;
