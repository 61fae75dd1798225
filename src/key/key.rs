//! The key of a check.

use std::borrow::{Borrow, Cow};
use std::cmp::Ordering;
use std::fmt::{self, Display, Write};
use std::hash::{Hash, Hasher};
use std::num::NonZeroU64;
use std::sync::{Arc, LazyLock};

use super::fingerprint::Fingerprint;
use super::hash_key::HashKey;
use super::stored_text::{StoredText, encode, hash_digits};

/// The key of a check: a client, a user, a tenant, a job, or anything else that has its own count.
///
/// Create one from text, bytes, a number, an address, or any value that can be
/// [displayed](Self::from_display), such as a UUID. In a layer, an [extractor](crate::key) takes the key from the
/// request.
///
/// | from | key |
/// |---|---|
/// | text or bytes | the same text, encoded as below |
/// | an integer | the text of the number: `Key::from(42_u64)` and `Key::from("42")` are the same key |
/// | an address | the key of [`peer_ip`](crate::key::peer_ip()) for it, `ip=192.0.2.1`, of an IPv6 address `ip=2001:db8::/64`. No text equals it |
/// | a UUID | `Key::from_display(uuid)`: the text with hyphens. `Key::from(uuid.as_u128())` is another key, the number |
///
/// Users and tenants that are both counted by a number need limiters with different names, or a text such as
/// `format!("tenant:{id}")`.
///
/// # Stored text
///
/// A key is stored as printable ASCII text of at most 64 bytes. Letters, digits and `-._:/@+` stay as they
/// are, and all other bytes are percent-encoded. A longer text is replaced by `#` and 160 bits of its
/// BLAKE3 hash; of joined keys, 16 of these bits are a hash of the first key. So different values have different keys, barring a hash collision. The text is safe in
/// logs and inside a Redis hash tag. Creating and cloning a key does not allocate.
///
/// Extractors put a tag before the value: `ip=192.0.2.1`, `header:x-tenant-id=acme`. So a header value
/// never equals an address. To inspect or reset the count of a client, create its key with the method `of`
/// of the extractor: `key::peer_ip().of(address)`. For a tuple of extractors, join the keys with
/// [`and`](Self::and).
///
/// # Examples
///
/// ```
/// use tollgate::Key;
///
/// assert_eq!(Key::from("video-api:key1").as_str(), "video-api:key1");
/// assert_eq!(Key::from("a b{c}").as_str(), "a%20b%7Bc%7D");
/// assert_eq!(Key::from(42_u64).as_str(), "42");
/// assert_eq!(Key::from(std::net::Ipv4Addr::LOCALHOST).as_str(), "ip=127.0.0.1");
/// assert_eq!(Key::from("x".repeat(1_000_000)).as_str().len(), 41);
/// ```
#[derive(Clone)]
pub struct Key {
    text: StoredText,
    /// Computed with the key, so that checks do not hash the text again.
    fingerprint: Fingerprint,
    network: Option<NonZeroU64>,
}

/// The tag of the name under which a limiter counts its automatic blocks.
const BLOCKS_TAG: &str = "blocks=";

/// The tags of the names under which the keys of a limiter are paused, and paused because their allowance is used up.
const PAUSES_TAG: &str = "paused=";
const EXHAUSTED_TAG: &str = "exhausted=";

impl Key {
    /// Creates a key from any bytes, which may be empty.
    #[must_use]
    pub fn new(value: impl AsRef<[u8]>) -> Self {
        Self::with_text(StoredText::new(|text| encode(value.as_ref(), text)))
    }

    /// Creates a key from the text that a value displays, such as a UUID or an ID of your own type. It does not
    /// allocate.
    ///
    /// Two types with the same text have the same key.
    ///
    /// # Examples
    ///
    /// ```
    /// use tollgate::Key;
    ///
    /// # struct Uuid(u32);
    /// # impl std::fmt::Display for Uuid {
    /// #     fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
    /// #         write!(f, "{:08x}-e89b-12d3-a456-426614174000", self.0)
    /// #     }
    /// # }
    /// # let user_id = Uuid(0x123e_4567);
    /// let key = Key::from_display(&user_id);
    /// assert_eq!(key.as_str(), "123e4567-e89b-12d3-a456-426614174000");
    /// assert_eq!(key, Key::from(user_id.to_string()));
    /// ```
    #[must_use]
    pub fn from_display(value: impl Display) -> Self {
        Self::with_text(StoredText::new(|text| write!(Encoded(text), "{value}")))
    }

