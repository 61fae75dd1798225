//! The random part of the names of one run.

use std::hash::{BuildHasher, RandomState};

/// Returns a name that no other run has, so that no run finds what another has stored.
pub(crate) fn run_name() -> String {
    // Each `RandomState` has a random key, so the hash of a constant is a random number.
    format!("{:016x}", RandomState::new().hash_one(0))
}
