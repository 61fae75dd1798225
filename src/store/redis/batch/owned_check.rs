//! A check that waits, and the work that it is for Redis.

use crate::key::Key;
use crate::quota::{Algorithm, Quota, Quotas};
use crate::store::redis::protocol::MAX_ENTRY_UNITS;
use crate::store::requests::{Check, Subject};

/// The work of an entry for each stored count, and of each of its checks: about what the benches
/// measure. A bucket of a window takes a tenth of a microsecond more, and a unit `work_per_unit` of its
/// algorithm.
const WORK_PER_COUNT: u64 = 28;
const WORK_PER_CHECK: u64 = 8;

/// A [`Check`] that outlives its caller's borrow.
#[derive(Clone, Debug)]
pub(in crate::store::redis) struct OwnedCheck {
    limiter: Key,
    key: Key,
    quotas: Quotas,
    cost: u32,
}

impl OwnedCheck {
    pub(in crate::store::redis) fn check(&self) -> Check<'_> {
        Check {
            subject: Subject {
                limiter: &self.limiter,
                key: &self.key,
                quotas: &self.quotas,
            },
            cost: self.cost,
        }
    }

    /// Whether a check of the same key has the same cost and quotas.
    pub(super) fn is_identical(&self, check: Check<'_>) -> bool {
        self.cost == check.cost() && self.quotas == *check.quotas()
    }

    pub(super) fn work_of_entry(&self) -> u64 {
        let quotas = self.quotas.strictest();
        let work = |quota: &Quota| WORK_PER_COUNT + quota.counted_by().parts();
        quotas.map(work).sum()
    }

    pub(super) fn work_of_check(&self) -> u64 {
        let work_of_units = |algorithm: Algorithm| {
            let per_unit = algorithm.facts().work_per_unit;
            // Each check adds up the buckets.
            u64::from(self.cost) * per_unit + algorithm.parts() / 4
        };
        let quotas = self.quotas.strictest();
        quotas
            .map(|quota| WORK_PER_CHECK + work_of_units(quota.counted_by()))
            .sum()
    }

    /// Returns how many such checks fit into this much work, as one entry.
    pub(super) fn checks_within(&self, work: u64) -> usize {
        let left = work.saturating_sub(self.work_of_entry());
        let within_work = left / self.work_of_check().max(1);
        let within_units = (MAX_ENTRY_UNITS / u64::from(self.cost.max(1))).max(1);
        usize::try_from(within_work.min(within_units)).unwrap_or(usize::MAX)
    }
}

impl From<Check<'_>> for OwnedCheck {
    fn from(check: Check<'_>) -> Self {
        Self {
            limiter: check.limiter().clone(),
            key: check.key().clone(),
            quotas: check.quotas().clone(),
            cost: check.cost(),
        }
    }
}
