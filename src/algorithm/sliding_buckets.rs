//! The sliding window in steps: counts of short aligned buckets, each of which counts in full until
//! the last moment that it holds is a window back.
//!
//! Never more than the limit in any span as long as the window, and a unit returns at most window/n
//! late. Twin of `lua/sliding_buckets.lua`.

use std::borrow::Cow;

use super::counter_state::CountingRule;
use super::quota_check::{Charge, QuotaCheck};

/// The counts of the buckets that are not empty, oldest first.
#[derive(Clone, Debug, Default)]
pub(crate) struct SlidingBuckets {
    buckets: Vec<Bucket>,
}

#[derive(Clone, Copy, Debug)]
struct Bucket {
    /// Which bucket since the epoch.
    index: u64,
    count: u64,
}

/// How long a bucket is. Rounded up: so n + 1 of them cover all that counts.
fn length(question: &QuotaCheck) -> u64 {
    question.window.div_ceil(question.parts)
}

/// When the units of a bucket have returned: a window after the last of its moments.
fn returned_at(question: &QuotaCheck, index: u64) -> u64 {
    (index + 1) * length(question) - 1 + question.window
}

impl CountingRule for SlidingBuckets {
    fn is_after(&self, question: &QuotaCheck) -> bool {
        let current = question.now / length(question);
        self.buckets.last().is_some_and(|last| last.index > current)
    }

    fn at(&self, _: &QuotaCheck) -> Cow<'_, Self> {
        Cow::Borrowed(self)
    }

    fn settle(&mut self, question: &QuotaCheck) {
        self.buckets
            .retain(|bucket| returned_at(question, bucket.index) > question.now);
        let current = question.now / length(question);
        let before = self
            .buckets
            .partition_point(|bucket| bucket.index <= current);
        let after = self.buckets.drain(before..).map(|bucket| bucket.count);
        let moved = after.sum();
        if moved > 0 {
            self.add_to(current, moved);
        }
    }

    fn used(&self, question: &QuotaCheck) -> u64 {
        self.counting(question).map(|bucket| bucket.count).sum()
    }

    fn until(&self, question: &QuotaCheck, target: u64) -> u64 {
        let mut used = self.used(question);
        for bucket in self.counting(question) {
            used -= bucket.count;
            if used <= target {
                return returned_at(question, bucket.index) - question.now;
            }
        }
        0
    }

    fn add(&mut self, question: &QuotaCheck, cost: u64) -> bool {
        self.add_to(question.now / length(question), cost);
        false
    }

    fn mark(&self, question: &QuotaCheck) -> u64 {
        question.now / length(question)
    }

    fn take(&mut self, _: &QuotaCheck, charge: Charge, units: u64) -> bool {
        let mut taken = false;
        self.buckets.retain_mut(|bucket| {
            if bucket.index == charge.receipt.position {
                bucket.count = bucket.count.saturating_sub(units);
                taken = true;
            }
            bucket.count > 0
        });
        taken
    }

    /// Of the oldest first: they would be back soon, and the youngest are those that recent charges
    /// find again.
    fn credit(&mut self, question: &QuotaCheck, units: u64) {
        let mut left = units;
        self.buckets.retain_mut(|bucket| {
            if returned_at(question, bucket.index) > question.now {
                let given = bucket.count.min(left);
                bucket.count -= given;
                left -= given;
            }
            bucket.count > 0
        });
    }
}

impl SlidingBuckets {
    /// The buckets that count now, those after now as this one.
    fn counting(&self, question: &QuotaCheck) -> impl Iterator<Item = Bucket> {
        let (now, length) = (question.now, length(question));
        let returned = (now + 1).saturating_sub(question.window) / length;
        let current = now / length;
        let counting = self.buckets.iter();
        counting
            .skip_while(move |bucket| bucket.index < returned)
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
        fn no_more_than_one_bucket_more_than_there_are_parts_is_kept(
            window in 1_000..100_000_u64,
            parts in 1..=1_000_u64,
            steps in prop::collection::vec(0..300_u64, 1..400),
        ) {
            let mut buckets = SlidingBuckets::default();
            let mut question = QuotaCheck { limit: 1, window, parts, cost: 1, now: 1_000_000 };
            for step in steps {
                question.now += step;
                buckets.settle(&question);
                buckets.add(&question, 1);
                prop_assert!(buckets.buckets.len() as u64 <= parts + 1);
            }
        }
    }
}
