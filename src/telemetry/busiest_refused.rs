//! The keys that are refused most, in bounded memory: the space-saving algorithm of Metwally, Agrawal
//! and El Abbadi, "Efficient Computation of Frequent and Top-k Elements in Data Streams" (2005).
//!
//! As many keys are counted as there are places. Another key takes the place of the one with the
//! least, and its count: so a count is never too low, and too high by that at most. A key that makes up
//! more than one part in so many of all refusals as there are places is always among them.

use std::cmp::Reverse;
use std::num::NonZeroUsize;
use std::sync::{Mutex, MutexGuard, PoisonError};

use hashbrown::HashTable;

use crate::key::Fingerprint;
use crate::key::Key;

/// A key that was refused often, and how often.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RefusedKey {
    /// The key as it is stored: hashed, if what it was made of is.
    pub key: Key,
    /// How often it was refused, at most.
    pub refused: u64,
    /// By how much that may be too high.
    pub error: u64,
}

/// So many times as large as need be is the table of places: in a full one, what is removed leaves marks
/// that have to be swept.
const EMPTY_PLACES: usize = 4;

/// For so many keys at most there is room from the beginning.
const MOST_AT_FIRST: usize = 1_000;

/// So many of the busiest keys.
#[derive(Debug)]
pub(super) struct Busiest {
    capacity: NonZeroUsize,
    counts: Mutex<Counts>,
}

#[derive(Debug, Default)]
struct Counts {
    counted: Vec<RefusedKey>,
    /// Where each key is among them.
    places: HashTable<usize>,
    /// What the least count was when it was last looked for, and where one as small was found.
    least: u64,
    hand: usize,
}

impl Busiest {
    pub(super) fn new(capacity: NonZeroUsize) -> Self {
        Self {
            capacity,
            counts: Mutex::new(Counts {
                places: HashTable::with_capacity(capacity.get().min(MOST_AT_FIRST) * EMPTY_PLACES),
                ..Counts::default()
            }),
        }
    }

    pub(super) fn capacity(&self) -> NonZeroUsize {
        self.capacity
    }

    pub(super) fn refused(&self, key: &Key) {
        self.lock().count(key, self.capacity.get());
    }

    /// The busiest first.
    pub(super) fn first(&self, most: usize) -> Vec<RefusedKey> {
        let mut keys = self.lock().counted.clone();
        keys.sort_by(|one, two| {
            let order = |of: &RefusedKey| (Reverse(of.refused), of.error);
            order(one)
                .cmp(&order(two))
                .then_with(|| one.key.cmp(&two.key))
        });
        keys.truncate(most);
        keys
    }

    fn lock(&self) -> MutexGuard<'_, Counts> {
        // It is whole between any two of its steps.
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Counts {
    fn count(&mut self, key: &Key, capacity: usize) {
        let whose = key.fingerprint();
        let known = |place: &usize| self.is_at(*place, whose);
        let place = match self.places.find(whose.hash(), known) {
            Some(place) => *place,
            None if self.counted.len() < capacity => self.append(key),
            None => self.take_least(key),
        };
        if let Some(counted) = self.counted.get_mut(place) {
            counted.refused += 1;
        }
    }

    fn append(&mut self, key: &Key) -> usize {
        let place = self.counted.len();
        self.counted.push(RefusedKey {
            key: key.clone(),
            refused: 0,
            error: 0,
        });
        self.note_place(place);
        place
    }

    /// Gives the place of the least to another key, which may have been refused as often before.
    fn take_least(&mut self, key: &Key) -> usize {
        let place = self.least_place();
        let Some(counted) = self.counted.get_mut(place) else {
            return place;
        };
        let before = std::mem::replace(&mut counted.key, key.clone());
        counted.error = counted.refused;
        let was_there = |at: &usize| *at == place;
        let hash = before.fingerprint().hash();
        if let Ok(was) = self.places.find_entry(hash, was_there) {
            was.remove();
        }
        self.note_place(place);
        place
    }

    /// Where one of the least is. Counts only grow: as long as there is one that is no more than the least
    /// was, it is found by going on from the last.
    fn least_place(&mut self) -> usize {
        let of = |place: usize| self.counted.get(place).map(|counted| counted.refused);
        let places = self.counted.len();
        let onward = (self.hand..places).chain(0..self.hand);
        if let Some(place) = onward.clone().find(|place| of(*place) <= Some(self.least)) {
            self.hand = place;
            return place;
        }
        let least = onward.min_by_key(|place| of(*place)).unwrap_or_default();
        self.least = of(least).unwrap_or_default();
        self.hand = least;
        least
    }

    fn is_at(&self, place: usize, whose: Fingerprint) -> bool {
        let counted = self.counted.get(place);
        counted.is_some_and(|counted| counted.key.fingerprint() == whose)
    }

    fn note_place(&mut self, place: usize) {
        let Self {
            counted, places, ..
        } = self;
        let hash = |place: &usize| {
            let counted = counted.get(*place);
            counted.map_or(0, |counted| counted.key.fingerprint().hash())
        };
        places.insert_unique(hash(&place), place, hash);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    fn busiest(capacity: usize, stream: &[u16]) -> (Vec<RefusedKey>, HashMap<Key, u64>) {
        let busiest = Busiest::new(NonZeroUsize::new(capacity).unwrap());
        let mut exact = HashMap::new();
        for number in stream {
            let key = Key::from(number.to_string());
            busiest.refused(&key);
            *exact.entry(key).or_default() += 1;
        }
        (busiest.first(usize::MAX), exact)
    }

    proptest! {
        #[test]
        fn a_count_is_never_too_low_and_too_high_by_its_error_at_most(
            capacity in 1..20_usize,
            stream in prop::collection::vec((0..60_u16, 0..60_u16).prop_map(|(a, b)| a.min(b)), 0..600),
        ) {
            let (kept, exact) = busiest(capacity, &stream);
            prop_assert!(kept.len() <= capacity);
            prop_assert_eq!(kept.iter().map(|key| key.refused).sum::<u64>(), stream.len() as u64);
            for counted in &kept {
                let truly = exact[&counted.key];
                prop_assert!(counted.refused >= truly && counted.refused - counted.error <= truly);
                prop_assert!(counted.error <= (stream.len() / capacity) as u64);
            }
            prop_assert!(kept.is_sorted_by_key(|key| Reverse(key.refused)));
            // Whoever makes up more than one part in so many is there.
            for (key, truly) in exact {
                let must = truly > (stream.len() / capacity) as u64;
                prop_assert!(!must || kept.iter().any(|counted| counted.key == key));
            }
        }

        #[test]
        fn few_keys_are_counted_exactly(stream in prop::collection::vec(0..10_u16, 0..300)) {
            let (kept, exact) = busiest(10, &stream);
            prop_assert_eq!(kept.len(), exact.len());
            for counted in kept {
                prop_assert_eq!((counted.refused, counted.error), (exact[&counted.key], 0));
            }
        }
    }

    #[test]
    fn no_more_are_told_than_are_asked_for() {
        let busiest = Busiest::new(NonZeroUsize::new(5).unwrap());
        for key in ["a", "b", "b", "c", "c", "c"] {
            busiest.refused(&Key::from(key));
        }
        let told = busiest.first(2);
        let told: Vec<_> = told
            .iter()
            .map(|key| (key.key.as_str(), key.refused))
            .collect();
        assert_eq!(told, [("c", 3), ("b", 2)]);
    }
}
