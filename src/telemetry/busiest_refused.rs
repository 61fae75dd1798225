//! The keys with the most refusals, in bounded memory: the space-saving algorithm of Metwally, Agrawal and
//! El Abbadi, "Efficient Computation of Frequent and Top-k Elements in Data Streams" (2005).
//!
//! At most n keys are counted. Once there are n, a new key replaces the key with the lowest count and takes
//! over that count. So a count is never too low, and it is too high by at most the count that was taken over.
//! A key with more than 1/n of all refusals is always among the counted keys.

use std::cmp::Reverse;
use std::num::NonZeroUsize;
use std::sync::{Mutex, MutexGuard, PoisonError};

use hashbrown::HashTable;

use crate::key::{Fingerprint, Key};

/// A key that was refused often, and the number of its refusals.
///
/// [`Admin::busiest_refused`](crate::Admin::busiest_refused) returns a list of these. The real number of
/// refusals is from `refused - error` to `refused`. The error is 0 while at most as many keys were refused as
/// [`RateLimiter::track_refused`](crate::RateLimiter::track_refused) tracks.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RefusedKey {
    /// The key as it is stored. Values of headers, for example, are stored as a hash.
    pub key: Key,
    /// The highest possible number of refusals.
    pub refused: u64,
    /// The amount by which `refused` may be too high.
    pub error: u64,
}

/// The size of the hash table relative to the number of keys. Removals from a full table leave tombstones,
/// and cause rehashes.
const TABLE_SIZE_FACTOR: usize = 4;

/// The most keys for which the hash table is allocated at first.
const MAX_INITIAL_CAPACITY: usize = 1_000;

/// The refusals of the most refused keys.
#[derive(Debug)]
pub(super) struct MostRefused {
    capacity: NonZeroUsize,
    counts: Mutex<Counts>,
}

#[derive(Debug, Default)]
struct Counts {
    keys: Vec<RefusedKey>,
    /// The index of each key.
    indices: HashTable<usize>,
    /// The lowest count when it was last searched for.
    lowest: u64,
    /// The index at which a key with the lowest count was last found.
    hand: usize,
}

impl MostRefused {
    pub(super) fn new(capacity: NonZeroUsize) -> Self {
        let initial = capacity.get().min(MAX_INITIAL_CAPACITY);
        Self {
            capacity,
            counts: Mutex::new(Counts {
                indices: HashTable::with_capacity(initial * TABLE_SIZE_FACTOR),
                ..Counts::default()
            }),
        }
    }

    pub(super) fn capacity(&self) -> NonZeroUsize {
        self.capacity
    }

    /// Counts a refusal of a key.
    pub(super) fn record(&self, key: &Key) {
        self.lock().record(key, self.capacity.get());
    }

    /// Returns up to `max` keys with the most refusals, in descending order.
    pub(super) fn top(&self, max: usize) -> Vec<RefusedKey> {
        let mut keys = self.lock().keys.clone();
        keys.sort_by(|one, two| {
            let order = |key: &RefusedKey| (Reverse(key.refused), key.error);
            order(one)
                .cmp(&order(two))
                .then_with(|| one.key.cmp(&two.key))
        });
        keys.truncate(max);
        keys
    }

    fn lock(&self) -> MutexGuard<'_, Counts> {
        // Poisoning is ignored: the counts are consistent between any two steps.
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Counts {
    fn record(&mut self, key: &Key, capacity: usize) {
        let fingerprint = key.fingerprint();
        let is_same = |index: &usize| self.is_at(*index, fingerprint);
        let index = match self.indices.find(fingerprint.hash(), is_same) {
            Some(index) => *index,
            None if self.keys.len() < capacity => self.append(key),
            None => self.replace_lowest(key),
        };
        if let Some(counted) = self.keys.get_mut(index) {
            counted.refused += 1;
        }
    }

    fn append(&mut self, key: &Key) -> usize {
        let index = self.keys.len();
        self.keys.push(RefusedKey {
            key: key.clone(),
            refused: 0,
            error: 0,
        });
        self.add_index(index);
        index
    }

    /// Replaces a key that has the lowest count. The new key takes over that count, as it may have been refused
    /// that often before.
    fn replace_lowest(&mut self, key: &Key) -> usize {
        let index = self.find_lowest();
        let Some(counted) = self.keys.get_mut(index) else {
            return index;
        };
        let replaced = std::mem::replace(&mut counted.key, key.clone());
        counted.error = counted.refused;
        let hash = replaced.fingerprint().hash();
        if let Ok(entry) = self.indices.find_entry(hash, |other| *other == index) {
            entry.remove();
        }
        self.add_index(index);
        index
    }

    /// Returns the index of a key with the lowest count.
    ///
    /// Counts only grow. So a key whose count is at most the last lowest count has the lowest count now, and
    /// the search continues from the last key found.
    fn find_lowest(&mut self) -> usize {
        let count_at = |index: usize| self.keys.get(index).map(|counted| counted.refused);
        let len = self.keys.len();
        let indices = (self.hand..len).chain(0..self.hand);
        let is_lowest = |index: &usize| count_at(*index) <= Some(self.lowest);
        if let Some(index) = indices.clone().find(is_lowest) {
            self.hand = index;
            return index;
        }
        let index = indices
            .min_by_key(|index| count_at(*index))
            .unwrap_or_default();
        self.lowest = count_at(index).unwrap_or_default();
        self.hand = index;
        index
    }

    fn is_at(&self, index: usize, fingerprint: Fingerprint) -> bool {
        let counted = self.keys.get(index);
        counted.is_some_and(|counted| counted.key.fingerprint() == fingerprint)
    }

    fn add_index(&mut self, index: usize) {
        let Self { keys, indices, .. } = self;
        let hash = |index: &usize| {
            let counted = keys.get(*index);
            counted.map_or(0, |counted| counted.key.fingerprint().hash())
        };
        indices.insert_unique(hash(&index), index, hash);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    fn count_all(capacity: usize, stream: &[u16]) -> (Vec<RefusedKey>, HashMap<Key, u64>) {
        let refused = MostRefused::new(NonZeroUsize::new(capacity).unwrap());
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
        let refused = MostRefused::new(NonZeroUsize::new(5).unwrap());
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
}
