//! Keys from the credentials of the `Authorization` header.

use http::HeaderName;
use http::header::AUTHORIZATION;
use http::request::Parts;
use smallvec::SmallVec;

use super::error::KeyError;
use super::extractor::{KeyExtractor, inherent_or};
use super::hash_key::CREDENTIALS;
use super::hashed_value::HashedValue;
use super::key::Key;

/// Returns an extractor that counts by the credentials in the `Authorization` header, such as a bearer token.
///
/// **A client can send any credentials.** Each invented token, and each guess at a password, gets a fresh
/// quota until the credentials are validated. So add this limit inside the layer that validates them, or
/// add another limit by [`peer_ip`](super::peer_ip()) outside.
///
/// A scheme that signs each request, such as Digest, sends a different value each time. For such a scheme,
/// count by the authenticated user, as an [`extension`](super::extension()).
///
/// # Which value counts
///
/// - The case of the scheme and the whitespace after it do not matter (RFC 9110, section 11.4):
///   `Bearer abc` and `bearer  abc` have the same key. Otherwise a client would get a new count for each
///   spelling.
/// - Everything after that is used as it is sent. So is a value without whitespace.
/// - A request without the header, or with an empty one, has no key.
/// - A request with several lines of the header is rejected with 400. Otherwise the client could choose
///   which value counts.
///
/// # How it is stored
///
/// The credentials are always stored as a hash (160 bits of BLAKE3). [`secret`](Authorization::secret)
/// protects credentials that could be guessed.
///
/// # Examples
///
/// ```
/// use tollgate::{MemoryStore, Quota, RateLimitLayer, key};
///
/// let layer = RateLimitLayer::new(MemoryStore::new(), Quota::per_minute(60))
///     .key(key::authorization());
/// ```
#[doc(alias("bearer", "bearer_token", "jwt"))]
#[must_use]
pub fn authorization() -> Authorization {
    Authorization(HashedValue::new(
        "header",
        "authorization",
        Some(AUTHORIZATION),
        "authorization=".into(),
        CREDENTIALS,
    ))
}

/// A key extractor that counts by the credentials in the `Authorization` header; created by
/// [`authorization`].
#[derive(Clone, Debug)]
pub struct Authorization(HashedValue<HeaderName>);

impl Authorization {
    /// Hashes the credentials with a secret of your application, for credentials that can be guessed, such
    /// as passwords.
    ///
    /// Without a secret, anyone who can read the store can hash a guess and look for the result. All
    /// processes must use the same secret. A new secret starts new counts. With an empty secret, all
    /// requests are answered 500, and one log line says so.
    #[must_use]
    pub fn secret(mut self, secret: impl AsRef<[u8]>) -> Self {
        self.0.secret(secret.as_ref());
        self
    }

    /// Returns the key of requests with these credentials, to inspect or reset its count.
    ///
    /// Pass the whole header value, including the scheme.
    ///
    /// # Examples
    ///
    /// ```
    /// use tollgate::key;
    ///
    /// let key = key::authorization().of("Bearer 1f0c");
    /// assert_eq!(key, key::authorization().of("bearer 1f0c"));
    /// assert!(!key.as_str().contains("1f0c"));
    /// ```
    #[must_use]
    pub fn of(&self, credentials: impl AsRef<[u8]>) -> Key {
        let credentials = credentials.as_ref().trim_ascii();
        match split_scheme(credentials) {
            None => self.0.key(credentials),
            Some((scheme, rest)) => {
                let mut text: SmallVec<[u8; 256]> =
                    scheme.iter().map(u8::to_ascii_lowercase).collect();
                // A token without a scheme contains no space.
                text.push(b' ');
                text.extend_from_slice(rest);
                self.0.key(&text)
            }
        }
    }
}

fn split_scheme(credentials: &[u8]) -> Option<(&[u8], &[u8])> {
    let mut parts = credentials.splitn(2, u8::is_ascii_whitespace);
    let scheme = parts.next()?;
    let rest = parts.next()?;
    Some((scheme, rest.trim_ascii_start()))
}

inherent_or!(Authorization);

impl KeyExtractor for Authorization {
    fn extract(&self, parts: &Parts) -> Result<Key, KeyError> {
        Ok(self.of(self.0.line(&parts.headers)?))
    }

