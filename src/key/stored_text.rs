//! The text under which a key is stored: printable ASCII of at most 64 bytes.

use std::fmt::{self, Write};

use arrayvec::ArrayString;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, PercentEncode, percent_encode};

/// The maximum length in bytes. A longer text is replaced by its hash.
const MAX_LENGTH: usize = 64;

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
        let mut text = ArrayString::new();
        // An error means that the text does not fit.
        if write(&mut text).is_err() {
            let mut long = LongText(blake3::Hasher::new_derive_key(LONG_TEXT_CONTEXT));
            let _ = write(&mut long);
            text.clear();
            text.push('#');
            text.push_str(&hash_digits(&long.0.finalize()));
        }
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

/// Hashes a text as it is written.
struct LongText(blake3::Hasher);

impl Write for LongText {
    fn write_str(&mut self, s: &str) -> fmt::Result {
        self.0.update(s.as_bytes());
        Ok(())
    }
}

/// Percent-encodes a value.
pub(super) fn encoded(value: &[u8]) -> PercentEncode<'_> {
    percent_encode(value, ENCODED)
}

/// Writes a value, percent-encoded.
pub(super) fn encode(value: &[u8], text: &mut dyn Write) -> fmt::Result {
    encoded(value).try_for_each(|chunk| text.write_str(chunk))
}

/// Returns the first 160 bits of a hash in hexadecimal.
pub(super) fn hash_digits(hash: &blake3::Hash) -> ArrayString<HASH_DIGITS> {
    let digit = |half: u8| match half {
        0..10 => b'0' + half,
        _ => b'a' - 10 + half,
    };
    let mut digits = [0; HASH_DIGITS];
    let (pairs, _) = digits.as_chunks_mut();
    for (pair, byte) in pairs.iter_mut().zip(hash.as_bytes()) {
        *pair = [digit(byte >> 4), digit(byte & 0xf)];
    }
    ArrayString::from_byte_string(&digits).unwrap_or_default()
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
    let is_literal = |piece: &str| piece.bytes().all(is_literal);
    pieces.next().is_none_or(is_literal)
        && pieces.all(|piece| {
            let digits = piece.get(..2);
            digits.is_some_and(is_escape) && piece.get(2..).is_some_and(is_literal)
        })
}

/// Returns whether a byte may occur outside of an escape: it is never encoded, or it is a delimiter.
fn is_literal(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"-._:/@+=~*".contains(&byte)
}

fn is_hash_digit(byte: u8) -> bool {
    matches!(byte, b'0'..=b'9' | b'a'..=b'f')
}

/// Returns whether two digits are the escape of a byte that has to be encoded.
fn is_escape(digits: &str) -> bool {
    let is_upper = digits
        .bytes()
        .all(|digit| matches!(digit, b'0'..=b'9' | b'A'..=b'F'));
    let byte = u8::from_str_radix(digits, 16);
    is_upper && byte.is_ok_and(|byte| encoded(&[byte]).to_string().len() == 3)
}
