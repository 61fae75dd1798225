//! The refusals of a key within a time, in ten parts, and its earlier blocks.
//!
//! Never counts a refusal that is older than the time, so a key is never blocked after fewer refusals than its rule
//! says. The same rule in Redis: `lua/refusals.lua`.

use std::time::Duration;

use crate::clock::micros;
use crate::quota::BlockRule;

const PARTS: usize = BlockRule::PARTS;

/// The refusals of a limiter and a key, and its automatic blocks, with the rule of [`BlockRule`]. For stores outside
/// this crate.
///
/// A [`Store`](crate::Store) keeps one value for each limiter and key that was refused lately. In
/// [`count_refusals`](crate::Store::count_refusals), it reads the value, calls [`count`](Self::count), blocks the key if
/// a block is due, calls [`start_block`](Self::start_block) if it did, and writes the value back, in one transaction.
/// With the feature `serde`, the value can be serialized in any format.
///
/// `now` is the time of the store's clock, in microseconds.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use tollgate::BlockRule;
/// use tollgate::store::RefusalRecord;
///
/// let rule = BlockRule::refusals(3).block_for(Duration::from_secs(60)).doubling();
/// let (mut record, now, age) = (RefusalRecord::new(), 1_000_000_000, Duration::ZERO);
/// assert_eq!(record.count(&rule, 2, age, now), None);
/// let due = record.count(&rule, 1, age, now);
/// assert_eq!(due, Some(Duration::from_secs(60)));
///
/// record.start_block(Duration::from_secs(60), now);
/// assert_eq!((record.blocks(), record.blocked_for(now)), (1, due));
/// // The key is blocked, so further refusals do not count.
/// assert_eq!(record.count(&rule, 100, age, now), None);
/// ```
#[derive(Clone, Debug, Default)]
#[cfg_attr(feature = "serde", derive(serde::Deserialize, serde::Serialize))]
pub struct RefusalRecord {
    /// The length of a part, in microseconds.
    width: u64,
    /// The number of the newest part, counted from the epoch.
    newest: u64,
    /// The refusals in each part, oldest first.
    counts: [u32; PARTS],
    /// The blocks that are not forgotten, with one that lasts.
    blocks: u32,
    /// The end of the last block. 0 if there is none.
    blocked_until: u64,
}

impl RefusalRecord {
    /// Creates an empty record.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Counts refusals that happened `age` ago. Returns the duration of the block that is due, if one is.
    ///
    /// Refusals from before the end of the last block do not count.
    #[must_use]
    pub fn count(
        &mut self,
        rule: &BlockRule,
        refusals: u32,
        age: Duration,
        now: u64,
    ) -> Option<Duration> {
        self.forget(rule, now);
        self.advance(rule.part_micros(), now);
        let at = now.saturating_sub(micros(age));
        if at >= self.blocked_until {
            // The width is never 0: `advance` has set it.
            let parts_ago = self.newest - at / self.width.max(1);
            let index = usize::try_from(parts_ago).ok();
            let index = index.and_then(|ago| (PARTS - 1).checked_sub(ago));
            if let Some(count) = index.and_then(|index| self.counts.get_mut(index)) {
                *count = count.saturating_add(refusals);
            }
        }
        let refused: u64 = self.counts.iter().copied().map(u64::from).sum();
        (refused >= u64::from(rule.max_refusals())).then(|| rule.duration_after(self.blocks))
    }

    /// Records that the key is blocked for a duration from now on.
    pub fn start_block(&mut self, duration: Duration, now: u64) {
        self.blocks = self.blocks.saturating_add(1);
        self.blocked_until = now.saturating_add(micros(duration));
        self.counts = [0; PARTS];
    }

    /// Returns the number of automatic blocks that are not forgotten, with one that lasts.
    #[must_use]
    pub fn blocks(&self) -> u32 {
        self.blocks
    }

    /// Returns how long the last automatic block lasts. `None` if it has ended.
    #[must_use]
    pub fn blocked_for(&self, now: u64) -> Option<Duration> {
        let left = self.blocked_until.checked_sub(now)?;
        (left > 0).then(|| Duration::from_micros(left))
    }

