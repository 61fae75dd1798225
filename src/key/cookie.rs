//! The value of a cookie.
//!
//! Divided here and not by the crate `cookie`, which brings one for dates, takes text only, and
//! leaves it to the caller to see what is sent twice.

use std::fmt;

use http::header::COOKIE;
use http::request::Parts;
use http::{HeaderName, HeaderValue};
use percent_encoding::percent_decode;

use super::error::{KeyError, KeyErrorKind};
use super::extractor::KeyExtractor;
use super::key::Key;
use super::key::{NamedTag, Tag};
use super::secret::{COOKIE as PLACE, HashKey};
use super::single_value::Once;

/// Counts by the value of a cookie: a session.
///
/// The value is hashed before it is stored (160 bits of BLAKE3), always; see
/// [`secret`](Cookie::secret) for values that could be guessed. A pair of quotes around it is taken
/// off, and it is percent-decoded, as is the name: many servers read it so, and a client could else
/// have a count for each spelling of its session. A name that begins with `__Host-` or `__Secure-` is
/// not: browsers keep other sites of the domain from setting it as it is written, but not from setting
/// what is decoded to it, like `__%48ost-session`.
///
/// A cookie that is empty is missing. One that is sent twice, in one line or in several, is refused:
/// servers differ in which of the two they take, so which one counts would be the client's choice. A
/// name that no cookie can have is answered as a server that is not set up.
///
/// **A client can send any cookie.** Where nobody has checked the session yet, each made-up one is a
/// fresh quota: put the limit behind the layer that checks it, or one by address before it.
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
    let given = name.as_ref();
    // The name of a cookie is a token, as that of a header is, but for its case.
    let is_name = given.parse::<HeaderName>().is_ok();
    let misconfigured = || {
        KeyError::new(
            KeyErrorKind::Misconfigured,
            format!("the cookie `{given}` cannot exist: give key::cookie the name of one"),
        )
    };
    Cookie {
        tag: NamedTag::cookie(given),
        name: if is_name {
            Ok(given.into())
        } else {
            Err(misconfigured())
        },
        is_guarded: is_guarded(given),
        once: Once::new(&format!("the cookie `{given}`")),
        hash_key: HashKey::new(PLACE),
    }
}

/// Counts by the value of a cookie; made by [`cookie`].
#[derive(Clone)]
pub struct Cookie {
    name: Result<String, KeyError>,
    tag: NamedTag,
    is_guarded: bool,
    once: Once,
    hash_key: HashKey,
}

impl Cookie {
    /// Hashes under a secret of yours: for values that could be guessed and then looked for, like a
    /// user's name. All processes must have the same secret; changing it starts all counts anew. An
    /// empty one is answered as a server that is not set up.
    #[must_use]
    pub fn secret(mut self, secret: impl AsRef<[u8]>) -> Self {
        self.hash_key = HashKey::of_secret(PLACE, secret.as_ref());
        self
    }

    /// The key of a request whose cookie has this value, without quotes and percent-decoded: to look
    /// at it or reset it without a request.
    #[must_use]
    pub fn of(&self, value: impl AsRef<[u8]>) -> Key {
        let hash = self.hash_key.hash(value.as_ref());
        Key::hashed(Tag::Named(&self.tag), &hash)
    }
}

impl KeyExtractor for Cookie {
    fn extract(&self, parts: &Parts) -> Result<Key, KeyError> {
        let name = self.name.as_ref().map_err(KeyError::clone)?.as_bytes();
        self.hash_key.check()?;
        let lines = parts.headers.get_all(COOKIE).iter();
        // HTTP/2 may send the pairs in several lines.
        let pairs = lines.flat_map(|line| HeaderValue::as_bytes(line).split(|byte| *byte == b';'));
        let is_name = |given: &[u8]| match self.is_guarded {
            true => given == name,
            false => percent_decode(given).eq(name.iter().copied()),
        };
        let values = pairs.filter_map(|pair| value_of(pair, is_name));
        let value = self.once.only(values)?;
        Ok(if value.contains(&b'%') {
            self.of(percent_decode(value).collect::<Vec<_>>())
        } else {
            self.of(value)
        })
    }
}

/// Whether browsers let nobody else set a cookie of this name, in whatever case (RFC 6265bis, section
/// 4.1.3).
fn is_guarded(name: &str) -> bool {
    ["__host-", "__secure-"].into_iter().any(|prefix| {
        let beginning = name.get(..prefix.len());
        beginning.is_some_and(|beginning| beginning.eq_ignore_ascii_case(prefix))
    })
}

/// The value of a pair, as it is encoded, if it is of the name.
fn value_of(pair: &[u8], is_name: impl Fn(&[u8]) -> bool) -> Option<&[u8]> {
    let equals = pair.iter().position(|byte| *byte == b'=')?;
    let (given, value) = pair.split_at_checked(equals)?;
    if !is_name(given.trim_ascii()) {
        return None;
    }
    let value = value.strip_prefix(b"=")?.trim_ascii();
    let quoted = value.strip_prefix(b"\"");
    Some(
        quoted
            .and_then(|value| value.strip_suffix(b"\""))
            .unwrap_or(value),
    )
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
    use crate::key::extractor::test_request::{get, parts};

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
    fn what_is_absent_or_empty_is_missing_and_two_are_ambiguous() {
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
    fn a_name_with_a_prefix_of_browsers_is_not_decoded() {
        for name in ["__Host-sid", "__Secure-sid", "__host-sid", "__SECURE-sid"] {
            let of = |line: &str| cookie(name).extract(&parts(&[("cookie", line)]));
            let sid = cookie(name).of("a");
            assert_eq!(of(&format!("{name}=a")), Ok(sid.clone()));
            assert_eq!(of(&format!("{name}=%61")), Ok(sid.clone()));
            // What another site of the domain may set, and a server that decodes takes for it.
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
    fn a_session_is_nowhere_to_be_read() {
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
