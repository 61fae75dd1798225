//! Keys from the value of a header.

use http::HeaderName;
use http::request::Parts;

use super::error::KeyError;
use super::extractor::{KeyExtractor, inherent_or};
use super::hash_key::HEADER;
use super::hashed_value::HashedValue;
use super::key::Key;
use super::tag::named_tag;

/// Returns an extractor that counts by the value of a header, such as an API key or a tenant's name.
///
/// **A client can send any header.** Each invented value gets a fresh quota until the value is validated.
/// So add this limit inside the layer that validates it, or add another limit by
/// [`peer_ip`](super::peer_ip()) outside.
///
/// # Which value counts
///
/// - The value is used as it is sent: case and inner whitespace matter, and it need not be UTF-8.
///   Whitespace at both ends is removed (RFC 9110, section 5.5).
/// - A request without the header, or with an empty one, has no key.
/// - A request with several lines of the header is rejected with 400. Otherwise the client could choose
///   which value counts.
/// - If `name` is not a valid header name, all requests are answered 500, and one log line says so.
///
/// # How it is stored
///
/// The value is stored as a hash (160 bits of BLAKE3), because most headers that identify a client also
/// authenticate it. [`plain`](Header::plain) stores it readable. [`secret`](Header::secret) protects a value
/// that could be guessed.
///
/// # Examples
///
/// ```
/// use tollgate::{MemoryStore, Quota, RateLimitLayer, key};
///
/// let layer = RateLimitLayer::new(MemoryStore::new(), Quota::per_minute(60))
///     .key(key::header("x-api-key"));
/// ```
#[must_use]
pub fn header(name: impl AsRef<str>) -> Header {
    let configured = name.as_ref();
    let name: Option<HeaderName> = configured.parse().ok();
    let tag = named_tag("header", name.as_ref().map_or("", HeaderName::as_str));
    Header(HashedValue::new("header", configured, name, tag, HEADER))
}

/// A key extractor that counts by the value of a header; created by [`header`].
#[derive(Clone, Debug)]
pub struct Header(HashedValue<HeaderName>);

impl Header {
    /// Stores the value as readable text instead of a hash, for values that are not secret, such as a
    /// tenant's name.
    #[must_use]
    pub fn plain(mut self) -> Self {
        self.0.hash_key = None;
        self
    }

    /// Hashes the value with a secret of your application, for values that can be guessed, such as e-mail
    /// addresses.
    ///
    /// Without a secret, anyone who can read the store can hash a guess and look for the result. All
    /// processes must use the same secret. A new secret starts new counts. With an empty secret, all
    /// requests are answered 500, and one log line says so.
    #[must_use]
    pub fn secret(mut self, secret: impl AsRef<[u8]>) -> Self {
        self.0.secret(secret.as_ref());
        self
    }

    /// Returns the key of requests with this value, to inspect or reset its count.
    ///
    /// # Examples
    ///
    /// ```
    /// # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
    /// use tollgate::{MemoryStore, Quota, RateLimitLayer, RateLimiter, key};
    ///
    /// let api_key = key::header("x-api-key");
    /// let limiter = RateLimiter::new(MemoryStore::new(), Quota::per_day(1_000));
    /// let layer = RateLimitLayer::from(limiter.clone()).key(api_key.clone());
    ///
    /// limiter.admin().reset(api_key.of("1f0c")).await?;
    /// # Ok::<(), tollgate::Error>(())
    /// # }).unwrap();
    /// ```
    #[must_use]
    pub fn of(&self, value: impl AsRef<[u8]>) -> Key {
        self.0.key(value.as_ref().trim_ascii())
    }
}

inherent_or!(Header);

impl KeyExtractor for Header {
    fn extract(&self, parts: &Parts) -> Result<Key, KeyError> {
        Ok(self.of(self.0.line(&parts.headers)?))
    }

