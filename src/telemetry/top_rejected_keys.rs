//! The keys with the most recent refusals, in bounded memory: the space-saving algorithm of Metwally, Agrawal
//! and El Abbadi, "Efficient Computation of Frequent and Top-k Elements in Data Streams" (2005), with counts that
//! decay.
//!
//! At most n keys are counted. Once there are n, a new key replaces the key with the lowest count and takes
//! over that count. So a count is never too low, and it is too high by at most the count that was taken over.
//! A key with more than 1/n of all refusals is always among the counted keys.
//!
//! Once per minute, all counts are lowered by the same factor, so that a refusal counts half after 10 minutes.
//! Counts are whole numbers of a small fraction of a refusal.

use std::cmp::Reverse;
use std::collections::{BTreeSet, HashMap};
use std::num::NonZeroUsize;
use std::time::Duration;

use crate::clock::{Clock, micros};
use crate::key::{Fingerprint, HashFingerprint, Key};
use crate::lock::Mutex;

/// A key that was refused often, and the number of its recent refusals.
///
/// [`Admin::top_rejected_keys`](crate::Admin::top_rejected_keys) returns a list of these. A refusal counts less the
/// older it is: one half after 10 minutes, a quarter after 20 minutes, 1/64 after an hour. The numbers fall once
/// per minute. A key that is refused once per second all the time has about 870.
///
/// The real number is from `refused - error` to `refused`. The error is 0 while at most as many keys were
/// refused as [`RateLimiter::track_rejected_keys`](crate::RateLimiter::track_rejected_keys) tracks. Both numbers are rounded
/// to whole refusals.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RejectedKey {
    /// The key as it is stored. Values of headers, for example, are stored as a hash.
    pub key: Key,
    /// The highest possible number of recent refusals.
    pub refused: u64,
    /// The amount by which `refused` may be too high.
    pub error: u64,
}

/// The time after which a refusal counts half. Operators look for the keys that are refused now, and within an
/// hour an offender that has stopped falls to 1/64.
const HALF_LIFE: Duration = Duration::from_secs(600);

/// The time between two decays. The tenth part of a half-life, so that counts fall smoothly.
const DECAY_INTERVAL: Duration = Duration::from_secs(60);

const INTERVALS_PER_HALF_LIFE: u64 = HALF_LIFE.as_secs() / DECAY_INTERVAL.as_secs();

/// The part of a count that is left after one decay, of [`DECAY_WHOLE`]: the tenth root of 1/2, to 16 bits.
const DECAY_PART: u64 = 61_147;

const DECAY_WHOLE: u64 = 65_536;

/// The count of one refusal. A fraction of a refusal is left after a decay.
const ONE: u64 = 1_024;

/// The refusals of the top rejected keys.
#[derive(Debug)]
pub(super) struct TopRejectedKeys {
    capacity: NonZeroUsize,
    clock: Clock,
    counts: Mutex<RefusalCounts>,
}

#[derive(Debug, Default)]
struct RefusalCounts {
    keys: HashMap<Fingerprint, CountedKey, HashFingerprint>,
    /// The count of each key, from the lowest one.
    by_count: BTreeSet<(u64, Fingerprint)>,
    /// The time of the last decay, in microseconds.
    decayed_at: u64,
}

/// A key, and its refusals in fractions of [`ONE`].
#[derive(Clone, Debug)]
struct CountedKey {
    key: Key,
    refused: u64,
    error: u64,
}

impl TopRejectedKeys {
    pub(super) fn new(capacity: NonZeroUsize) -> Self {
        Self::on_clock(capacity, Clock::monotonic())
    }

    fn on_clock(capacity: NonZeroUsize, clock: Clock) -> Self {
        Self {
            capacity,
            counts: Mutex::new(RefusalCounts {
                decayed_at: clock.now(),
                ..RefusalCounts::default()
            }),
            clock,
        }
    }

    pub(super) fn capacity(&self) -> NonZeroUsize {
        self.capacity
    }

    pub(super) fn record(&self, key: &Key) {
        let now = self.clock.now();
        self.counts.lock().record(key, self.capacity.get(), now);
    }

    pub(super) fn top(&self, max: usize) -> Vec<RejectedKey> {
        let now = self.clock.now();
        let mut counts = self.counts.lock();
        counts.decay_until(now);
        let mut keys: Vec<_> = counts
            .keys
            .values()
            .map(CountedKey::rounded)
            .filter(|key| key.refused > 0)
            .collect();
        drop(counts);
        keys.sort_by_cached_key(|key| (Reverse(key.refused), key.error, key.key.clone()));
        keys.truncate(max);
        keys
    }
}

impl CountedKey {
    fn rounded(&self) -> RejectedKey {
        RejectedKey {
            key: self.key.clone(),
            refused: whole_refusals(self.refused),
            error: whole_refusals(self.error),
        }
    }
}

fn whole_refusals(count: u64) -> u64 {
    count.saturating_add(ONE / 2) / ONE
}

