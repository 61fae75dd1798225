//! Keys from the value of a cookie.
//!
//! The `Cookie` header is split here. The crate `cookie` brings a crate for dates, reads only text, and
//! leaves it to its user to notice a cookie that is sent twice.

use std::fmt;

use http::header::COOKIE;
use http::request::Parts;
use http::{HeaderName, HeaderValue};
use percent_encoding::percent_decode;

use super::error::{KeyError, KeyErrorKind};
use super::extractor::{KeyExtractor, inherent_or};
use super::hash_key::{COOKIE as HASH_CONTEXT, HashKey};
use super::key::Key;
use super::single_value::SingleValue;
use super::tag::{NamedTag, Tag};

/// Counts by the value of a cookie: a session.
///
/// The value is always hashed before it is stored (160 bits of BLAKE3); see [`secret`](Cookie::secret) for
/// values that could be guessed. Name and value are percent-decoded, and a pair of quotes around the value
/// is removed. Many servers read cookies this way, and otherwise a client would get a count for each
/// spelling of its session.
///
/// A name that begins with `__Host-` or `__Secure-` is not decoded. Browsers keep other sites of the
/// domain from setting these names, but not from setting one that decodes to them, like
/// `__%48ost-session`.
///
/// An empty cookie is missing. A cookie that is sent twice, in one line or in several, is rejected: servers
/// differ in which of the two they read, so the client could choose which value counts. A name that no
/// cookie can have is answered 500, as a server that is not set up.
///
/// **A client can send any cookie.** Until the session is validated, every invented one gets a fresh quota.
/// Add this limit inside the layer that validates it, or add a limit by address outside.
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
    // The name of a cookie is a token like that of a header, but its case matters.
    let is_valid = configured.parse::<HeaderName>().is_ok();
    let misconfigured = || {
        KeyError::new(
            KeyErrorKind::Misconfigured,
            format!("invalid cookie name `{configured}`: pass a valid one to key::cookie"),
        )
    };
    Cookie {
        tag: NamedTag::cookie(configured),
        name: if is_valid {
            Ok(configured.into())
        } else {
            Err(misconfigured())
        },
        has_guarded_prefix: has_guarded_prefix(configured),
        single_value: SingleValue::new(&format!("the cookie `{configured}`")),
        hash_key: HashKey::new(HASH_CONTEXT),
    }
}

/// Counts by the value of a cookie; made by [`cookie`].
#[derive(Clone)]
pub struct Cookie {
    name: Result<String, KeyError>,
    tag: NamedTag,
    has_guarded_prefix: bool,
    single_value: SingleValue,
    hash_key: HashKey,
}

impl Cookie {
    /// Hashes the value under a secret of the application: for values that an attacker could guess and
    /// then look up, like a user's name.
    ///
    /// All processes must use the same secret. Changing it starts new counts. An empty secret is answered
    /// 500, as a server that is not set up.
    #[must_use]
    pub fn secret(mut self, secret: impl AsRef<[u8]>) -> Self {
        self.hash_key = HashKey::from_secret(HASH_CONTEXT, secret.as_ref());
        self
    }

    /// Returns the key of a request whose cookie has this value, to inspect or reset its counts without a
    /// request. Pass the value without quotes and percent-decoded.
    #[must_use]
    pub fn of(&self, value: impl AsRef<[u8]>) -> Key {
        let hash = self.hash_key.hash(value.as_ref());
        Key::hashed(Tag::Named(&self.tag), &hash)
    }
}

inherent_or!(Cookie);

impl KeyExtractor for Cookie {
    fn extract(&self, parts: &Parts) -> Result<Key, KeyError> {
        let name = self.name.as_ref().map_err(KeyError::clone)?.as_bytes();
        self.hash_key.check()?;
        let lines = parts.headers.get_all(COOKIE).iter();
        // HTTP/2 may send the pairs in several lines.
        let pairs = lines.flat_map(|line| HeaderValue::as_bytes(line).split(|byte| *byte == b';'));
        let is_name = |sent: &[u8]| match self.has_guarded_prefix {
            true => sent == name,
            false => percent_decode(sent).eq(name.iter().copied()),
        };
        let values = pairs.filter_map(|pair| value_of(pair, is_name));
        let value = self.single_value.require(values)?;
        Ok(if value.contains(&b'%') {
            self.of(percent_decode(value).collect::<Vec<_>>())
        } else {
            self.of(value)
        })
    }
}

