//! Random numbers and times that need no secret.

use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

/// Returns a random number, so that processes and workers that wait for the same event do not check again together.
pub(crate) fn random() -> u32 {
    // Each `RandomState` has a random key. Of the hash, the upper bits: a shift by 32 leaves 32 of them.
    let hash = RandomState::new().hash_one(0);
    u32::try_from(hash >> 32).unwrap_or(u32::MAX)
}

/// Returns a random time between half of `mean` and half more, so that processes do not ask together.
pub(crate) fn jittered(mean: Duration) -> Duration {
    mean / 2 + mean.saturating_mul(random()) / u32::MAX
}