    /// Parses the stored text of a key, as [`as_str`](Self::as_str) returns it.
    ///
    /// Use it for text from an admin page, from a log of your application, or from the name of a Redis key. It
    /// returns `None` if no key is stored as this text. For any other text, use [`new`](Self::new), which
    /// encodes it.
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
        StoredText::parse(text).map(Self::with_text)
    }

    /// Returns the global key `*`, which [`key::global`](crate::key::global) gives to all requests.
    #[must_use]
    pub fn global() -> Self {
        static GLOBAL: LazyLock<Key> =
            LazyLock::new(|| Key::with_text(StoredText::new(|text| text.write_str("*"))));
        GLOBAL.clone()
    }

    /// Returns the text as which this key is stored: printable ASCII, at most 64 bytes.
    ///
    /// It is no value to parse: it has a tag, long values are hashed, and of an IPv6 address it has a prefix. For the address
    /// of a client, call [`CheckedClientIp::address`](crate::key::CheckedClientIp::address).
    #[must_use]
    pub fn as_str(&self) -> &str {
        self.text.as_str()
    }

    pub(crate) fn fingerprint(&self) -> Fingerprint {
        self.fingerprint
    }

    /// `None` if the key holds no address.
    pub(crate) fn network(&self) -> Option<Fingerprint> {
        self.network
            .map(|network| Fingerprint::of_number(network.get()))
    }

    /// Returns 16 bits of the hash of the first of the joined keys, or of this key if it is not joined. They are
    /// the same in every process.
    #[cfg(feature = "redis")]
    pub(crate) fn first_part_hash(&self) -> u16 {
        self.text.first_part_hash()
    }

    pub(super) fn in_network(self, network: Option<NonZeroU64>) -> Self {
        Self { network, ..self }
    }

    pub(super) fn tagged(tag: &str, value: &[u8]) -> Self {
        Self::with_text(StoredText::new(|text| {
            text.write_str(tag)?;
            encode(value, text)
        }))
    }

    pub(super) fn hashed(tag: &str, hash: &blake3::Hash) -> Self {
        let digits = hash_digits(hash);
        Self::with_text(StoredText::new(|text| {
            text.write_str(tag)?;
            text.write_str("~")?;
            text.write_str(&digits)
        }))
    }

    /// The value is stored as a hash, or readable without a hash key.
    pub(super) fn from_value(tag: &str, value: &[u8], hash_key: Option<&HashKey>) -> Self {
        match hash_key {
            None => Self::tagged(tag, value),
            Some(hash_key) => Self::hashed(tag, &hash_key.hash(value)),
        }
    }

    /// Joins two keys, the other one by reference or by value: the result is the key that a tuple of the two extractors returns.
    ///
    /// # Examples
    ///
    /// ```
    /// use tollgate::{Key, key};
    ///
    /// let tenant = key::header("x-tenant-id").plain().of("acme");
    /// let key = tenant.and(Key::from("reports"));
    /// assert_eq!(key.as_str(), "header:x-tenant-id=acme,reports");
    /// ```
    #[must_use]
    pub fn and(&self, other: impl Borrow<Self>) -> Self {
        let other = other.borrow();
        Self::with_text(self.text.join(&other.text)).in_network(self.network.or(other.network))
    }

    /// Returns the name under which the limiter of this name counts its automatic blocks. No limiter of a user has it,
    /// because `=` is encoded in names.
    pub(crate) fn blocks_name(&self) -> Self {
        self.name_behind(BLOCKS_TAG)
    }

    /// Returns the name under which the keys of the limiter of this name are paused, as the other name for its blocks.
    pub(crate) fn pauses_name(&self) -> Self {
        self.name_behind(PAUSES_TAG)
    }

    /// Returns the name under which the exhausted keys of the limiter of this name are paused.
    pub(crate) fn exhausted_name(&self) -> Self {
        self.name_behind(EXHAUSTED_TAG)
    }

    fn name_behind(&self, tag: &str) -> Self {
        Self::with_text(StoredText::new(|text| {
            write!(text, "{tag}{}", self.as_str())
        }))
    }

    #[cfg(feature = "test-util")]
    pub(crate) fn is_blocks_name(&self) -> bool {
        self.as_str().starts_with(BLOCKS_TAG)
    }

    fn with_text(text: StoredText) -> Self {
        Self {
            fingerprint: Fingerprint::of(text.as_str()),
            text,
            network: None,
        }
    }
}