/// Whether browsers keep other sites from setting a cookie of this name. The case of the prefix does not
/// matter (RFC 6265bis, section 4.1.3).
fn has_guarded_prefix(name: &str) -> bool {
    ["__host-", "__secure-"].into_iter().any(|prefix| {
        let start = name.get(..prefix.len());
        start.is_some_and(|start| start.eq_ignore_ascii_case(prefix))
    })
}

/// Returns the value of a pair, without quotes and still encoded, if the pair has the name.
fn value_of(pair: &[u8], is_name: impl Fn(&[u8]) -> bool) -> Option<&[u8]> {
    let equals = pair.iter().position(|byte| *byte == b'=')?;
    let (name, value) = pair.split_at_checked(equals)?;
    if !is_name(name.trim_ascii()) {
        return None;
    }
    let value = value.strip_prefix(b"=")?.trim_ascii();
    let unquoted = value
        .strip_prefix(b"\"")
        .and_then(|value| value.strip_suffix(b"\""));
    Some(unquoted.unwrap_or(value))
}

impl fmt::Debug for Cookie {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Without the hash key, which may be a secret.
        f.debug_tuple("Cookie").field(&self.name).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::test_request::{get, parts};

    fn of(lines: &[&str]) -> Result<Key, KeyErrorKind> {
        let headers: Vec<_> = lines.iter().map(|line| ("cookie", *line)).collect();
        let key = cookie("sid").extract(&parts(&headers));
        key.map_err(|error| error.kind())
    }

    #[test]
    fn one_session_is_one_key_however_it_is_written() {
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
            assert_eq!(of(lines), Ok(key.clone()), "{lines:?}");
        }
        for other in [
            "sid=A+b=",
            "sid=a b=",
            "sid=a+b",
            "sid=a+b==",
            "sid=\"a+b=",
            "sid=%2561+b=",
        ] {
            assert_ne!(of(&[other]), Ok(key.clone()), "{other:?}");
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
            assert_eq!(of(missing), Err(KeyErrorKind::Missing), "{missing:?}");
        }
        for twice in [
            &["sid=a; sid=b"][..],
            &["sid=a; sid=a"],
            &["sid=a", "sid=b"],
            &["sid=a; theme=dark", "lang=en; sid="],
            &["sid=a; s%69d=b"],
        ] {
            assert_eq!(of(twice), Err(KeyErrorKind::Ambiguous), "{twice:?}");
        }
    }

    #[test]
    fn a_name_with_a_guarded_prefix_is_not_decoded() {
        for name in ["__Host-sid", "__Secure-sid", "__host-sid", "__SECURE-sid"] {
            let of = |line: &str| cookie(name).extract(&parts(&[("cookie", line)]));
            let sid = cookie(name).of("a");
            assert_eq!(of(&format!("{name}=a")), Ok(sid.clone()));
            assert_eq!(of(&format!("{name}=%61")), Ok(sid.clone()));
            // Another site of the domain may set this name, and a server that decodes it accepts it.
            let encoded = name.replace('s', "%73").replace('S', "%53");
            let error = of(&format!("{encoded}=b")).unwrap_err();
            assert_eq!(error.kind(), KeyErrorKind::Missing);
            assert_eq!(of(&format!("{encoded}=b; {name}=a")), Ok(sid));
        }
    }

    #[test]
    fn the_hash_is_the_same_in_every_process_and_version() {
        // As another implementation of BLAKE3 computes it.
        let expected = "cookie:sid=~4e6319ac2e357247318ba23223710745764aa8ec";
        assert_eq!(cookie("sid").of("hunter2").as_str(), expected);
    }

    #[test]
    fn an_empty_secret_is_a_fault_of_the_server() {
        for parts in [get(), parts(&[("cookie", "sid=a")])] {
            let error = cookie("sid").secret("").extract(&parts).unwrap_err();
            assert_eq!(error.kind(), KeyErrorKind::Misconfigured);
        }
    }

    #[test]
    fn a_name_that_no_cookie_has_is_a_fault_of_the_server() {
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
        let of = key.of("hunter2");
        for text in [format!("{error} {error:?} {of:?}"), format!("{key:?}")] {
            assert!(
                !text.contains("hunter2") && !text.contains("s3cret"),
                "{text}"
            );
        }
        assert!(of.as_str().starts_with("cookie:sid=~"));
        assert_ne!(of, cookie("sid").of("hunter2"));
    }
}
