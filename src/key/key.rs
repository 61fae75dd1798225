//! Who is counted: the key of a check, in the form in which it is stored.

use std::cmp::Ordering;
use std::fmt;
use std::fmt::Write;
use std::hash::{Hash, Hasher};
use std::net::IpAddr;
use std::num::NonZeroU64;
use std::sync::Arc;

use arrayvec::ArrayString;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_encode};

use super::fingerprint::Fingerprint;

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
    network: Option<Network>,
}

/// The part of an address that it shares with its neighbours: the first 24 bits of an IPv4 address, the
/// first 48 of an IPv6 address.
///
/// Providers give no customer more than one of these by default, so a client that changes its address
/// mostly stays in its network. [RFC 6177](https://www.rfc-editor.org/rfc/rfc6177) names a /48 for a
/// site.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Network(NonZeroU64);

impl Network {
    /// Where the first address of a version is, above all networks of the other one.
    const V4: u64 = 4 << 48;
    const V6: u64 = 6 << 48;

    pub(crate) fn of(address: IpAddr) -> Option<Self> {
        let number = match address {
            IpAddr::V4(address) => Self::V4 | u64::from(u32::from(address) >> 8),
            IpAddr::V6(address) => {
                let first = u64::try_from(u128::from(address) >> 80);
                Self::V6 | first.unwrap_or_default()
            }
        };
        NonZeroU64::new(number).map(Self)
    }
}

impl Key {
    /// A key of any bytes; the empty ones too are a key like any other.
    #[must_use]
    pub fn new(value: impl AsRef<[u8]>) -> Self {
        Self::written(|text| encode(value.as_ref(), text))
    }

    /// The key that is stored as this text, as [`as_str`](Self::as_str) tells it: of a log, a page, a list
    /// of Redis. `None` for what no key is stored as; of any other text, [`new`](Self::new) makes a key.
    ///
    /// # Examples
    ///
    /// ```
    /// use tollgate::Key;
    ///
    /// let key = Key::from("a b");
    /// assert_eq!(Key::from_stored(key.as_str()), Some(key));
    /// assert_eq!(Key::from_stored("a b"), None);
    /// assert_eq!(Key::from_stored("a%2"), None);
    /// ```
    #[must_use]
    pub fn from_stored(text: &str) -> Option<Self> {
        if !is_stored(text) {
            return None;
        }
        let text = ArrayString::from(text).ok()?;
        Some(Self::of_text(text))
    }

    /// The one key under which everybody is counted together.
    #[must_use]
    pub fn global() -> Self {
        Self::written(|text| text.write_str("*"))
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

    /// The fingerprint of the network of this key's address, if the key holds an address.
    pub(crate) fn network(&self) -> Option<Fingerprint> {
        let Network(number) = self.network?;
        Some(Fingerprint::of_number(number.get()))
    }

    /// The key of an address in a network.
    pub(crate) fn in_network(self, network: Option<Network>) -> Self {
        Self { network, ..self }
    }

    /// A value found in a certain place, which `tag` names: a kind of place, and for one of many its
    /// name behind a colon.
    pub(crate) fn tagged(tag: Tag<'_>, value: &[u8]) -> Self {
        Self::written(|text| {
            tag.write_to(text)?;
            encode(value, text)
        })
    }

    /// The hash of a value that must not be readable where it is stored.
    pub(crate) fn hashed(tag: Tag<'_>, hash: &blake3::Hash) -> Self {
        let digits = digits_of(hash);
        Self::written(|text| {
            tag.write_to(text)?;
            text.write_str("~")?;
            text.write_str(&digits)
        })
    }

    /// The key of two parts, as an extractor of a tuple makes it of the keys of its parts.
    #[must_use]
    pub fn and(&self, other: &Self) -> Self {
        Self::written(|text| {
            text.write_str(self.as_str())?;
            text.write_str(",")?;
            text.write_str(other.as_str())
        })
        .in_network(self.network.or(other.network))
    }

    /// A text that is written encoded, twice if it turns out to be long.
    fn written(write: impl Fn(&mut dyn Write) -> fmt::Result) -> Self {
        let mut text = ArrayString::new();
        // It fails where there is no room.
        if write(&mut text).is_err() {
            let mut long = LongText(blake3::Hasher::new_derive_key(LONG_TEXT_CONTEXT));
            let _ = write(&mut long);
            text.clear();
            text.push('#');
            text.push_str(&digits_of(&long.0.finalize()));
        }
        Self::of_text(text)
    }

    fn of_text(text: ArrayString<MAX_LENGTH>) -> Self {
        Self {
            fingerprint: Fingerprint::of(&text),
            text,
            network: None,
        }
    }
}

/// A text that is hashed as it is written.
struct LongText(blake3::Hasher);

impl Write for LongText {
    fn write_str(&mut self, s: &str) -> fmt::Result {
        self.0.update(s.as_bytes());
        Ok(())
    }
}

/// Where a value was found, so that no two places have one key.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Tag<'a> {
    Ip,
    #[cfg(any(feature = "axum-08", test))]
    Path,
    Authorization,
    Named(&'a NamedTag),
    Extension(&'a str),
}

impl Tag<'_> {
    fn write_to(self, text: &mut dyn Write) -> fmt::Result {
        match self {
            Self::Ip => text.write_str("ip="),
            #[cfg(any(feature = "axum-08", test))]
            Self::Path => text.write_str("path="),
            Self::Authorization => text.write_str("authorization="),
            Self::Named(tag) => text.write_str(&tag.0),
            Self::Extension(name) => {
                text.write_str("extension:")?;
                encode(name.as_bytes(), text)?;
                text.write_str("=")
            }
        }
    }
}

/// The tag of one header or cookie, written once for all requests.
#[derive(Clone, Debug)]
pub(crate) struct NamedTag(Arc<str>);

impl NamedTag {
    pub(crate) fn header(name: &str) -> Self {
        Self::new("header", name)
    }