/// Encodes the text that is written to it.
struct Encoded<'a>(&'a mut dyn Write);

impl Write for Encoded<'_> {
    fn write_str(&mut self, s: &str) -> fmt::Result {
        encode(s.as_bytes(), self.0)
    }
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

macro_rules! from_text {
    ($([$as:ty] $($type:ty),+;)+) => {$($(
        impl From<$type> for Key {
            fn from(value: $type) -> Self {
                Self::new(AsRef::<$as>::as_ref(&value))
            }
        }
    )+)+};
}

from_text!(
    [str] &str, String, &String, Box<str>, Arc<str>, &Arc<str>, Cow<'_, str>;
    [[u8]] &[u8], Vec<u8>, &Vec<u8>;
);

/// For literals like `b"ada"`.
impl<const N: usize> From<&[u8; N]> for Key {
    fn from(value: &[u8; N]) -> Self {
        Self::new(value)
    }
}

macro_rules! from_integers {
    ($($integer:ty)*) => {$(
        /// The text of the number, in decimal digits.
        impl From<$integer> for Key {
            fn from(value: $integer) -> Self {
                Self::new(itoa::Buffer::new().format(value))
            }
        }
    )*};
}

from_integers!(u16 u32 u64 u128 usize i32 i64);

/// Converts a value to a [`Key`]: text, bytes, a number, an address, a key, or a pair of these, which are
/// [joined](Key::and).
///
/// Implemented for all types that convert [`Into`] a key. For a UUID or an ID of your own type, write
/// [`Key::from_display`], or implement `From` for your type.
///
/// # Examples
///
/// ```
/// use tollgate::{IntoKey, Key};
///
/// assert_eq!(("acme", 42).into_key(), Key::from("acme").and(Key::from(42)));
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a key",
    label = "expected a key: text, bytes, a number, an address, or a pair of these",
    note = "for a UUID, or another type that implements `Display`, write `Key::from_display(value)`"
)]
pub trait IntoKey {
    /// Converts the value to a key.
    fn into_key(self) -> Key;
}

#[diagnostic::do_not_recommend]
impl<K: Into<Key>> IntoKey for K {
    #[inline]
    fn into_key(self) -> Key {
        self.into()
    }
}

impl<A: IntoKey, B: IntoKey> IntoKey for (A, B) {
    fn into_key(self) -> Key {
        self.0.into_key().and(self.1.into_key())
    }
}

