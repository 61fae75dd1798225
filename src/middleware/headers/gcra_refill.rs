//! How long Gcra takes to have units back, which come one by one.

use std::time::Duration;

use crate::quota::{Algorithm, Quota};

/// The time in which so many units drain by Gcra; of other algorithms nobody knows.
pub(crate) fn drain_time(quota: &Quota, units: u32) -> Option<Duration> {
    if quota.counted_by() != Algorithm::Gcra {
        return None;
    }
    let micros = quota.window().as_micros() * u128::from(units);
    let micros = match quota.limit() {
        0 => 0,
        limit => micros.div_ceil(limit.into()),
    };
    Some(Duration::from_micros(
        u64::try_from(micros).unwrap_or(u64::MAX),
    ))
}
