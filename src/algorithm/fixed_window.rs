//! The fixed window: one count for each aligned window.
//!
//! Windows begin at multiples of their length since the epoch of the store's clock. Admits at most the limit
//! within one window, and up to twice the limit in a span across the edge of two. The same rule in Redis:
//! `lua/fixed_window.lua`.

use std::borrow::Cow;

use super::arithmetic::aligned;
use super::counter_state::CountingRule;
#[cfg(feature = "redis")]
use super::counter_state::FixedNumbers;
use super::quota_check::{Charge, QuotaCheck};

/// The count of one window.
#[derive(Clone, Debug, Default)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize, serde::Serialize))]
pub(crate) struct FixedWindow {
    window: u64,
    count: u64,
}

impl CountingRule for FixedWindow {
    fn is_in_future(&self, check: &QuotaCheck) -> bool {
        self.window > aligned(check.now, check.window).0
    }

    fn current(&self, check: &QuotaCheck) -> Cow<'_, Self> {
        let (window, _) = aligned(check.now, check.window);
        let count = if self.window >= window { self.count } else { 0 };
        Cow::Owned(Self { window, count })
    }

    fn used(&self, _: &QuotaCheck) -> u64 {
        self.count
    }

    fn time_until(&self, check: &QuotaCheck, _: u64) -> u64 {
        aligned(check.now, check.window).1
    }

    fn charge(&mut self, _: &QuotaCheck, cost: u64) -> bool {
        self.count += cost;
        false
    }

    fn position(&self, _: &QuotaCheck) -> u64 {
        self.window
    }

    fn refund(&mut self, _: &QuotaCheck, charge: Charge, units: u64) -> bool {
        let counts = self.window == charge.receipt.position;
        if counts {
            self.count = self.count.saturating_sub(units);
        }
        counts
    }

    fn credit(&mut self, _: &QuotaCheck, units: u64) {
        self.count = self.count.saturating_sub(units);
    }
}

#[cfg(feature = "redis")]
impl FixedNumbers for FixedWindow {
    fn from_numbers(numbers: &[u64]) -> Option<Self> {
        let &[window, count] = numbers else {
            return None;
        };
        Some(Self { window, count })
    }

    fn remove_latest(&mut self, units: u64) {
        self.count = self.count.saturating_sub(units);
    }
}
