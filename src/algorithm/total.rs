//! The total: one count of all units that were ever charged. The same rule in Redis: `lua/total.lua`.
//!
//! Nothing depends on the time but the generation, by which refunds find their charges however old they are.

use super::bytes::{Bytes, impl_bytes};
use super::counter_state::CountingRule;
use super::quota_check::{Charge, QuotaCheck};

/// The units that were charged and not given back.
#[derive(Clone, Debug, Default)]
pub(crate) struct Total {
    count: u64,
}

impl_bytes!(Total { count });

impl CountingRule for Total {
    const UNITS_RETURN: bool = false;

    #[inline]
    fn is_in_future(&self, _: &QuotaCheck<'_>) -> bool {
        false
    }

    #[inline]
    fn current(&self, _: &QuotaCheck<'_>) -> Self {
        self.clone()
    }

    #[inline]
    fn used(&self, _: &QuotaCheck<'_>) -> u64 {
        self.count
    }

    #[inline]
    fn time_until(&self, _: &QuotaCheck<'_>, _: u64) -> u64 {
        u64::MAX
    }

    #[inline]
    fn charge(&mut self, _: &QuotaCheck<'_>, cost: u64) -> bool {
        self.count = (self.count + cost).min(u32::MAX.into());
        false
    }

    #[inline]
    fn position(&self, _: &QuotaCheck<'_>) -> u64 {
        0
    }

    fn refund(&mut self, _: &QuotaCheck<'_>, _: Charge, units: u64) {
        self.count = self.count.saturating_sub(units);
    }

    fn credit(&mut self, _: &QuotaCheck<'_>, units: u64) {
        self.count = self.count.saturating_sub(units);
    }

    #[cfg(feature = "redis")]
    fn from_numbers(numbers: &[u64]) -> Option<Self> {
        let &[count] = numbers else {
            return None;
        };
        Some(Self { count })
    }

    #[cfg(feature = "redis")]
    fn remove_latest(&mut self, units: u64) {
        self.count = self.count.saturating_sub(units);
    }
}
