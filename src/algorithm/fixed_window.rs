//! The plain limit: one count for each aligned window.
//!
//! Windows begin at multiples of their length since the epoch of the store's clock. Never more than
//! the limit within one of them; up to twice the limit in a span across an edge. Twin of
//! `lua/fixed_window.lua`.

use std::borrow::Cow;

use super::arithmetic::aligned;
use super::counter_state::CountingRule;
use super::quota_check::{Charge, QuotaCheck};

/// The count of one window.
#[derive(Clone, Debug, Default)]
pub(crate) struct FixedWindow {
    window: u64,
    count: u64,
}

impl CountingRule for FixedWindow {
    fn is_after(&self, question: &QuotaCheck) -> bool {
        self.window > aligned(question.now, question.window).0
    }

    fn at(&self, question: &QuotaCheck) -> Cow<'_, Self> {
        let (window, _) = aligned(question.now, question.window);
        let count = if self.window >= window { self.count } else { 0 };
        Cow::Owned(Self { window, count })
    }

    fn used(&self, _: &QuotaCheck) -> u64 {
        self.count
    }

    fn until(&self, question: &QuotaCheck, _: u64) -> u64 {
        aligned(question.now, question.window).1
    }

    fn add(&mut self, _: &QuotaCheck, cost: u64) -> bool {
        self.count += cost;
        false
    }

    fn mark(&self, _: &QuotaCheck) -> u64 {
        self.window
    }

    fn take(&mut self, _: &QuotaCheck, charge: Charge, units: u64) -> bool {
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