fn decay_once(count: u64) -> u64 {
    // Neither product overflows.
    count / DECAY_WHOLE * DECAY_PART + count % DECAY_WHOLE * DECAY_PART / DECAY_WHOLE
}

fn decay(count: u64, intervals: u64) -> u64 {
    // Each count is 0 after 64 half-lives.
    let half_lives = u32::try_from(intervals / INTERVALS_PER_HALF_LIFE).unwrap_or(u32::MAX);
    let halved = count.checked_shr(half_lives).unwrap_or(0);
    let rest = intervals % INTERVALS_PER_HALF_LIFE;
    (0..rest).fold(halved, |count, _| decay_once(count))
}

impl RefusalCounts {
    fn record(&mut self, key: &Key, capacity: usize, now: u64) {
        self.decay_until(now);
        let id = key.fingerprint();
        let mut error = 0;
        if self.keys.len() >= capacity && !self.keys.contains_key(&id) {
            error = self.remove_lowest();
        }
        let counted = self.keys.entry(id).or_insert_with(|| CountedKey {
            key: key.clone(),
            refused: error,
            error,
        });
        self.by_count.remove(&(counted.refused, id));
        counted.refused = counted.refused.saturating_add(ONE);
        self.by_count.insert((counted.refused, id));
    }

    /// Removes a key that has the lowest count. Returns the count: a new key takes it over, as it may have been refused
    /// that often before.
    fn remove_lowest(&mut self) -> u64 {
        let Some((count, id)) = self.by_count.pop_first() else {
            return 0;
        };
        self.keys.remove(&id);
        count
    }

    #[inline]
    fn decay_until(&mut self, now: u64) {
        let elapsed = now.saturating_sub(self.decayed_at);
        let interval = micros(DECAY_INTERVAL);
        if elapsed >= interval {
            self.decay(elapsed / interval);
            self.decayed_at = now - elapsed % interval;
        }
    }

