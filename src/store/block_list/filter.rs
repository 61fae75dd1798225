//! Tells at once of most keys that they are not in a list, without its lock.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::key::Fingerprint;

/// Of ten keys in a list, one in 1 600 others may seem to be in it; of ten thousand, one in two.
const WORDS: usize = 256;

/// A bit for each key that may be in a list, by its fingerprint.
pub(super) struct Filter([AtomicU64; WORDS]);

impl Filter {
    #[inline]
    pub(super) fn may_hold(&self, whose: Fingerprint) -> bool {
        let (word, bit) = place_of(whose);
        let word = self.0.get(word);
        word.is_some_and(|word| word.load(Ordering::Relaxed) & bit != 0)
    }

    pub(super) fn add(&self, whose: Fingerprint) {
        let (word, bit) = place_of(whose);
        if let Some(word) = self.0.get(word) {
            word.fetch_or(bit, Ordering::Relaxed);
        }
    }

    /// Has it hold these and no others. Meanwhile it holds none that it did not and will not.
    pub(super) fn hold(&self, all: impl Iterator<Item = Fingerprint>) {
        let mut bits = [0; WORDS];
        for (word, bit) in all.map(place_of) {
            if let Some(word) = bits.get_mut(word) {
                *word |= bit;
            }
        }
        for (word, bits) in self.0.iter().zip(bits) {
            word.store(bits, Ordering::Relaxed);
        }
    }
}

fn place_of(whose: Fingerprint) -> (usize, u64) {
    let [bits, _] = whose.halves();
    let word = usize::try_from(bits >> 6).unwrap_or_default() % WORDS;
    (word, 1 << (bits & 63))
}

impl Default for Filter {
    fn default() -> Self {
        Self([const { AtomicU64::new(0) }; WORDS])
    }
}

impl fmt::Debug for Filter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Filter").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::Key;

    fn whose(number: usize) -> Fingerprint {
        Key::from(number.to_string()).fingerprint()
    }

    #[test]
    fn what_is_held_is_never_missed_and_little_else_seems_to_be() {
        let filter = Filter::default();
        assert!((0..1_000).all(|number| !filter.may_hold(whose(number))));
        (0..10).for_each(|number| filter.add(whose(number)));
        assert!((0..10).all(|number| filter.may_hold(whose(number))));
        let seem = (10..10_010).filter(|number| filter.may_hold(whose(*number)));
        assert!(seem.count() < 30);
        filter.hold((5..8).map(whose));
        assert!((5..8).all(|number| filter.may_hold(whose(number))));
        let held = (0..10).filter(|number| filter.may_hold(whose(*number)));
        assert!(held.count() < 6);
    }
}