    /// Returns the time from which on the record is not needed any more, in microseconds.
    #[must_use]
    pub fn expires_at(&self, rule: &BlockRule) -> u64 {
        let counted_until = if self.counts == [0; PARTS] {
            0
        } else {
            (self.newest + PARTS as u64) * self.width
        };
        let remembered_until = match self.blocks {
            0 => 0,
            _ => self.blocked_until.saturating_add(rule.forgotten_micros()),
        };
        counted_until.max(remembered_until)
    }

    /// Forgets earlier blocks after the quiet time.
    fn forget(&mut self, rule: &BlockRule, now: u64) {
        if now >= self.blocked_until.saturating_add(rule.forgotten_micros()) {
            self.blocks = 0;
            self.blocked_until = 0;
        }
    }

    /// Makes the current part the newest one.
    fn advance(&mut self, width: u64, now: u64) {
        let current = now / width;
        // Another rule counts anew, and so does a clock that was set back.
        if self.width != width || self.newest > current {
            self.counts = [0; PARTS];
        }
        let passed = current.saturating_sub(self.newest);
        match usize::try_from(passed) {
            Ok(passed) if passed < PARTS => {
                self.counts.rotate_left(passed);
                let new = self.counts.iter_mut().rev().take(passed);
                new.for_each(|count| *count = 0);
            }
            _ => self.counts = [0; PARTS],
        }
        (self.width, self.newest) = (width, current);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SECOND: u64 = 1_000_000;
    const RULE: BlockRule = BlockRule::refusals(5)
        .within(Duration::from_secs(10))
        .block_for(Duration::from_secs(20))
        .doubling()
        .max_block(Duration::from_secs(100))
        .forget_after(Duration::from_secs(60));

    proptest! {
        /// The promise, against a list of all refusals and blocks.
        #[test]
        fn a_key_is_blocked_after_that_many_refusals_and_never_after_fewer(
            steps in prop::collection::vec((0..4 * SECOND, 0..4_u32, 0..2 * SECOND), 1..200),
        ) {
            let mut record = RefusalRecord::new();
            let (mut now, mut until, mut blocks) = (100 * SECOND, 0, 0);
            // The times of refusals that count towards the next block.
            let mut refused: Vec<u64> = Vec::new();
            for (step, refusals, age) in steps {
                // Now and then a quiet time.
                now += if step < SECOND / 10 { 1_000 * step } else { step };
                let at = now - age;
                if at >= until {
                    refused.extend((0..refusals).map(|_| at));
                }
                let due = record.count(&RULE, refusals, Duration::from_micros(age), now);
                let within = |span: u64| refused.iter().filter(|at| **at + span > now).count();
                if due.is_some() {
                    prop_assert!(within(10 * SECOND) >= 5);
                } else {
                    prop_assert!(within(9 * SECOND) < 5);
                }
                if let Some(duration) = due {
                    blocks = if now >= until + 60 * SECOND { 0 } else { blocks };
                    let expected = [20, 40, 80, 100][blocks.min(3)];
                    prop_assert_eq!(duration, Duration::from_secs(expected));
                    record.start_block(duration, now);
                    blocks += 1;
                    until = now + expected * SECOND;
                    refused.clear();
                    prop_assert_eq!(record.blocked_for(now), Some(duration));
                    prop_assert_eq!(record.blocked_for(until), None);
                }
                prop_assert!(record.blocks() == 0 || record.expires_at(&RULE) >= until + 60 * SECOND);
            }
        }
    }

    #[test]
    fn a_record_is_needed_while_it_counts() {
        let mut record = RefusalRecord::new();
        assert_eq!(record.expires_at(&RULE), 0);
        let _ = record.count(&RULE, 4, Duration::ZERO, 100 * SECOND + 7);
        let last = record.expires_at(&RULE);
        assert_eq!(last, 110 * SECOND);
        assert!(
            record
                .clone()
                .count(&RULE, 1, Duration::ZERO, last - 1)
                .is_some()
        );
        assert!(record.count(&RULE, 1, Duration::ZERO, last).is_none());
    }

    #[test]
    fn another_time_and_a_clock_that_was_set_back_count_anew() {
        let wider = RULE.within(Duration::from_secs(100));
        let mut record = RefusalRecord::new();
        let _ = record.count(&RULE, 4, Duration::ZERO, 100 * SECOND);
        assert!(
            record
                .clone()
                .count(&wider, 4, Duration::ZERO, 100 * SECOND)
                .is_none()
        );
        assert!(
            record
                .count(&RULE, 4, Duration::ZERO, 90 * SECOND)
                .is_none()
        );
    }
}
