//! Keys from the value of a cookie.
//!
//! This file parses the `Cookie` header itself. The crate `cookie` depends on a crate for dates, reads only
//! UTF-8, and does not report a cookie that is sent twice.

use http::request::Parts;
use http::{HeaderName, header};
use percent_encoding::percent_decode;

use super::error::KeyError;
use super::extractor::{KeyExtractor, inherent_or};
use super::hash_key::COOKIE;
use super::hashed_value::HashedValue;
use super::key::Key;
use super::tag::named_tag;

/// Returns an extractor that counts by the value of a cookie, such as a session ID.
///
/// **A client can send any cookie.** Each invented session gets a fresh quota until the session is
/// validated. So add this limit inside the layer that validates it, or add another limit by
/// [`peer_ip`](super::peer_ip()) outside.
///
/// # Which value counts
///
/// - Name and value are percent-decoded, and a pair of quotes around the value is removed. Many servers
///   read cookies this way. Otherwise a client would get a new count for each spelling of its session.
/// - A name that starts with `__Host-` or `__Secure-` is not decoded. Browsers prevent other sites of the
///   domain from setting such a name, but not from setting one that decodes to it, like
///   `__%48ost-session`.
/// - A request without the cookie, or with an empty one, has no key.
/// - A request with two cookies of this name is rejected with 400. Servers differ in which of them they
///   read, so the client could choose which value counts.
/// - If `name` is not a valid cookie name, all requests are answered 500, and one log line says so.
///
/// # How it is stored
///
/// The value is always stored as a hash (160 bits of BLAKE3). [`secret`](Cookie::secret) protects a value
/// that could be guessed.
///
/// # Examples
///
/// ```
/// use tollgate::{MemoryStore, Quota, RateLimitLayer, key};
///
/// let layer = RateLimitLayer::new(MemoryStore::new(), Quota::per_minute(60))
///     .key(key::cookie("__Host-session"));
/// ```
#[must_use]
pub fn cookie(name: impl AsRef<str>) -> Cookie {
    let configured = name.as_ref();
    // A cookie name has the syntax of a header name, but its case matters.
    let is_valid = configured.parse::<HeaderName>().is_ok();
    let name = is_valid.then(|| configured.to_owned());
    let tag = named_tag("cookie", configured);
    Cookie(HashedValue::new("cookie", configured, name, tag, COOKIE))
}

/// A key extractor that counts by the value of a cookie; created by [`cookie`].
#[derive(Clone, Debug)]
pub struct Cookie(HashedValue<String>);

impl Cookie {
    /// Hashes the value with a secret of your application, for values that can be guessed, such as user
    /// names.
    ///
    /// Without a secret, anyone who can read the store can hash a guess and look for the result. All
    /// processes must use the same secret. A new secret starts new counts. With an empty secret, all
    /// requests are answered 500, and one log line says so.
    #[must_use]
    pub fn secret(mut self, secret: impl AsRef<[u8]>) -> Self {
        self.0.secret(secret.as_ref());
        self
    }

    /// Returns the key of requests whose cookie has this value, to inspect or reset its count.
    ///
    /// Pass the value percent-decoded and without quotes.
    #[must_use]
    pub fn of(&self, value: impl AsRef<[u8]>) -> Key {
        self.0.key(value.as_ref())
    }
}

inherent_or!(Cookie);

impl KeyExtractor for Cookie {
    fn extract(&self, parts: &Parts) -> Result<Key, KeyError> {
        let name = self.0.name()?;
        let is_guarded = has_guarded_prefix(name);
        let values = parts
            .headers
            .get_all(header::COOKIE)
            .iter()
            // HTTP/2 may split the pairs over several lines (RFC 9113, section 8.2.3).
            .flat_map(|line| line.as_bytes().split(|byte| *byte == b';'))
            .filter_map(split_pair)
            .filter(|(sent, _)| is_name(sent, name, is_guarded))
            .map(|(_, value)| unquote(value));
        let value = self.0.only(values)?;
        Ok(if value.contains(&b'%') {
            self.of(percent_decode(value).collect::<Vec<_>>())
        } else {
            self.of(value)
        })
    }

    fn config_error(&self) -> Option<KeyError> {
        self.0.name().err()
    }
}

/// Returns whether browsers prevent other sites from setting a cookie with this name. The case of the prefix
/// does not matter (RFC 6265bis, section 4.1.3).
fn has_guarded_prefix(name: &str) -> bool {
    ["__host-", "__secure-"].into_iter().any(|prefix| {
        name.get(..prefix.len())
            .is_some_and(|start| start.eq_ignore_ascii_case(prefix))
    })
}

/// Servers may decode a name, but browsers guard it as it is spelled.
fn is_name(sent: &[u8], name: &str, is_guarded: bool) -> bool {
    if is_guarded {
        sent == name.as_bytes()
    } else {
        percent_decode(sent).eq(name.bytes())
    }
}

fn split_pair(pair: &[u8]) -> Option<(&[u8], &[u8])> {
    let mut parts = pair.splitn(2, |byte| *byte == b'=');
    let name = parts.next()?;
    let value = parts.next()?;
    Some((name.trim_ascii(), value))
}

