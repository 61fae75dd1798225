//! The time in which units return with GCRA, one by one.

use std::time::Duration;

use crate::quota::{Algorithm, Quota};

/// Returns the time in which `units` return with GCRA. `None` for other algorithms, where it depends on the
/// times of earlier charges.
pub(in crate::middleware) fn refill_time(quota: &Quota, units: u32) -> Option<Duration> {
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
