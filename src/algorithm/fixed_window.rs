//! The fixed window: one count for each aligned window.
//!
//! Windows begin at multiples of their length since the epoch of the store's clock, or with the days, weeks or months
//! of a calendar. Admits at most the limit
//! within one window, and up to twice the limit in a span across the edge of two. The same rule in Redis:
//! `lua/fixed_window.lua`.
//!
//! After the clock has stepped back, the stored window may be the next one. Its count then stays, and counts
//! until the end of that window: a count that ended earlier would admit the limit a third time within a span.
//! With a calendar, it may also be the one after that, since other zones share the count: their dates may be two days
//! ahead. A count that was moved back to an earlier window would have ended there, and be admitted again.

use super::bytes::{Bytes, impl_bytes};
use super::counter_state::CountingRule;
use super::quota_check::{Charge, QuotaCheck};

/// The count of one window.
#[derive(Clone, Debug, Default)]
pub(crate) struct FixedWindow {
    window: u64,
    count: u64,
}

impl_bytes!(FixedWindow { window, count });

impl CountingRule for FixedWindow {
    #[inline]
    fn is_in_future(&self, check: &QuotaCheck<'_>) -> bool {
        self.window > check.fixed_window().last_index()
    }

    #[inline]
    fn current(&self, check: &QuotaCheck<'_>) -> Self {
        let current = check.fixed_window();
        let is_over = self.window < current.index;
        Self {
            window: self.window.clamp(current.index, current.last_index()),
            count: if is_over { 0 } else { self.count },
        }
    }

    #[inline]
    fn used(&self, _: &QuotaCheck<'_>) -> u64 {
        self.count
    }

    #[inline]
    fn time_until(&self, check: &QuotaCheck<'_>, _: u64) -> u64 {
        check.fixed_window().left_from(self.window)
    }

    #[inline]
    fn charge(&mut self, _: &QuotaCheck<'_>, cost: u64) -> bool {
        self.count = (self.count + cost).min(u32::MAX.into());
        false
    }

    #[inline]
    fn position(&self, _: &QuotaCheck<'_>) -> u64 {
        self.window
    }

    fn refund(&mut self, _: &QuotaCheck<'_>, charge: Charge, units: u64) {
        if self.window == charge.receipt.position {
            self.count = self.count.saturating_sub(units);
        }
    }

    fn credit(&mut self, _: &QuotaCheck<'_>, units: u64) {
        self.count = self.count.saturating_sub(units);
    }

    #[cfg(feature = "redis")]
    fn from_numbers(numbers: &[u64]) -> Option<Self> {
        let &[window, count] = numbers else {
            return None;
        };
        Some(Self { window, count })
    }

    #[cfg(feature = "redis")]
    fn remove_latest(&mut self, units: u64) {
        self.count = self.count.saturating_sub(units);
    }
}
