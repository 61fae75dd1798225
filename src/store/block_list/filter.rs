//! A Bloom filter with one hash, so that most lookups of keys that are not blocked take no lock.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::key::Fingerprint;

/// The size in 64-bit words. With 10 blocked keys, one in 1 600 other keys is a false positive; with 10 000,
/// one in two.
const WORDS: usize = 256;

/// A set of bits. The fingerprint of a key chooses its bit, which keys may share.
pub(super) struct Filter([AtomicU64; WORDS]);

impl Filter {
    #[inline]
    pub(super) fn may_contain(&self, name: Fingerprint) -> bool {
        let (word, bit) = position(name);
        let word = self.0.get(word);
        word.is_some_and(|word| word.load(Ordering::Relaxed) & bit != 0)
    }

    /// Replaces the content. Concurrent lookups see bits of the old or the new content.
    pub(super) fn replace(&self, names: impl Iterator<Item = Fingerprint>) {
        let mut bits = [0; WORDS];
        for (word, bit) in names.map(position) {
            if let Some(word) = bits.get_mut(word) {
                *word |= bit;
            }
        }
        for (word, bits) in self.0.iter().zip(bits) {
            word.store(bits, Ordering::Relaxed);
        }
    }
}

#[inline]
fn position(name: Fingerprint) -> (usize, u64) {
    let [bits, _] = name.halves();
    let word = usize::try_from(bits >> 6).unwrap_or_default() % WORDS;
    (word, 1 << (bits & 63))
}

impl Default for Filter {
    fn default() -> Self {
        Self([const { AtomicU64::new(0) }; WORDS])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::Key;

    fn name(number: usize) -> Fingerprint {
        Key::from(number.to_string()).fingerprint()
    }

    #[test]
    fn there_are_no_false_negatives_and_few_false_positives() {
        let filter = Filter::default();
        assert!((0..1_000).all(|number| !filter.may_contain(name(number))));
        filter.replace((0..10).map(name));
        assert!((0..10).all(|number| filter.may_contain(name(number))));
        let false_positives = (10..10_010).filter(|number| filter.may_contain(name(*number)));
        assert!(false_positives.count() < 30);
        filter.replace((5..8).map(name));
        assert!((5..8).all(|number| filter.may_contain(name(number))));
        let found = (0..10).filter(|number| filter.may_contain(name(*number)));
        assert!(found.count() < 6);
    }
}
