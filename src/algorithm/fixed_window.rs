//! The plain limit: one count for each aligned window.
//!
//! Windows begin at multiples of their length since the epoch of the store's clock. Never more than
//! the limit within one of them; up to twice the limit in a span across an edge. Twin of
//! `lua/fixed_window.lua`.

use std::borrow::Cow;

use super::arithmetic::aligned;
use super::tally::Tally;
use super::{Charge, Question};

/// The count of one window.
#[derive(Clone, Debug, Default)]
pub(crate) struct FixedWindow {
    window: u64,
    count: u64,
}

impl Tally for FixedWindow {
    fn is_after(&self, question: &Question) -> bool {
        self.window > aligned(question.now, question.window).0
    }

    fn at(&self, question: &Question) -> Cow<'_, Self> {
        let (window, _) = aligned(question.now, question.window);
        let count = if self.window >= window { self.count } else { 0 };
        Cow::Owned(Self { window, count })
    }

    fn used(&self, _: &Question) -> u64 {
        self.count
    }

    fn until(&self, question: &Question, _: u64) -> u64 {
        aligned(question.now, question.window).1
    }

    fn add(&mut self, _: &Question, cost: u64) -> bool {
        self.count += cost;
        false
    }

    fn mark(&self, _: &Question) -> u64 {
        self.window
    }

    fn take(&mut self, _: &Question, charge: Charge, units: u64) -> bool {
        let counts = self.window == charge.receipt.mark;
        if counts {
            self.count = self.count.saturating_sub(units);
        }
        counts
    }

    fn give(&mut self, _: &Question, units: u64) {
        self.count = self.count.saturating_sub(units);
    }
}