    fn config_error(&self) -> Option<KeyError> {
        self.0.name().err()
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;
    use crate::key::error::KeyErrorKind;
    use crate::key::test_request::{get, parts};

    fn stored(key: &Header, value: &str) -> String {
        let key = key.extract(&parts(&[("x-api-key", value)])).unwrap();
        key.as_str().to_owned()
    }

    #[test]
    fn a_value_is_hashed_unless_it_is_plain() {
        let key = header("X-API-Key");
        let hashed = stored(&key, "hunter2");
        assert!(
            hashed.starts_with("header:x-api-key=~") && !hashed.contains("hunter2"),
            "{hashed}"
        );
        assert_eq!(
            stored(&key.clone().plain(), "hunter2"),
            "header:x-api-key=hunter2"
        );
        let secret = stored(&key.clone().secret("s3cret"), "hunter2");
        assert_ne!(secret, hashed);
        assert_ne!(secret, stored(&key.secret("other"), "hunter2"));
    }

    #[test]
    fn the_hash_is_the_same_in_every_process_and_version() {
        // Computed with another implementation of BLAKE3: its keyed hash, with a key derived from the context.
        let expected = "header:x-api-key=~648169584ac95f61920b47c2a9aeaeeb5889044e";
        assert_eq!(stored(&header("x-api-key"), "hunter2"), expected);
    }

    #[test]
    fn of_returns_the_key_of_a_request_with_that_value() {
        let key = header("x-api-key");
        let found = key.extract(&parts(&[("x-api-key", "hunter2")])).unwrap();
        assert_eq!(found, key.of("hunter2"));
    }

    #[test]
    fn whitespace_at_the_ends_is_not_part_of_a_value() {
        let key = header("x-api-key");
        for value in [" hunter2", "hunter2\t", " \t hunter2  "] {
            assert_eq!(stored(&key, value), stored(&key, "hunter2"), "{value:?}");
            assert_eq!(key.of(value), key.of("hunter2"));
            assert_eq!(
                key.clone().plain().of(value),
                key.clone().plain().of("hunter2")
            );
        }
        assert_ne!(stored(&key, "hunter 2"), stored(&key, "hunter2"));
    }

    #[test]
    fn an_empty_secret_is_a_misconfiguration() {
        for parts in [get(), parts(&[("x-api-key", "a")])] {
            let error = header("x-api-key").secret("").extract(&parts).unwrap_err();
            assert_eq!(error.kind(), KeyErrorKind::Misconfigured);
            assert!(error.to_string().contains("secret"), "{error}");
        }
        let plain = header("x-api-key").secret("").plain();
        assert!(plain.extract(&parts(&[("x-api-key", "a")])).is_ok());
    }

    #[test]
    fn a_header_that_is_absent_or_empty_is_missing() {
        for parts in [
            get(),
            parts(&[("x-api-key", "")]),
            parts(&[("x-api-key", " \t")]),
        ] {
            let error = header("x-api-key").extract(&parts).unwrap_err();
            assert_eq!(error.kind(), KeyErrorKind::Missing);
            assert!(error.to_string().contains("x-api-key"));
        }
    }

    #[test]
    fn a_header_that_is_sent_twice_is_ambiguous() {
        for second in ["a", "b", ""] {
            let parts = parts(&[("x-api-key", "a"), ("x-api-key", second)]);
            let error = header("x-api-key").extract(&parts).unwrap_err();
            assert_eq!(error.kind(), KeyErrorKind::Ambiguous);
        }
    }

    #[test]
    fn bytes_that_are_not_utf8_make_a_key() {
        assert_eq!(extract(b"\xff\xfe").as_str(), "header:x-api-key=%FF%FE");
        assert_ne!(extract(b"\xff"), extract(b"\xfe"));
    }

    fn extract(bytes: &[u8]) -> Key {
        let mut parts = get();
        let value = HeaderValue::from_bytes(bytes).unwrap();
        parts.headers.insert("x-api-key", value);
        header("x-api-key").plain().extract(&parts).unwrap()
    }

    #[test]
    fn an_invalid_header_name_is_a_misconfiguration() {
        for name in ["", "x api key", "x-é"] {
            let error = header(name).extract(&get()).unwrap_err();
            assert_eq!(error.kind(), KeyErrorKind::Misconfigured);
            assert!(error.to_string().contains(name));
        }
    }

    #[test]
    fn a_secret_is_not_in_the_debug_output() {
        let debug = format!("{:?}", header("x-api-key").secret("s3cret"));
        assert_eq!(debug, "Header(Ok(\"x-api-key\"))");
    }
}
