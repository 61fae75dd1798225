//! The text under which a key is stored: printable ASCII of at most 64 bytes.

use std::fmt::{self, Write};
use std::sync::LazyLock;

use arrayvec::ArrayString;
use blake3::hazmat::{ContextKey, HasherExt, hash_derive_key_context};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, PercentEncode, percent_encode};
use siphasher::sip::SipHasher13;

/// The maximum length in bytes. A longer text is replaced by its hash.
const MAX_LENGTH: usize = 64;

/// The bytes of a long text that are hashed at once. BLAKE3 hashes several chunks of 1 024 bytes in parallel.
const BLOCK: usize = 4_096;

/// The number of hexadecimal digits that are stored of a hash: 160 bits.
const HASH_DIGITS: usize = 40;

/// The bytes that are percent-encoded: all but letters, digits and `-._:/@+`.
///
/// So no value contains a delimiter: `=` after a tag, `,` between joined keys, `~` before a hashed value,
/// `#` before the hash of a long text, `*` for the global key.
const ENCODED: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'.')
    .remove(b'_')
    .remove(b':')
    .remove(b'/')
    .remove(b'@')
    .remove(b'+');

/// The BLAKE3 key derivation context, so that other uses of BLAKE3 give other hashes.
const LONG_TEXT_CONTEXT: &str = "tollgate 2026-11-21 text of a key longer than 64 bytes";

/// The stored text of a key. A clone does not allocate.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct StoredText(ArrayString<MAX_LENGTH>);

impl StoredText {
    /// Stores the text that `write` produces, or its hash if it is too long.
    ///
    /// `write` encodes the value. It runs again if the text has to be hashed.
    pub(super) fn new(write: impl Fn(&mut dyn Write) -> fmt::Result) -> Self {
        Self::fitting(&write).unwrap_or_else(|| Self::from_hash(&hash_long_text(write)))
    }

    /// Joins two texts.
    ///
    /// If the joined text is too long, the hash of its first part takes the place of the first 16 bits of its
    /// own hash. So the stored text still says which first part it has.
    pub(super) fn join(&self, other: &Self) -> Self {
        Self::fitting(|text| self.write_joined(other, text)).unwrap_or_else(|| {
            let hash = hash_long_text(|text| self.write_joined(other, text));
            let mut hash: [u8; blake3::OUT_LEN] = hash.into();
            let [high, low, ..] = &mut hash;
            [*high, *low] = self.first_part_hash().to_be_bytes();
            Self::from_hash(&hash.into())
        })
    }

    fn write_joined(&self, other: &Self, text: &mut dyn Write) -> fmt::Result {
        text.write_str(self.as_str())?;
        text.write_str(",")?;
        text.write_str(other.as_str())
    }

    /// Returns 16 bits that depend only on the first of the joined parts. They are the same in every process,
    /// and part of the stored format.
    pub(super) fn first_part_hash(&self) -> u16 {
        let text = self.as_str();
        let stored = text.strip_prefix('#').and_then(|hash| hash.get(..4));
        if let Some(Ok(hash)) = stored.map(|digits| u16::from_str_radix(digits, 16)) {
            return hash;
        }
        let first_part = text.split(',').next().unwrap_or(text);
        let hash = SipHasher13::new().hash(first_part.as_bytes());
        let [high, low, ..] = hash.to_be_bytes();
        u16::from_be_bytes([high, low])
    }

    fn fitting(write: impl Fn(&mut dyn Write) -> fmt::Result) -> Option<Self> {
        let mut text = ArrayString::new();
        // An error means that the text does not fit.
        write(&mut text).ok().map(|()| Self(text))
    }

    fn from_hash(hash: &blake3::Hash) -> Self {
        let mut text = ArrayString::new();
        text.push('#');
        text.push_str(&hash_digits(hash));
        Self(text)
    }

    /// Accepts a text only if a key can be stored as this text.
    pub(super) fn parse(text: &str) -> Option<Self> {
        if !is_stored_text(text) {
            return None;
        }
        ArrayString::from(text).ok().map(Self)
    }

    pub(super) fn as_str(&self) -> &str {
        &self.0
    }
}

