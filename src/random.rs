//! Random numbers and times that need no secret.

use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

pub(crate) fn random_bits() -> u64 {
    // Each `RandomState` has a random key, so the hash of a constant is a random number.
    RandomState::new().hash_one(0)
}

/// Returns a random number, so that processes and workers that wait for the same event do not check again together.
pub(crate) fn random() -> u32 {
    // A shift by 32 leaves 32 bits.
    u32::try_from(random_bits() >> 32).unwrap_or(u32::MAX)
}

/// Returns a random time between half of `mean` and half more, so that processes do not ask together.
pub(crate) fn jittered(mean: Duration) -> Duration {
    mean / 2 + up_to(mean)
}

/// Returns a random time of at most `longest`.
pub(crate) fn up_to(longest: Duration) -> Duration {
    longest.saturating_mul(random()) / u32::MAX
}
