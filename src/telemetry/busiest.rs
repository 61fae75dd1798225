//! The keys that are refused most, in bounded memory: the space-saving algorithm of Metwally, Agrawal
//! and El Abbadi, "Efficient Computation of Frequent and Top-k Elements in Data Streams" (2005).
//!
//! As many keys are counted as there are places. Another key takes the place of the one with the
//! least, and its count: so a count is never too low, and too high by that at most. A key that makes up
//! more than one part in so many of all refusals as there are places is always among them.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::num::NonZeroUsize;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::Key;
use crate::identity::Fingerprint;

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

/// So many of the busiest keys.
#[derive(Debug)]
pub(super) struct Busiest {
    capacity: NonZeroUsize,
    counts: Mutex<Counts>,
}

/// The least count is at the root of a heap, so that a refusal takes a few steps and no walk.
#[derive(Debug, Default)]
struct Counts {
    heap: Vec<RefusedKey>,
    /// Where in the heap each key is.
    places: HashMap<Fingerprint, usize>,
}

impl Busiest {
    pub(super) fn new(capacity: NonZeroUsize) -> Self {
        Self {
            capacity,
            counts: Mutex::default(),
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
        let mut keys = self.lock().heap.clone();
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
        let place = match self.places.get(&whose) {
            Some(place) => *place,
            None if self.heap.len() < capacity => self.append(key),
            None => self.take_least(key),
        };
        if let Some(counted) = self.heap.get_mut(place) {
            counted.refused += 1;
        }
        self.sink(place);
    }

    fn append(&mut self, key: &Key) -> usize {
        let place = self.heap.len();
        self.heap.push(RefusedKey {
            key: key.clone(),
            refused: 0,
            error: 0,
        });
        self.places.insert(key.fingerprint(), place);
        self.rise(place)
    }

    /// Gives the place of the least to another key, which may have been refused as often before.
    fn take_least(&mut self, key: &Key) -> usize {
        if let Some(least) = self.heap.first_mut() {
            self.places.remove(&least.key.fingerprint());
            least.key = key.clone();
            least.error = least.refused;
        }
        self.places.insert(key.fingerprint(), 0);
        0
    }

    /// Moves what counts less than those above it up, and tells where it is then.
    fn rise(&mut self, mut place: usize) -> usize {
        while place > 0 && self.refused_at(place) < self.refused_at((place - 1) / 2) {
            self.swap(place, (place - 1) / 2);
            place = (place - 1) / 2;
        }
        place
    }

    /// Moves what counts more than those below it down.
    fn sink(&mut self, mut place: usize) {
        loop {
            let below = [2 * place + 1, 2 * place + 2];
            let least = below
                .into_iter()
                .min_by_key(|place| self.refused_at(*place));
            match least {
                Some(least) if self.refused_at(least) < self.refused_at(place) => {
                    self.swap(place, least);
                    place = least;
                }
                _ => return,
            }
        }
    }

    /// More than any where there is none.
    fn refused_at(&self, place: usize) -> u64 {
        self.heap.get(place).map_or(u64::MAX, |key| key.refused)
    }

    fn swap(&mut self, one: usize, two: usize) {
        self.heap.swap(one, two);
        for place in [one, two] {
            if let Some(counted) = self.heap.get(place) {
                self.places.insert(counted.key.fingerprint(), place);
            }
        }
    }
}

#[cfg(test)]
mod tests {
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
