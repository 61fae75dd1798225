//! What stands for a text where comparing and keeping the text itself would cost too much.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::LazyLock;

use siphasher::sip128::{Hasher128, SipHasher13};

/// 128 bits that stand for a text within this process.
///
/// SipHash-1-3 under a key that is drawn at random by each process, and whose outputs nobody is
/// shown: who does not know them cannot look for two texts of one fingerprint. Among a million
/// texts, the probability that any two have the same is 2^-89.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Fingerprint([u64; 2]);

static HASHER: LazyLock<SipHasher13> = LazyLock::new(|| {
    // The standard library draws a key for each of these: their hashes of anything are random.
    let random = || RandomState::new().hash_one(0);
    SipHasher13::new_with_keys(random(), random())
});

/// Keeps the two parts of a pair apart. What swapping them, or making both the same, leaves of the
/// difference is this less one and this plus one times a random number: two bits are lost at most.
const APART: u128 = 0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835;

impl Fingerprint {
    pub(super) fn of(text: &str) -> Self {
        let hash = HASHER.hash(text.as_bytes());
        Self([hash.h1, hash.h2])
    }

    /// The fingerprint of a number. It differs from the fingerprints of all texts.
    pub(crate) fn of_number(number: u64) -> Self {
        let mut hasher = *HASHER;
        // No text of a key has such a byte.
        hasher.write_u8(0xff);
        hasher.write_u64(number);
        let hash = hasher.finish128();
        Self([hash.h1, hash.h2])
    }

    /// The fingerprint of a text within what another text names.
    pub(crate) fn within(self, other: Self) -> Self {
        let sum = other.bits().wrapping_mul(APART).wrapping_add(self.bits());
        #[expect(
            clippy::cast_possible_truncation,
            reason = "the two halves of the bits, each whole"
        )]
        let halves = [sum as u64, (sum >> 64) as u64];
        Self(halves)
    }

    /// By what a table finds it: it is a hash already.
    #[inline]
    pub(crate) fn hash(self) -> u64 {
        let [hash, _] = self.0;
        hash
    }

    /// Two numbers, each as random as the other.
    pub(crate) fn halves(self) -> [u64; 2] {
        self.0
    }

    /// A number for people to tell texts apart by, from which nobody learns the fingerprint.
    pub(crate) fn alias(self) -> u64 {
        static STATE: LazyLock<RandomState> = LazyLock::new(RandomState::new);
        STATE.hash_one(self)
    }

    fn bits(self) -> u128 {
        let [low, high] = self.0;
        u128::from(high) << 64 | u128::from(low)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn pairs_of_texts_are_told_apart_also_swapped_and_doubled() {
        let texts = ["", "a", "b", "ab", "ba", "aa"].map(Fingerprint::of);
        let pairs = texts
            .iter()
            .flat_map(|one| texts.map(|other| one.within(other).halves()));
        let different: HashSet<_> = pairs.collect();
        assert_eq!(different.len(), texts.len() * texts.len());
    }

    #[test]
    fn a_text_has_one_fingerprint_and_both_halves_depend_on_it() {
        assert_eq!(Fingerprint::of("ada"), Fingerprint::of("ada"));
        let ([a, b], [c, d]) = (
            Fingerprint::of("ada").halves(),
            Fingerprint::of("bob").halves(),
        );
        assert!(a != c && b != d && a != b);
    }
}