    pub(crate) fn cookie(name: &str) -> Self {
        Self::new("cookie", name)
    }

    fn new(kind: &str, name: &str) -> Self {
        let name = percent_encode(name.as_bytes(), ESCAPED);
        Self(format!("{kind}:{name}=").into())
    }
}

/// Whether some key is stored as this text. What is escaped is so in one way only.
fn is_stored(text: &str) -> bool {
    text.split(',').all(|part| match part.strip_prefix('#') {
        Some(hash) => hash.len() == HASH_DIGITS && hash.bytes().all(is_hash_digit),
        None => is_written(part),
    })
}

/// Whether some value is written so.
fn is_written(part: &str) -> bool {
    let mut pieces = part.split('%');
    let is_plain = |piece: &str| piece.bytes().all(is_plain);
    pieces.next().is_none_or(is_plain)
        && pieces.all(|piece| {
            let digits = piece.get(..2);
            digits.is_some_and(is_escape) && piece.get(2..).is_some_and(is_plain)
        })
}

/// What is written as it is, and what has a meaning.
fn is_plain(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"-._:/@+=~*".contains(&byte)
}

fn is_hash_digit(byte: u8) -> bool {
    matches!(byte, b'0'..=b'9' | b'a'..=b'f')
}

/// Whether two digits are those of a byte that is escaped.
fn is_escape(digits: &str) -> bool {
    let is_upper = digits
        .bytes()
        .all(|digit| matches!(digit, b'0'..=b'9' | b'A'..=b'F'));
    let byte = u8::from_str_radix(digits, 16);
    is_upper && byte.is_ok_and(|byte| percent_encode(&[byte], ESCAPED).to_string().len() == 3)
}

fn encode(value: &[u8], text: &mut dyn Write) -> fmt::Result {
    percent_encode(value, ESCAPED).try_for_each(|chunk| text.write_str(chunk))
}

fn digits_of(hash: &blake3::Hash) -> ArrayString<HASH_DIGITS> {
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
        assert_ne!(
            Key::from("header:a=b"),
            Key::tagged(Tag::Named(&NamedTag::header("a")), b"b")
        );
        assert_ne!(Key::from("a,b"), Key::from("a").and(&Key::from("b")));
    }

    #[test]
    fn a_secret_is_not_readable_and_depends_on_the_hash_key() {
        let tag = NamedTag::header("x-api-key");
        let of = |value: &[u8], hash_key: u8| {
            let hash = blake3::keyed_hash(&[hash_key; 32], value);
            Key::hashed(Tag::Named(&tag), &hash)
        };
        let secret = of(b"hunter2", 1);
        assert!(!secret.as_str().contains("hunter2"));
        assert_eq!(secret, of(b"hunter2", 1));
        assert_ne!(secret, of(b"hunter2", 2));
        assert_ne!(secret, of(b"hunter3", 1));
        assert_ne!(secret, Key::tagged(Tag::Named(&tag), b"hunter2"));
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
                Key::hashed(Tag::Named(&NamedTag::header(&tag)), &blake3::hash(&value)),
                Key::new(&value).and(&Key::tagged(Tag::Extension(&tag), &value)),
            ] {
                prop_assert!(key.as_str().len() <= MAX_LENGTH);
                let printable = |byte: u8| byte.is_ascii_graphic() && !b"{}".contains(&byte);
                prop_assert!(key.as_str().bytes().all(printable));
            }
        }
    }

    #[test]
    fn a_key_is_made_again_of_the_text_that_it_is_stored_as_and_of_no_other() {
        let hash = blake3::hash(b"secret");
        let long = Key::from("x".repeat(100));
        let keys = [
            Key::from(""),
            Key::from("a b{c},d=e#f%~*"),
            Key::global(),
            Key::hashed(Tag::Authorization, &hash),
            long.clone(),
            long.and(&Key::from("ada")),
            Key::from("é"),
        ];
        for key in keys {
            assert_eq!(Key::from_stored(key.as_str()), Some(key));
        }
        for text in [
            "a b", "{", "100%", "%2", "%2c", "%41", "%zz", "#abc", "a#b", "%é", "é",
        ] {
            assert_eq!(Key::from_stored(text), None, "{text}");
        }
        assert_eq!(Key::from_stored(&"x".repeat(65)), None);
    }

    #[test]
    fn places_of_one_name_are_told_apart() {
        let header = NamedTag::header("ip");
        let cookie = NamedTag::cookie("ip");
        let tags = [
            Tag::Ip,
            Tag::Path,
            Tag::Authorization,
            Tag::Named(&header),
            Tag::Named(&cookie),
            Tag::Extension("ip"),
        ];
        let keys: std::collections::HashSet<_> = tags
            .iter()
            .map(|tag| Key::tagged(*tag, b"192.0.2.1"))
            .collect();
        assert_eq!(keys.len(), tags.len());
    }
}