fn hash_long_text(write: impl Fn(&mut dyn Write) -> fmt::Result) -> blake3::Hash {
    /// Computed once, since it takes as long as to hash the text.
    static KEY: LazyLock<ContextKey> = LazyLock::new(|| hash_derive_key_context(LONG_TEXT_CONTEXT));
    let mut hasher = blake3::Hasher::new_from_context_key(&KEY);
    in_blocks(write, |block| {
        hasher.update(block);
    });
    hasher.finalize()
}

fn in_blocks(write: impl Fn(&mut dyn Write) -> fmt::Result, use_block: impl FnMut(&[u8])) {
    let mut text = Blocks {
        block: ArrayString::new(),
        use_block,
    };
    // No block fails.
    let _ = write(&mut text);
    (text.use_block)(text.block.as_bytes());
}

/// Gathers a text into blocks as it is written. Percent-encoding writes one to three bytes at once, and to hash each
/// of these alone takes several times as long.
struct Blocks<F> {
    block: ArrayString<BLOCK>,
    use_block: F,
}

impl<F: FnMut(&[u8])> Write for Blocks<F> {
    fn write_str(&mut self, s: &str) -> fmt::Result {
        if self.block.try_push_str(s).is_ok() {
            return Ok(());
        }
        (self.use_block)(self.block.as_bytes());
        self.block.clear();
        if self.block.try_push_str(s).is_err() {
            // A piece that is longer than a block needs none.
            (self.use_block)(s.as_bytes());
        }
        Ok(())
    }
}

pub(super) fn encoded(value: &[u8]) -> PercentEncode<'_> {
    percent_encode(value, ENCODED)
}

pub(super) fn encode(value: &[u8], text: &mut dyn Write) -> fmt::Result {
    encoded(value).try_for_each(|chunk| text.write_str(chunk))
}

/// Returns the first 160 bits of a hash in hexadecimal.
pub(super) fn hash_digits(hash: &blake3::Hash) -> ArrayString<{ 2 * blake3::OUT_LEN }> {
    let mut digits = hash.to_hex();
    digits.truncate(HASH_DIGITS);
    digits
}

fn is_stored_text(text: &str) -> bool {
    text.split(',').all(|part| match part.strip_prefix('#') {
        Some(hash) => hash.len() == HASH_DIGITS && hash.bytes().all(is_hash_digit),
        None => is_encoded(part),
    })
}

/// Returns whether a part is encoded as this file encodes it. Each value has exactly one encoding.
fn is_encoded(part: &str) -> bool {
    let mut pieces = part.split('%');
    pieces.next().is_none_or(is_literal_text)
        && pieces.all(|piece| {
            piece
                .split_at_checked(2)
                .is_some_and(|(digits, rest)| is_escape(digits) && is_literal_text(rest))
        })
}

fn is_literal_text(text: &str) -> bool {
    text.bytes().all(is_literal)
}

fn is_literal(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"-._:/@+=~*".contains(&byte)
}

fn is_hash_digit(byte: u8) -> bool {
    matches!(byte, b'0'..=b'9' | b'a'..=b'f')
}

