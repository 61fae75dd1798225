//! The counting rules: pure functions of a state, a quota, a time and a cost.
//!
//! There is one file per algorithm. The file of the same name in `lua/` makes the same decisions in Redis;
//! `tests/checks/parity.rs` compares them. Times are whole microseconds of the store's clock.
//!
//! Depends only on `decision`, `quota`, `key` and `clock`. Nothing here reads a clock or takes a lock.

mod algorithm_state;
mod arithmetic;
mod bytes;
mod counter_state;
mod fixed_window;
mod gcra;
mod holds;
mod log;
mod quota_check;
mod share_room;
mod sliding_counter;
mod sorted_set_log;
mod state;
mod total;

pub(crate) use arithmetic::time_to_live_millis;
pub(crate) use bytes::Bytes;
pub(crate) use holds::{Holds, UnitsBefore};
pub(crate) use quota_check::{Changes, Charge, QuotaCheck, QuotaOutcome};
pub(crate) use state::CountState;
