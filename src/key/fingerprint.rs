//! A short hash of a text, used as the key of tables in memory.

use std::hash::{BuildHasher, BuildHasherDefault, Hash, Hasher, RandomState};
use std::sync::LazyLock;

use siphasher::sip128::{Hasher128, SipHasher13};

use crate::random::random_bits;

/// A 128-bit hash that identifies a text within this process, such as the limiter and the key of a
/// [subject](crate::store::protocol::Subject::fingerprint).
///
/// It is SipHash-1-3 under a random key of this process. The values never leave the process, so an attacker
/// cannot search for a collision. Among a million texts, any two collide with a probability of 2^-89.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Fingerprint(u64, u64);

/// Takes a fingerprint as its own hash: it is as random as any hash of it.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct FingerprintHasher(u64);

/// Hashes the fingerprints of a table.
pub(crate) type HashFingerprint = BuildHasherDefault<FingerprintHasher>;

impl Hasher for FingerprintHasher {
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64((*byte).into());
        }
    }

    fn write_u64(&mut self, i: u64) {
        self.0 = self.0.rotate_left(8) ^ i;
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

static HASHER: LazyLock<SipHasher13> =
    LazyLock::new(|| SipHasher13::new_with_keys(random_bits(), random_bits()));

/// The odd multiplier that makes the order of a pair matter.
///
/// Swapping the two parts, or making them equal, multiplies their random difference by this minus one or
/// plus one. That loses at most two bits.
const PAIR_MULTIPLIER: u128 = 0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835;

impl Fingerprint {
    pub(super) fn of(text: &str) -> Self {
        let hash = HASHER.hash(text.as_bytes());
        Self(hash.h1, hash.h2)
    }

    /// Returns the fingerprint of a number, which differs from the fingerprints of all texts.
    pub(crate) fn of_number(number: u64) -> Self {
        let mut hasher = *HASHER;
        // No text of a key contains this byte.
        hasher.write_u8(0xff);
        hasher.write_u64(number);
        let hash = hasher.finish128();
        Self(hash.h1, hash.h2)
    }

    /// Returns the fingerprint of a text within a scope, such as a key within a limiter.
    pub(crate) fn within(self, scope: Self) -> Self {
        let sum = scope
            .bits()
            .wrapping_mul(PAIR_MULTIPLIER)
            .wrapping_add(self.bits());
        #[expect(
            clippy::cast_possible_truncation,
            reason = "the two halves of the bits, each whole"
        )]
        let (low, high) = (sum as u64, (sum >> 64) as u64);
        Self(low, high)
    }

    /// Returns 64 bits that a hash table can use without hashing them again.
    #[inline]
    pub(crate) fn hash(self) -> u64 {
        self.0
    }

    pub(crate) fn halves(self) -> [u64; 2] {
        [self.0, self.1]
    }

    /// Returns a number that stands for the text in output for people. It does not reveal the fingerprint.
    pub(crate) fn alias(self) -> u64 {
        static STATE: LazyLock<RandomState> = LazyLock::new(RandomState::new);
        STATE.hash_one(self)
    }

    fn bits(self) -> u128 {
        u128::from(self.1) << 64 | u128::from(self.0)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn all_pairs_differ_including_swapped_and_equal_ones() {
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
