//! Units that were taken for a check that has not ended.

use std::sync::Arc;

use super::lease::Lease;
use super::table::Place;
use crate::decision::GrantUnits;
use crate::key::Key;
use crate::quota::Quotas;

/// Units that were taken for a check that has not ended. They are returned on drop, unless they were
/// [used](Self::into_used).
#[derive(Debug)]
pub(in crate::limiter) struct HeldUnits {
    lease: Arc<Lease>,
    key: Key,
    quotas: Quotas,
    taken: Vec<GrantUnits>,
}

impl HeldUnits {
    pub(super) fn new(lease: &Arc<Lease>, place: Place<'_>, taken: Vec<GrantUnits>) -> Self {
        Self {
            lease: Arc::clone(lease),
            key: place.key.clone(),
            quotas: place.quotas.clone(),
            taken,
        }
    }

    pub(in crate::limiter) fn units(&self) -> u32 {
        let units = self.taken.iter().map(|taken| taken.units);
        units.fold(0, u32::saturating_add)
    }

    /// Returns the units for the decision of an admitted check, which then holds them.
    pub(in crate::limiter) fn into_used(mut self) -> Vec<GrantUnits> {
        std::mem::take(&mut self.taken)
    }
}

impl Drop for HeldUnits {
    fn drop(&mut self) {
        for taken in std::mem::take(&mut self.taken) {
            let place = Place {
                key: &self.key,
                quotas: &self.quotas,
            };
            self.lease.give_back_later(place, &taken);
        }
    }
}
