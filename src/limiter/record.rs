//! A record with its limiter: one value from the request to the settlement.

use super::limiter::RateLimiter;
use crate::decision::{LevelDecision, Record};
use crate::quota::Quotas;
use crate::store::Subject;

/// A record, and the limiter that it belongs to. A check writes it in place, and its decision keeps it.
#[derive(Clone)]
pub(crate) struct OwnedRecord {
    pub(crate) limiter: RateLimiter,
    pub(crate) record: Record,
}

impl OwnedRecord {
    /// Reads the record. The check is `allowed` if all its levels admit it.
    #[inline]
    pub(crate) fn read(&self, allowed: bool) -> LevelDecision<'_> {
        LevelDecision::new(&self.limiter.0.facts, &self.record, allowed)
    }

    #[inline]
    pub(crate) fn quotas(&self) -> &Quotas {
        self.record.quotas(&self.limiter.0.facts.quotas)
    }

    #[inline]
    pub(super) fn subject(&self) -> Subject<'_> {
        self.limiter.subject_for(&self.record, self.quotas())
    }

    /// A level that was not asked does not admit its cost.
    #[inline]
    pub(super) fn is_admitted(&self) -> bool {
        self.read(true).is_allowed()
    }
}
