//! Random keys under the store's prefix, on which the doctor tries things.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};

use tollgate::store::protocol::Subject;
use tollgate::{Key, Quotas};

/// The name of the doctor's limiter.
const LIMITER: &str = "doctor";

/// A random key with quotas, which no other program counts.
#[derive(Debug)]
pub(crate) struct ScratchKey {
    limiter: Key,
    key: Key,
    quotas: Quotas,
}

impl ScratchKey {
    pub(crate) fn new(quotas: impl Into<Quotas>) -> Self {
        // The only source of random numbers in std.
        let random = RandomState::new().build_hasher().finish();
        Self {
            limiter: Key::from(LIMITER),
            key: Key::from(format!("{random:x}")),
            quotas: quotas.into(),
        }
    }

    pub(crate) fn subject(&self) -> Subject<'_> {
        Subject::new(&self.limiter, &self.key, &self.quotas)
    }
}
