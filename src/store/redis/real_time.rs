//! Deadlines of I/O and sleeps, by the clock of the system.

pub(super) use crate::store::real_time::{
    Deadline, Late, Moment, RunningClock, RunningTime, sleep_until, timeout,
};