/// The value stays encoded.
fn unquote(value: &[u8]) -> &[u8] {
    let value = value.trim_ascii();
    value
        .strip_prefix(b"\"")
        .and_then(|value| value.strip_suffix(b"\""))
        .unwrap_or(value)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::error::KeyErrorKind;
    use crate::key::test_request::{get, parts};

    fn extract(lines: &[&str]) -> Result<Key, KeyErrorKind> {
        let headers: Vec<_> = lines.iter().map(|line| ("cookie", *line)).collect();
        let key = cookie("sid").extract(&parts(&headers));
        key.map_err(|error| error.kind())
    }

    #[test]
    fn all_spellings_of_a_session_have_the_same_key() {
        let key = cookie("sid").of("a+b=");
        for lines in [
            &["sid=a+b="][..],
            &["theme=dark; sid=a+b=; lang=en"],
            &["theme=dark;sid=a+b="],
            &["theme=dark", "sid=a+b="],
            &["sid=\"a+b=\""],
            &[" sid = a+b= ;"],
            &["sid=%61+b%3D"],
            &["sid=%61%2bb%3d"],
            &["s%69d=a+b="],
            &["SID=other; sid=a+b=; xsid=1; sidx=2; =3; sid"],
        ] {
            assert_eq!(extract(lines), Ok(key.clone()), "{lines:?}");
        }
        for other in [
            "sid=A+b=",
            "sid=a b=",
            "sid=a+b",
            "sid=a+b==",
            "sid=\"a+b=",
            "sid=%2561+b=",
        ] {
            assert_ne!(extract(&[other]), Ok(key.clone()), "{other:?}");
        }
        assert_ne!(key, cookie("SID").of("a+b="));
    }

    #[test]
    fn an_absent_or_empty_cookie_is_missing_and_two_are_ambiguous() {
        for missing in [
            &[][..],
            &[""],
            &["sid"],
            &["sid="],
            &["sid=\"\""],
            &["SID=a"],
            &["a=sid=b"],
            &["x=1", "y=2"],
        ] {
            assert_eq!(extract(missing), Err(KeyErrorKind::Missing), "{missing:?}");
        }
        for twice in [
            &["sid=a; sid=b"][..],
            &["sid=a; sid=a"],
            &["sid=a", "sid=b"],
            &["sid=a; theme=dark", "lang=en; sid="],
            &["sid=a; s%69d=b"],
        ] {
            assert_eq!(extract(twice), Err(KeyErrorKind::Ambiguous), "{twice:?}");
        }
    }

    #[test]
    fn a_name_with_a_guarded_prefix_is_not_decoded() {
        for name in ["__Host-sid", "__Secure-sid", "__host-sid", "__SECURE-sid"] {
            let sid = cookie(name).of("a");
            assert_eq!(extract_named(name, &format!("{name}=a")), Ok(sid.clone()));
            assert_eq!(extract_named(name, &format!("{name}=%61")), Ok(sid.clone()));
            // Another site of the domain can set this name, and a server that decodes names would accept it.
            let encoded = name.replace('s', "%73").replace('S', "%53");
            let error = extract_named(name, &format!("{encoded}=b")).unwrap_err();
            assert_eq!(error.kind(), KeyErrorKind::Missing);
            let both = extract_named(name, &format!("{encoded}=b; {name}=a"));
            assert_eq!(both, Ok(sid));
        }
    }

    fn extract_named(name: &str, line: &str) -> Result<Key, KeyError> {
        cookie(name).extract(&parts(&[("cookie", line)]))
    }

    #[test]
    fn the_hash_is_the_same_in_every_process_and_version() {
        // Computed with another implementation of BLAKE3.
        let expected = "cookie:sid=~4e6319ac2e357247318ba23223710745764aa8ec";
        assert_eq!(cookie("sid").of("hunter2").as_str(), expected);
    }

    #[test]
    fn an_empty_secret_is_a_misconfiguration() {
        for parts in [get(), parts(&[("cookie", "sid=a")])] {
            let error = cookie("sid").secret("").extract(&parts).unwrap_err();
            assert_eq!(error.kind(), KeyErrorKind::Misconfigured);
        }
    }

    #[test]
    fn an_invalid_cookie_name_is_a_misconfiguration() {
        for name in ["", "a b", "a=b", "a;b", "é"] {
            let error = cookie(name).extract(&get()).unwrap_err();
            assert_eq!(error.kind(), KeyErrorKind::Misconfigured);
            assert!(error.to_string().contains(name));
        }
    }

    #[test]
    fn a_session_is_never_readable() {
        let parts = parts(&[("cookie", "sid=hunter2; sid=hunter2")]);
        let error = cookie("sid").extract(&parts).unwrap_err();
        let key = cookie("sid").secret("s3cret");
        let hashed = key.of("hunter2");
        for text in [format!("{error} {error:?} {hashed:?}"), format!("{key:?}")] {
            assert!(
                !text.contains("hunter2") && !text.contains("s3cret"),
                "{text}"
            );
        }
        assert!(hashed.as_str().starts_with("cookie:sid=~"));
        assert_ne!(hashed, cookie("sid").of("hunter2"));
    }
}