fn is_escape(digits: &str) -> bool {
    let is_upper = digits
        .bytes()
        .all(|digit| matches!(digit, b'0'..=b'9' | b'A'..=b'F'));
    let byte = u8::from_str_radix(digits, 16);
    is_upper && byte.is_ok_and(|byte| encoded(&[byte]).to_string().len() == 3)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use proptest::prelude::*;

    use super::*;

    fn text(value: &str) -> StoredText {
        StoredText::new(|text| encode(value.as_bytes(), text))
    }

    #[test]
    fn the_hash_of_the_first_part_is_that_of_all_texts_that_begin_with_it() {
        let long = "x".repeat(100);
        let others = ["", "a", &"b".repeat(60), &"c".repeat(100)].map(text);
        for first in ["", "acme", &"t".repeat(64), &long].map(text) {
            let hash = first.first_part_hash();
            for (one, other) in others
                .iter()
                .flat_map(|one| others.iter().map(move |two| (one, two)))
            {
                let two = first.join(one);
                let joined = [two.clone(), two.join(other), first.join(&one.join(other))];
                for joined in joined {
                    assert_eq!(joined.first_part_hash(), hash, "{}", joined.as_str());
                    let parsed = StoredText::parse(joined.as_str()).unwrap();
                    assert_eq!(parsed.first_part_hash(), hash, "{}", joined.as_str());
                }
            }
        }
    }

    #[test]
    fn the_hashes_of_first_parts_are_spread_evenly() {
        let tags: u16 = 48;
        for padding in [0, 70] {
            let mut counts = [0; 48];
            for tenant in 0..4_800 {
                let first = text(&format!("{tenant}{}", "x".repeat(padding)));
                counts[usize::from(first.first_part_hash() % tags)] += 1;
            }
            assert!(
                counts.iter().all(|count| (60..140).contains(count)),
                "{counts:?}"
            );
        }
    }

    /// Another number would move stored counts to another slot.
    #[test]
    fn the_hash_of_a_first_part_never_changes() {
        // Computed by CPython, whose `hash` is SipHash-1-3 with a key of zeros if PYTHONHASHSEED is 0.
        assert_eq!(text("acme").first_part_hash(), 0x3dd3);
        let long = text(&"x".repeat(65));
        let hash = digits(&[&"x".repeat(65)]);
        assert_eq!(long.as_str(), format!("#{hash}"));
        let joined = text("acme").join(&long);
        assert_eq!(joined.as_str(), format!("acme,#{hash}"));
        let hash = digits(&["acme,", long.as_str(), ",", long.as_str()]);
        let joined = joined.join(&long);
        assert_eq!(joined.as_str(), format!("#3dd3{}", &hash[4..]));
    }

    fn digits(texts: &[&str]) -> String {
        let mut hasher = blake3::Hasher::new_derive_key(LONG_TEXT_CONTEXT);
        for text in texts {
            hasher.update(text.as_bytes());
        }
        hash_digits(&hasher.finalize()).to_string()
    }

    #[test]
    fn long_texts_of_one_first_part_differ() {
        let different: HashSet<_> = (0..1_000)
            .map(|user| text("acme").join(&text(&format!("{user:070}"))))
            .collect();
        assert_eq!(different.len(), 1_000);
    }

    #[test]
    fn a_long_text_is_hashed_in_few_updates_however_it_is_encoded() {
        for value in [
            "%".repeat(300_000),
            "a%".repeat(150_000),
            "a".repeat(300_000),
        ] {
            let mut bytes = 0;
            let mut updates = 0;
            in_blocks(
                |text| encode(value.as_bytes(), text),
                |block| {
                    bytes += block.len();
                    updates += 1;
                },
            );
            let encoded = encoded(value.as_bytes()).to_string();
            assert_eq!(bytes, encoded.len());
            // An escape of three bytes is not split.
            let most = encoded.len() / (BLOCK - 2) + 1;
            assert!(updates <= most, "{updates} updates, {most} expected");
        }
    }

    proptest! {
        /// Else the counts of long keys would begin anew with another version of this crate.
        #[test]
        fn a_long_text_has_the_hash_of_its_bytes_at_once_in_whatever_pieces_it_is_written(
            pieces in prop::collection::vec(("[a-z%]{0,9}", 0..400_usize), 1..20),
            ending in 65..3_000_usize,
        ) {
            let mut pieces: Vec<_> = (pieces.iter())
                .map(|(piece, times)| piece.repeat(*times))
                .collect();
            pieces.push("x".repeat(ending));
            let stored = StoredText::new(|text| {
                pieces.iter().try_for_each(|piece| text.write_str(piece))
            });
            let whole = pieces.concat();
            let mut hasher = blake3::Hasher::new_derive_key(LONG_TEXT_CONTEXT);
            hasher.update(whole.as_bytes());
            prop_assert_eq!(stored.as_str(), format!("#{}", hash_digits(&hasher.finalize())));
            let value = StoredText::new(|text| encode(whole.as_bytes(), text));
            let mut hasher = blake3::Hasher::new_derive_key(LONG_TEXT_CONTEXT);
            for piece in encoded(whole.as_bytes()) {
                hasher.update(piece.as_bytes());
            }
            prop_assert_eq!(value.as_str(), format!("#{}", hash_digits(&hasher.finalize())));
        }
    }
}