    #[cold]
    fn decay(&mut self, intervals: u64) {
        for counted in self.keys.values_mut() {
            counted.refused = decay(counted.refused, intervals);
            counted.error = decay(counted.error, intervals);
        }
        self.by_count = self
            .keys
            .iter()
            .map(|(id, counted)| (counted.refused, *id))
            .collect();
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    fn count_all(capacity: usize, stream: &[u16]) -> (Vec<RejectedKey>, HashMap<Key, u64>) {
        let refused = TopRejectedKeys::new(NonZeroUsize::new(capacity).unwrap());
        let mut exact = HashMap::new();
        for number in stream {
            let key = Key::from(number.to_string());
            refused.record(&key);
            *exact.entry(key).or_default() += 1;
        }
        (refused.top(usize::MAX), exact)
    }

    proptest! {
        #[test]
        fn a_count_is_never_too_low_and_at_most_its_error_too_high(
            capacity in 1..20_usize,
            stream in prop::collection::vec((0..60_u16, 0..60_u16).prop_map(|(a, b)| a.min(b)), 0..600),
        ) {
            let (counted, exact) = count_all(capacity, &stream);
            prop_assert!(counted.len() <= capacity);
            prop_assert_eq!(counted.iter().map(|key| key.refused).sum::<u64>(), stream.len() as u64);
            for key in &counted {
                let expected = exact[&key.key];
                prop_assert!(key.refused >= expected && key.refused - key.error <= expected);
                prop_assert!(key.error <= (stream.len() / capacity) as u64);
            }
            prop_assert!(counted.is_sorted_by_key(|key| Reverse(key.refused)));
            // A key with more than one part in `capacity` of all refusals is counted.
            for (key, expected) in exact {
                let must = expected > (stream.len() / capacity) as u64;
                prop_assert!(!must || counted.iter().any(|counted| counted.key == key));
            }
        }

        #[test]
        fn few_keys_are_counted_exactly(stream in prop::collection::vec(0..10_u16, 0..300)) {
            let (counted, exact) = count_all(10, &stream);
            prop_assert_eq!(counted.len(), exact.len());
            for key in counted {
                prop_assert_eq!((key.refused, key.error), (exact[&key.key], 0));
            }
        }
    }

    #[test]
    fn no_more_keys_are_returned_than_requested() {
        let refused = TopRejectedKeys::new(NonZeroUsize::new(5).unwrap());
        for key in ["a", "b", "b", "c", "c", "c"] {
            refused.record(&Key::from(key));
        }
        let top = refused.top(2);
        let top: Vec<_> = top
            .iter()
            .map(|key| (key.key.as_str(), key.refused))
            .collect();
        assert_eq!(top, [("c", 3), ("b", 2)]);
    }

    #[cfg(feature = "test-util")]
    mod decay {
        use super::*;
        use crate::clock::TestClock;

        fn on_test_clock(capacity: usize) -> (TopRejectedKeys, TestClock) {
            let clock = TestClock::new();
            let capacity = NonZeroUsize::new(capacity).unwrap();
            let refused = TopRejectedKeys::on_clock(capacity, Clock::Test(clock.clone()));
            (refused, clock)
        }

        fn number(count: u64) -> f64 {
            f64::from(u32::try_from(count).unwrap())
        }

        fn record_often(refused: &TopRejectedKeys, key: &str, times: usize) {
            (0..times).for_each(|_| refused.record(&Key::from(key)));
        }

        fn counts(refused: &TopRejectedKeys) -> Vec<(String, u64)> {
            refused
                .top(usize::MAX)
                .into_iter()
                .map(|key| (key.key.as_str().to_owned(), key.refused))
                .collect()
        }

        #[test]
        fn a_refusal_counts_half_after_ten_minutes_and_in_the_end_not_at_all() {
            let (refused, clock) = on_test_clock(5);
            record_often(&refused, "ada", 1_000);
            clock.advance(DECAY_INTERVAL - Duration::from_micros(1));
            assert_eq!(counts(&refused), [("ada".into(), 1_000)]);
            clock.advance(Duration::from_micros(1));
            assert_eq!(counts(&refused), [("ada".into(), 933)]);
            // The time since the last decay is not lost, however often someone looks.
            for _ in 0..12 {
                clock.advance(Duration::from_secs(45));
                let _ = refused.top(1);
            }
            assert_eq!(counts(&refused), [("ada".into(), 500)]);
            clock.advance(5 * HALF_LIFE);
            assert_eq!(counts(&refused), [("ada".into(), 16)]);
            clock.advance(Duration::from_secs(86_400));
            assert_eq!(counts(&refused), []);
        }

        #[test]
        fn an_offender_of_yesterday_is_below_one_of_now() {
            let (refused, clock) = on_test_clock(2);
            record_often(&refused, "yesterday", 1_000_000);
            record_often(&refused, "also yesterday", 900_000);
            clock.advance(Duration::from_secs(86_400));
            record_often(&refused, "now", 3);
            // It has taken over nothing from the key in whose place it is counted.
            let expected = RejectedKey {
                key: Key::from("now"),
                refused: 3,
                error: 0,
            };
            assert_eq!(refused.top(usize::MAX), [expected]);
        }

        #[test]
        fn after_a_decay_the_key_with_the_lowest_count_is_replaced() {
            let (refused, clock) = on_test_clock(2);
            record_often(&refused, "ada", 40);
            record_often(&refused, "bob", 50);
            // It replaces ada: the lowest count was 40.
            record_often(&refused, "cay", 1);
            clock.advance(HALF_LIFE);
            record_often(&refused, "cay", 10);
            // Now bob has 25, and cay 31 when rounded.
            record_often(&refused, "dan", 1);
            assert_eq!(counts(&refused), [("cay".into(), 31), ("dan".into(), 26)]);
        }

        #[test]
        fn a_steady_rate_has_a_steady_count() {
            let (refused, clock) = on_test_clock(5);
            for _ in 0..7_200 {
                clock.advance(Duration::from_secs(1));
                refused.record(&Key::from("ada"));
            }
            let count = refused.top(1).remove(0).refused;
            assert!((830..=900).contains(&count), "{count}");
        }

        proptest! {
            #[test]
            #[expect(clippy::float_arithmetic, reason = "the model decays exactly")]
            fn decayed_counts_keep_their_bounds(
                capacity in 1..12_usize,
                stream in prop::collection::vec((0..40_u16, prop_oneof![20 => 0..5_u64, 1 => 0..2_000_u64]), 0..400),
            ) {
                let (refused, clock) = on_test_clock(capacity);
                let start = clock.now_micros();
                let mut exact: HashMap<Key, f64> = HashMap::new();
                let mut last = 0;
                for (number, seconds) in stream {
                    clock.advance(Duration::from_secs(seconds));
                    let minute = (clock.now_micros() - start) / 60_000_000;
                    let passed = minute - last;
                    last = minute;
                    let factor = 0.5_f64.powf(f64::from(u32::try_from(passed).unwrap()) / 10.0);
                    exact.values_mut().for_each(|count| *count *= factor);
                    let key = Key::from(number.to_string());
                    refused.record(&key);
                    *exact.entry(key).or_default() += 1.0;
                }
                let all: f64 = exact.values().sum();
                let top = refused.top(usize::MAX);
                for counted in &top {
                    // Each of both numbers is rounded to a whole one.
                    let expected = exact[&counted.key];
                    prop_assert!(number(counted.refused) >= expected - 0.6);
                    prop_assert!(number(counted.error) <= all / number(capacity as u64) + 0.6);
                    prop_assert!(number(counted.refused) - number(counted.error) <= expected + 1.1);
                }
                for (key, expected) in exact {
                    let share = all / f64::from(u32::try_from(capacity).unwrap());
                    prop_assert!(expected <= share + 0.6 || top.iter().any(|counted| counted.key == key));
                }
            }
        }
    }
}
