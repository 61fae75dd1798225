//! A bounded cache by the fingerprints of limiters and keys, which evicts rarely used entries first.

use quick_cache::UnitWeighter;
use quick_cache::sync::{Cache, DefaultLifecycle};

use crate::key::{Fingerprint, HashFingerprint};

pub(crate) type FingerprintCache<T> = Cache<Fingerprint, T, UnitWeighter, HashFingerprint>;

/// Creates a cache of `max` entries, which takes the memory of the expected ones at once.
pub(crate) fn fingerprint_cache<T: Clone>(expected: usize, max: usize) -> FingerprintCache<T> {
    Cache::with(
        expected,
        max as u64,
        UnitWeighter,
        HashFingerprint::default(),
        DefaultLifecycle::default(),
    )
}
