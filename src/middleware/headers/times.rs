//! The times that headers report: waits, in whole seconds, and the time in which units return.

use std::time::Duration;

use crate::decision::QuotaDecision;
use crate::quota::{Algorithm, Quota};

/// Rounded up: a client that waits a shorter time could be refused again.
pub(in crate::middleware) fn whole_seconds(duration: Duration) -> u64 {
    let part = u64::from(duration.subsec_nanos() > 0);
    duration.as_secs().saturating_add(part)
}

/// Returns the time until more units are left, or for a refused request, until it is admitted.
///
/// `None` if no wait helps.
pub(super) fn reported_wait(quota: QuotaDecision<'_>) -> Option<Duration> {
    if !quota.quota().is_rate() {
        // Nobody knows when a slot is given back, and no unit of a total returns with time.
        None
    } else if quota.is_allowed() {
        Some(quota.reset_after())
    } else {
        quota.retry_after()
    }
}

/// The time in which `units` return with GCRA. `None` for other algorithms, where it depends on the
/// times of earlier charges.
pub(in crate::middleware) fn refill_time(quota: &Quota, units: u32) -> Option<Duration> {
    if quota.algorithm() != Algorithm::Gcra {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds_are_rounded_up() {
        for (millis, seconds) in [
            (0, 0),
            (1, 1),
            (999, 1),
            (1_000, 1),
            (1_001, 2),
            (59_999, 60),
        ] {
            assert_eq!(whole_seconds(Duration::from_millis(millis)), seconds);
        }
        assert_eq!(whole_seconds(Duration::from_nanos(1)), 1);
        assert_eq!(whole_seconds(Duration::MAX), u64::MAX);
    }
}
