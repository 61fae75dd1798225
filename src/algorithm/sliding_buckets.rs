//! The sliding window in steps: counts of short aligned buckets. A bucket counts in full until its last
//! moment is one window ago.
//!
//! Admits at most the limit in any span as long as the window. A unit returns at most window/n late. The same
//! rule in Redis: `lua/sliding_buckets.lua`.

use std::borrow::Cow;

use super::counter_state::CountingRule;
use super::quota_check::{Charge, QuotaCheck};

/// The buckets that are not empty, oldest first.
#[derive(Clone, Debug, Default)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize, serde::Serialize))]
pub(crate) struct SlidingBuckets {
    buckets: Vec<Bucket>,
}

#[derive(Clone, Copy, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize, serde::Serialize))]
struct Bucket {
    /// The number of the bucket, counted from the epoch.
    index: u64,
    count: u64,
}

/// Returns the length of a bucket, rounded up so that n + 1 buckets cover the window.
fn bucket_length(check: &QuotaCheck) -> u64 {
    check.window.div_ceil(check.parts)
}

/// Returns the time at which the units of a bucket return: one window after its last moment.
fn returns_at(check: &QuotaCheck, index: u64) -> u64 {
    (index + 1) * bucket_length(check) - 1 + check.window
}

impl CountingRule for SlidingBuckets {
    fn is_in_future(&self, check: &QuotaCheck) -> bool {
        let current = check.now / bucket_length(check);
        self.buckets.last().is_some_and(|last| last.index > current)
    }

    fn current(&self, _: &QuotaCheck) -> Cow<'_, Self> {
        Cow::Borrowed(self)
    }

    fn advance(&mut self, check: &QuotaCheck) {
        self.buckets
            .retain(|bucket| returns_at(check, bucket.index) > check.now);
        let current = check.now / bucket_length(check);
        let until_now = self
            .buckets
            .partition_point(|bucket| bucket.index <= current);
        let in_future = self.buckets.drain(until_now..).map(|bucket| bucket.count);
        let moved = in_future.sum();
        if moved > 0 {
            self.add_to(current, moved);
        }
    }

    fn used(&self, check: &QuotaCheck) -> u64 {
        self.counting(check).map(|bucket| bucket.count).sum()
    }

    fn time_until(&self, check: &QuotaCheck, target: u64) -> u64 {
        let mut used = self.used(check);
        for bucket in self.counting(check) {
            used -= bucket.count;
            if used <= target {
                return returns_at(check, bucket.index) - check.now;
            }
        }
        0
    }

    fn charge(&mut self, check: &QuotaCheck, cost: u64) -> bool {
        self.add_to(check.now / bucket_length(check), cost);
        false
    }

    fn position(&self, check: &QuotaCheck) -> u64 {
        check.now / bucket_length(check)
    }

    fn refund(&mut self, _: &QuotaCheck, charge: Charge, units: u64) -> bool {
        let mut found = false;
        self.buckets.retain_mut(|bucket| {
            if bucket.index == charge.receipt.position {
                bucket.count = bucket.count.saturating_sub(units);
                found = true;
            }
            bucket.count > 0
        });
        found
    }

    /// Removes the oldest units first. They would return soonest, and recent charges can then still be
    /// refunded.
    fn credit(&mut self, check: &QuotaCheck, units: u64) {
        let mut left = units;
        self.buckets.retain_mut(|bucket| {
            if returns_at(check, bucket.index) > check.now {
                let taken = bucket.count.min(left);
                bucket.count -= taken;
                left -= taken;
            }
            bucket.count > 0
        });
    }
}

impl SlidingBuckets {
    /// Returns the buckets that count now. Buckets in the future count as the current one.
    fn counting(&self, check: &QuotaCheck) -> impl Iterator<Item = Bucket> {
        let (now, length) = (check.now, bucket_length(check));
        let first = (now + 1).saturating_sub(check.window) / length;
        let current = now / length;
        let counting = self.buckets.iter();
        counting
            .skip_while(move |bucket| bucket.index < first)
            .map(move |bucket| Bucket {
                index: bucket.index.min(current),
                count: bucket.count,
            })
    }

    fn add_to(&mut self, index: u64, count: u64) {
        match self.buckets.last_mut() {
            Some(last) if last.index == index => last.count += count,
            _ => self.buckets.push(Bucket { index, count }),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn at_most_n_plus_1_buckets_are_stored(
            window in 1_000..100_000_u64,
            parts in 1..=1_000_u64,
            steps in prop::collection::vec(0..300_u64, 1..400),
        ) {
            let mut buckets = SlidingBuckets::default();
            let mut check = QuotaCheck { limit: 1, window, parts, cost: 1, now: 1_000_000, calendar: None };
            for step in steps {
                check.now += step;
                buckets.advance(&check);
                buckets.charge(&check, 1);
                prop_assert!(buckets.buckets.len() as u64 <= parts + 1);
            }
        }
    }
}