    fn config_error(&self) -> Option<KeyError> {
        self.0.name().err()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::error::KeyErrorKind;
    use crate::key::test_request::parts;

    fn extract(values: &[&str]) -> Result<Key, KeyErrorKind> {
        let headers: Vec<_> = values
            .iter()
            .map(|value| ("Authorization", *value))
            .collect();
        let key = authorization().extract(&parts(&headers));
        key.map_err(|error| error.kind())
    }

    #[test]
    fn all_spellings_of_the_scheme_have_the_same_key() {
        let key = extract(&["Bearer aBc.D"]).unwrap();
        for same in [
            "bearer aBc.D",
            "BEARER aBc.D",
            "Bearer  aBc.D",
            "Bearer \t aBc.D",
            " Bearer aBc.D ",
        ] {
            assert_eq!(extract(&[same]), Ok(key.clone()), "{same:?}");
            assert_eq!(authorization().of(same), key);
        }
        for other in [
            "Bearer abc.D",
            "Bearer aBc.D=",
            "Basic aBc.D",
            "BeareraBc.D x",
            "Bearer aBc.D x",
            "bea rer aBc.D",
        ] {
            assert_ne!(extract(&[other]), Ok(key.clone()), "{other:?}");
        }
    }

    #[test]
    fn an_absent_or_empty_header_is_missing_and_two_are_ambiguous() {
        for missing in [&[][..], &[""], &["  "], &["\t"]] {
            assert_eq!(extract(missing), Err(KeyErrorKind::Missing), "{missing:?}");
        }
        for twice in [
            ["Bearer a", "Bearer a"],
            ["Bearer a", ""],
            ["Bearer", "Basic b"],
        ] {
            assert_eq!(extract(&twice), Err(KeyErrorKind::Ambiguous), "{twice:?}");
        }
    }

    #[test]
    fn a_token_without_a_scheme_and_a_scheme_alone_are_credentials() {
        let keys =
            ["aBc.D", "abc.D", "Bearer", "Bearer aBc.D"].map(|value| extract(&[value]).unwrap());
        for (index, key) in keys.iter().enumerate() {
            assert!(!keys[..index].contains(key), "{key:?}");
        }
        assert_eq!(extract(&["Bearer "]), extract(&["Bearer"]));
        assert_eq!(extract(&[" aBc.D"]), extract(&["aBc.D"]));
    }

    #[test]
    fn the_case_of_a_scheme_of_any_length_does_not_matter() {
        for length in [1, 63, 64, 65, 255, 256, 257, 1_000] {
            let scheme = "aBcDe".repeat(length).split_off(4 * length);
            let key = extract(&[&format!("{scheme} x")]);
            assert_eq!(extract(&[&format!("{} x", scheme.to_uppercase())]), key);
            assert_ne!(extract(&[&format!("{scheme}e x")]), key);
        }
    }

    #[test]
    fn the_hash_is_the_same_in_every_process_and_version() {
        // Computed with another implementation of BLAKE3, from "bearer hunter2".
        let expected = "authorization=~dc158565ee0c00a20be5af44d82a66cd7671d03a";
        assert_eq!(extract(&["Bearer hunter2"]).unwrap().as_str(), expected);
    }

    #[test]
    fn an_empty_secret_is_a_misconfiguration() {
        for parts in [parts(&[]), parts(&[("authorization", "Bearer a")])] {
            let error = authorization().secret("").extract(&parts).unwrap_err();
            assert_eq!(error.kind(), KeyErrorKind::Misconfigured);
        }
    }

    #[test]
    fn credentials_are_never_readable() {
        let parts = parts(&[
            ("authorization", "Bearer hunter2"),
            ("authorization", "Basic hunter2"),
        ]);
        let error = authorization().extract(&parts).unwrap_err();
        let key = authorization().secret("s3cret");
        let hashed = key.of("Bearer hunter2");
        for text in [format!("{error} {error:?} {hashed:?}"), format!("{key:?}")] {
            assert!(
                !text.contains("hunter2") && !text.contains("s3cret"),
                "{text}"
            );
        }
        assert!(hashed.as_str().starts_with("authorization=~"));
        assert_ne!(hashed, authorization().of("Bearer hunter2"));
        assert_ne!(hashed, key.secret("other").of("Bearer hunter2"));
    }
}
