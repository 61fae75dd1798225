//! What the docs of `Algorithm` promise, written a second time for the tests.
#![allow(dead_code, reason = "each test uses a part")]

use std::time::Duration;

use tollgate::{Algorithm, Quota};

/// Returns each algorithm, with this many buckets.
pub(crate) fn algorithms(buckets: u16) -> impl Iterator<Item = Algorithm> + Clone {
    Algorithm::ALL.iter().map(move |algorithm| match algorithm {
        Algorithm::SlidingBuckets(_) => Algorithm::SlidingBuckets(buckets),
        algorithm => *algorithm,
    })
}

/// Returns a quota that this algorithm counts. Of a total, the window is the idle time.
pub(crate) fn quota_by(algorithm: Algorithm, limit: u32, window: Duration) -> Quota {
    match algorithm {
        Algorithm::Total => Quota::total(limit, window),
        algorithm => Quota::new(limit, window).with_algorithm(algorithm),
    }
}

/// Returns the most units in any span as long as the window.
pub(crate) fn promised(algorithm: Algorithm, limit: u32) -> u64 {
    let limit = u64::from(limit);
    match algorithm {
        Algorithm::FixedWindow => 2 * limit,
        Algorithm::Gcra | Algorithm::SlidingCounter => (2 * limit).saturating_sub(1),
        _ => limit,
    }
}

/// Returns whether one check may cost at most 100 000 units.
pub(crate) fn is_log(algorithm: Algorithm) -> bool {
    matches!(algorithm, Algorithm::SlidingLog | Algorithm::SortedSetLog)
}

/// Returns a part of a limit.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::float_arithmetic,
    reason = "a part of it"
)]
pub(crate) fn part_of(limit: u32, part: f64) -> u32 {
    (f64::from(limit) * part) as u32
}
