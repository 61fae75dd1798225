//! The key of a line.

use std::hash::{Hash, Hasher};

use crate::decision::LimiterId;
use crate::key::Fingerprint;
use crate::quota::ShareId;

/// The key of a line. Each share of a key has its own.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(in crate::limiter) struct LineKey {
    pub(in crate::limiter) limiter: LimiterId,
    pub(in crate::limiter) key: Fingerprint,
    pub(in crate::limiter) share: Option<ShareId>,
}

/// A fingerprint is as random as any hash of it. An arrival looks for its lines several times.
impl Hash for LineKey {
    fn hash<H: Hasher>(&self, state: &mut H) {
        let key = self.key.within(self.limiter.name);
        state.write_u64(key.hash());
    }
}
