//! Who is counted: the key of a check, in the form in which it is stored.

mod fingerprint;

use std::cmp::Ordering;
use std::fmt;
use std::hash::{Hash, Hasher};

use arrayvec::ArrayString;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, PercentEncode, percent_encode};

pub(crate) use fingerprint::Fingerprint;

/// The longest text of a key, in bytes; what would be longer is hashed.
const MAX_LENGTH: usize = 64;

/// The bytes of a hash that are kept, in hexadecimal digits: 160 bits.
const HASH_DIGITS: usize = 40;

/// What a value may contain as it is. The rest is percent-encoded, and so cannot be mistaken for
/// the characters with a meaning of their own: `=` between a tag and its value, `,` between parts,
/// `~` before the hash of a secret, `#` before the hash of a long text, `*` for everybody.
const ESCAPED: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'.')
    .remove(b'_')
    .remove(b':')
    .remove(b'/')
    .remove(b'@')
    .remove(b'+');

/// Separates these hashes from all others that anybody makes with BLAKE3.
const LONG_TEXT_CONTEXT: &str = "tollgate 2026-11-21 text of a key longer than 64 bytes";

/// Who is counted: a client, a user, a tenant, a job.
///
/// Any bytes make a key, and no two different values make the same. A key keeps the text under
/// which it is stored, which is printable ASCII of at most 64 bytes: what is not a letter, a digit
/// or one of `-._:/@+` is percent-encoded, and a text that would be longer is replaced by its
/// BLAKE3 hash, never cut. So a key can be logged, is safe inside a Redis hash tag, and takes no
/// allocation.
///
/// The [extractors](crate::key) tag what they find (`ip=192.0.2.1`, `header:x-tenant-id=acme`), so
/// that a header cannot pass itself off as an address; their `of`, and [`and`](Self::and) for keys
/// of several parts, make the same key elsewhere, to look at it or reset it.
///
/// # Examples
///
/// ```
/// use tollgate::Key;
///
/// assert_eq!(Key::from("video-api:key1").as_str(), "video-api:key1");
/// assert_eq!(Key::from("a b{c}").as_str(), "a%20b%7Bc%7D");
/// assert_eq!(Key::from("x".repeat(1_000_000)).as_str().len(), 41);
/// ```
#[derive(Clone)]
pub struct Key {
    text: ArrayString<MAX_LENGTH>,
    /// Of the text. Made once with the key, and not again by each check.
    fingerprint: Fingerprint,
}

impl Key {
    /// A key of any bytes; the empty ones too are a key like any other.
    #[must_use]
    pub fn new(value: impl AsRef<[u8]>) -> Self {
        Self::from_chunks(|| percent_encode(value.as_ref(), ESCAPED))
    }

    /// The one key under which everybody is counted together.
    #[must_use]
    pub fn global() -> Self {
        Self::from_chunks(|| ["*"])
    }

    /// The text under which this key is stored.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.text
    }

    /// What stands for this key in the memory of this process.
    pub(crate) fn fingerprint(&self) -> Fingerprint {
        self.fingerprint
    }

    /// A value found in a certain place, which `tag` names: a kind of place, and for one of many its
    /// name behind a colon.
    pub(crate) fn tagged(tag: Tag<'_>, value: &[u8]) -> Self {
        Self::from_chunks(|| tag.chunks().chain(percent_encode(value, ESCAPED)))
    }

    /// A value that must not be readable where it is stored.
    pub(crate) fn secret(tag: Tag<'_>, value: &[u8], hash_key: &[u8; 32]) -> Self {
        let hash = blake3::keyed_hash(hash_key, value).to_hex();
        let digits = digits_of(&hash);
        Self::from_chunks(|| tag.chunks().chain(["~", digits]))
    }

    /// The key of two parts, as an extractor of a tuple makes it of the keys of its parts.
    #[must_use]
    pub fn and(&self, other: &Self) -> Self {
        Self::from_chunks(|| [self.as_str(), ",", other.as_str()])
    }

    /// Joins the chunks of a text that is already encoded, twice if it turns out to be long.
    fn from_chunks<'a, C: IntoIterator<Item = &'a str>>(chunks: impl Fn() -> C) -> Self {
        let mut text = ArrayString::new();
        let fits = chunks()
            .into_iter()
            .try_for_each(|chunk| text.try_push_str(chunk))
            .is_ok();
        if !fits {
            text.clear();
            let mut hasher = blake3::Hasher::new_derive_key(LONG_TEXT_CONTEXT);
            for chunk in chunks() {
                hasher.update(chunk.as_bytes());
            }
            text.push('#');
            text.push_str(digits_of(&hasher.finalize().to_hex()));
        }
        let fingerprint = Fingerprint::of(&text);
        Self { text, fingerprint }
    }
}