impl From<&Self> for Key {
    fn from(key: &Self) -> Self {
        key.clone()
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use proptest::prelude::*;

    use super::*;
    use crate::key::tag::named_tag;

    #[test]
    fn a_text_of_64_bytes_is_stored_unchanged_and_one_of_65_is_hashed() {
        assert_eq!(Key::from("x".repeat(64)).as_str(), "x".repeat(64));
        let hashed = Key::from("x".repeat(65));
        assert!(hashed.as_str().starts_with('#'));
        assert_ne!(hashed, Key::from("x".repeat(66)));
        assert_ne!(hashed, Key::from(hashed.as_str()));
    }

    #[test]
    fn a_number_has_the_key_of_its_text() {
        for key in [
            Key::from(42),
            Key::from(42_u16),
            Key::from(42_u32),
            Key::from(42_u64),
            Key::from(42_u128),
            Key::from(42_usize),
            Key::from(42_i64),
            Key::from("42".to_owned()),
            Key::from(&"42".to_owned()),
            Key::from(b"42"),
            Key::from_display(42),
        ] {
            assert_eq!(key, Key::from("42"));
        }
        assert_eq!(Key::from(u128::MAX).as_str(), u128::MAX.to_string());
        assert_eq!(Key::from(-7_i64).as_str(), "-7");
    }

    #[test]
    fn an_address_has_the_key_of_the_peer() {
        for text in ["192.0.2.1", "::ffff:192.0.2.1", "2001:db8:1:2:3:4:5:6"] {
            let address: IpAddr = text.parse().unwrap();
            let key = Key::from(address);
            assert_eq!(key, crate::key::peer_ip().of(address));
            assert_eq!(key.network(), crate::key::peer_ip().of(address).network());
            assert_ne!(key, Key::from(text));
            assert_ne!(key, Key::from(key.as_str()));
            match address {
                IpAddr::V4(address) => assert_eq!(key, Key::from(address)),
                IpAddr::V6(address) => assert_eq!(key, Key::from(address)),
            }
        }
    }

    #[test]
    fn a_uuid_has_the_key_of_its_text() {
        let uuid = uuid::Uuid::from_u128(0x123e_4567_e89b_12d3_a456_4266_1417_4000);
        let key = Key::from_display(uuid);
        assert_eq!(key.as_str(), "123e4567-e89b-12d3-a456-426614174000");
        assert_ne!(key, Key::from(uuid.as_u128()));
    }

    #[test]
    fn delimiters_are_escaped() {
        for delimiter in ["=", ",", "~", "#", "*", "{", "}", "\n", "\0", " ", "é"] {
            assert!(
                !Key::from(delimiter).as_str().contains(delimiter),
                "{delimiter:?}"
            );
        }
        assert_eq!(Key::from("%2A").as_str(), "%252A");
        assert_ne!(Key::from("*"), Key::global());
        assert_ne!(Key::from("header:a=b"), Key::tagged("header:a=", b"b"));
        assert_ne!(Key::from("a,b"), Key::from("a").and(Key::from("b")));
    }

    #[test]
    fn a_secret_is_not_readable_and_depends_on_the_hash_key() {
        let tag = "header:x-api-key=";
        let secret = hashed(tag, b"hunter2", 1);
        assert!(!secret.as_str().contains("hunter2"));
        assert_eq!(secret, hashed(tag, b"hunter2", 1));
        assert_ne!(secret, hashed(tag, b"hunter2", 2));
        assert_ne!(secret, hashed(tag, b"hunter3", 1));
        assert_ne!(secret, Key::tagged(tag, b"hunter2"));
    }

    fn hashed(tag: &str, value: &[u8], hash_key: u8) -> Key {
        Key::hashed(tag, &blake3::keyed_hash(&[hash_key; 32], value))
    }

    /// Returns values that a careless encoding would confuse.
    fn value() -> impl Strategy<Value = Vec<u8>> {
        prop_oneof![
            prop::collection::vec(
                prop::sample::select(b"a=,~#*%{}:/0F2\n\0\xff".as_slice()),
                0..6
            ),
            prop::collection::vec(any::<u8>(), 0..100),
        ]
    }

    fn joined(values: &[Vec<u8>]) -> Key {
        values
            .iter()
            .map(Key::new)
            .reduce(|all, key| all.and(key))
            .unwrap()
    }

    proptest! {
        #[test]
        fn no_two_lists_of_values_make_the_same_key(
            a in prop::collection::vec(value(), 1..4),
            b in prop::collection::vec(value(), 1..4),
        ) {
            prop_assert_eq!(a == b, joined(&a) == joined(&b));
        }

        #[test]
        fn a_stored_text_is_short_printable_and_without_braces(value in value(), tag in "\\PC{0,9}|\\PC{60,70}") {
            prop_assert_eq!(Key::from_display(&tag), Key::from(&tag));
            for key in [
                Key::new(&value),
                Key::tagged(&named_tag("extension", &tag), &value),
                Key::hashed(&named_tag("header", &tag), &blake3::hash(&value)),
                Key::new(&value).and(Key::tagged(&named_tag("extension", &tag), &value)),
            ] {
                prop_assert!(key.as_str().len() <= 64);
                for byte in key.as_str().bytes() {
                    let is_allowed = byte.is_ascii_graphic() && byte != b'{' && byte != b'}';
                    prop_assert!(is_allowed, "{byte}");
                }
            }
        }
    }

    #[test]
    fn only_the_stored_text_of_a_key_can_be_parsed() {
        let hash = blake3::hash(b"secret");
        let long = Key::from("x".repeat(100));
        let keys = [
            Key::from(""),
            Key::from("a b{c},d=e#f%~*"),
            Key::global(),
            Key::hashed("authorization=", &hash),
            long.clone(),
            long.and(Key::from("ada")),
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
    fn equal_names_in_different_places_have_different_keys() {
        let tags = [
            "ip=".into(),
            "path=".into(),
            "authorization=".into(),
            named_tag("header", "ip"),
            named_tag("cookie", "ip"),
            named_tag("extension", "ip"),
        ];
        let keys: std::collections::HashSet<_> = tags
            .iter()
            .map(|tag| Key::tagged(tag, b"192.0.2.1"))
            .collect();
        assert_eq!(keys.len(), tags.len());
    }
}