/// Where a value was found, so that no two places have one key.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Tag<'a> {
    Ip,
    #[cfg(any(feature = "axum-08", test))]
    Path,
    Header(&'a str),
    Extension(&'a str),
}

impl<'a> Tag<'a> {
    fn chunks(self) -> impl Iterator<Item = &'a str> {
        let (kind, name) = match self {
            Self::Ip => ("ip", ""),
            #[cfg(any(feature = "axum-08", test))]
            Self::Path => ("path", ""),
            Self::Header(name) => ("header:", name),
            Self::Extension(name) => ("extension:", name),
        };
        let name: PercentEncode<'a> = percent_encode(name.as_bytes(), ESCAPED);
        [kind].into_iter().chain(name).chain(["="])
    }
}

fn digits_of(hash: &ArrayString<64>) -> &str {
    hash.get(..HASH_DIGITS).unwrap_or(hash)
}

impl PartialEq for Key {
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text
    }
}

impl Eq for Key {}

impl Hash for Key {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.text.hash(state);
    }
}

impl PartialOrd for Key {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Key {
    fn cmp(&self, other: &Self) -> Ordering {
        self.text.cmp(&other.text)
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Key").field(&self.as_str()).finish()
    }
}

impl From<&str> for Key {
    fn from(value: &str) -> Self {
        Self::new(value)
    }
}

impl From<String> for Key {
    fn from(value: String) -> Self {
        Self::new(value)
    }
}

impl From<&String> for Key {
    fn from(value: &String) -> Self {
        Self::new(value)
    }
}

impl From<&[u8]> for Key {
    fn from(value: &[u8]) -> Self {
        Self::new(value)
    }
}

impl From<&Self> for Key {
    fn from(key: &Self) -> Self {
        key.clone()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_text_of_64_bytes_is_kept_and_one_of_65_is_hashed() {
        assert_eq!(Key::from("x".repeat(64)).as_str(), "x".repeat(64));
        let hashed = Key::from("x".repeat(65));
        assert!(hashed.as_str().starts_with('#'));
        assert_ne!(hashed, Key::from("x".repeat(66)));
        assert_ne!(hashed, Key::from(hashed.as_str()));
    }

    #[test]
    fn the_characters_with_a_meaning_are_escaped() {
        for meaning in ["=", ",", "~", "#", "*", "{", "}", "\n", "\0", " ", "é"] {
            assert!(
                !Key::from(meaning).as_str().contains(meaning),
                "{meaning:?}"
            );
        }
        assert_eq!(Key::from("%2A").as_str(), "%252A");
        assert_ne!(Key::from("*"), Key::global());
        assert_ne!(Key::from("header:a=b"), Key::tagged(Tag::Header("a"), b"b"));
        assert_ne!(Key::from("a,b"), Key::from("a").and(&Key::from("b")));
    }

    #[test]
    fn a_secret_is_not_readable_and_depends_on_the_hash_key() {
        let secret = Key::secret(Tag::Header("x-api-key"), b"hunter2", &[1; 32]);
        assert!(!secret.as_str().contains("hunter2"));
        assert_eq!(
            secret,
            Key::secret(Tag::Header("x-api-key"), b"hunter2", &[1; 32])
        );
        assert_ne!(
            secret,
            Key::secret(Tag::Header("x-api-key"), b"hunter2", &[2; 32])
        );
        assert_ne!(
            secret,
            Key::secret(Tag::Header("x-api-key"), b"hunter3", &[1; 32])
        );
        assert_ne!(secret, Key::tagged(Tag::Header("x-api-key"), b"hunter2"));
    }

    /// Values that a careless encoding would confuse.
    fn value() -> impl Strategy<Value = Vec<u8>> {
        prop_oneof![
            prop::collection::vec(
                prop::sample::select(b"a=,~#*%{}:/0F2\n\0\xff".as_slice()),
                0..6
            ),
            prop::collection::vec(any::<u8>(), 0..100),
        ]
    }

    proptest! {
        #[test]
        fn no_two_lists_of_values_make_the_same_key(
            a in prop::collection::vec(value(), 1..4),
            b in prop::collection::vec(value(), 1..4),
        ) {
            let joined = |values: &[Vec<u8>]| {
                let keys = values.iter().map(Key::new);
                keys.reduce(|all, key| all.and(&key)).unwrap()
            };
            prop_assert_eq!(a == b, joined(&a) == joined(&b));
        }

        #[test]
        fn a_stored_text_is_short_printable_and_without_braces(value in value(), tag in "\\PC{0,9}") {
            for key in [
                Key::new(&value),
                Key::tagged(Tag::Extension(&tag), &value),
                Key::secret(Tag::Header(&tag), &value, &[0; 32]),
                Key::new(&value).and(&Key::tagged(Tag::Extension(&tag), &value)),
            ] {
                prop_assert!(key.as_str().len() <= MAX_LENGTH);
                let printable = |byte: u8| byte.is_ascii_graphic() && !b"{}".contains(&byte);
                prop_assert!(key.as_str().bytes().all(printable));
            }
        }
    }

    #[test]
    fn places_of_one_name_are_told_apart() {
        let tags = [Tag::Ip, Tag::Path, Tag::Header("ip"), Tag::Extension("ip")];
        let keys: std::collections::HashSet<_> = tags
            .iter()
            .map(|tag| Key::tagged(*tag, b"192.0.2.1"))
            .collect();
        assert_eq!(keys.len(), tags.len());
    }
}
