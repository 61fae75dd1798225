//! The values that an operator enters to name a key.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use http::header::HeaderName;
use http::request::Parts;
use http::{HeaderValue, Request};

use super::error::{KeyError, KeyErrorKind};
use super::key::Key;

/// The values that an operator enters to name a key, such as an IP address, and the key that they make.
///
/// Use it for an admin page or a command line: [`KeyExtractor::forms`](super::KeyExtractor::forms) returns the
/// forms of an extractor, and [`Level::key_forms`](crate::Level::key_forms) those of a level of a layer. So a page
/// asks for an address where addresses are counted, and for the value of `x-api-key` where that is counted. It
/// never makes a key that no request can have.
///
/// # Examples
///
/// ```
/// use tollgate::key::{self, KeyErrorKind, KeyExtractor};
///
/// let extractor = (key::header("x-tenant-id").plain(), key::peer_ip());
/// let form = &extractor.forms()[0];
/// let labels: Vec<_> = form.fields().iter().map(|field| field.label()).collect();
/// assert_eq!(labels, ["value of the header x-tenant-id", "IP address"]);
///
/// let key = form.key(&["acme", "192.0.2.1"])?;
/// assert_eq!(key.as_str(), "header:x-tenant-id=acme,ip=192.0.2.1");
///
/// let error = form.key(&["acme", "192.0.2"]).unwrap_err();
/// assert_eq!(error.kind(), KeyErrorKind::Invalid);
/// assert!(error.to_string().starts_with("IP address is not valid"));
/// # Ok::<(), key::KeyError>(())
/// ```
#[derive(Clone)]
pub struct KeyForm {
    fields: Vec<KeyField>,
    maker: Arc<Maker>,
    /// The key of the examples. `None` if they make no key, such as those of a misconfigured extractor.
    example: Option<Key>,
}

/// One value of a [`KeyForm`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyField {
    label: Arc<str>,
    example: Arc<str>,
}

type MakeFn = dyn Fn(&str) -> Result<Key, KeyError> + Send + Sync;

/// Makes a key from the values of the fields.
enum Maker {
    Fixed(Key),
    Value { label: Arc<str>, make: Box<MakeFn> },
    Joined(Arc<Self>, Arc<Self>),
}

impl KeyForm {
    /// Creates a form with one value: a label, an example, and a function that makes the key.
    ///
    /// Use it in [`KeyExtractor::forms`](super::KeyExtractor::forms) of your own extractor, or for keys that a
    /// closure extracts. The function is not called for an empty value. For any other value that no key has, return
    /// an error of kind [`Invalid`](KeyErrorKind::Invalid), whose text says what to enter. The label is added in
    /// front.
    ///
    /// # Examples
    ///
    /// ```
    /// use tollgate::Key;
    /// use tollgate::key::{KeyError, KeyErrorKind, KeyForm};
    ///
    /// let by_account = KeyForm::new("account number", "1042", |value| {
    ///     let number = value.trim().parse::<u64>();
    ///     number.map(Key::from).map_err(|_| KeyError::new(KeyErrorKind::Invalid, "enter digits only"))
    /// });
    /// assert_eq!(by_account.key(&["7"])?, Key::from(7_u64));
    /// let error = by_account.key(&["seven"]).unwrap_err();
    /// assert_eq!(error.to_string(), "account number is not valid: enter digits only");
    /// # Ok::<(), KeyError>(())
    /// ```
    #[must_use]
    pub fn new<F>(label: impl Into<Arc<str>>, example: impl Into<Arc<str>>, key: F) -> Self
    where
        F: Fn(&str) -> Result<Key, KeyError> + Send + Sync + 'static,
    {
        let (label, example) = (label.into(), example.into());
        let maker = Maker::Value {
            label: Arc::clone(&label),
            make: Box::new(key),
        };
        Self::with(vec![KeyField { label, example }], maker)
    }

    /// Creates a form without a value: there is one key only, such as that of all requests together.
    #[must_use]
    pub fn fixed(key: Key) -> Self {
        Self::with(Vec::new(), Maker::Fixed(key))
    }

    /// Joins two forms: the result asks for the values of both, and makes the [joined](Key::and) key.
    #[must_use]
    pub fn and(&self, other: &Self) -> Self {
        let fields = self.fields.iter().chain(&other.fields).cloned().collect();
        let makers = (Arc::clone(&self.maker), Arc::clone(&other.maker));
        Self::with(fields, Maker::Joined(makers.0, makers.1))
    }

    fn with(fields: Vec<KeyField>, maker: Maker) -> Self {
        let example = maker.key(&mut fields.iter().map(|field| &*field.example));
        Self {
            example: example.ok(),
            maker: Arc::new(maker),
            fields,
        }
    }

    /// Creates the form of an address.
    pub(super) fn address<F>(key: F) -> Self
    where
        F: Fn(IpAddr) -> Result<Key, KeyError> + Send + Sync + 'static,
    {
        Self::new("IP address", "192.0.2.1", move |value| {
            let address = value.trim().parse();
            key(address.map_err(|_| invalid("enter one like 192.0.2.1 or 2001:db8::1"))?)
        })
    }

    /// Creates the form of a value in a header. The key is extracted from a request with that header.
    pub(super) fn in_header<F>(label: String, example: &str, name: HeaderName, extract: F) -> Self
    where
        F: Fn(&Parts) -> Result<Key, KeyError> + Send + Sync + 'static,
    {
        Self::new(label, example, move |value| {
            let sent = HeaderValue::from_bytes(value.trim().as_bytes());
            let sent = sent.map_err(|_| invalid("no header can contain control characters"))?;
            let mut parts = Request::new(()).into_parts().0;
            parts.headers.insert(name.clone(), sent);
            extract(&parts)
        })
    }

    /// Returns the values to enter, in their order. The list is empty if there is one key only.
    #[must_use]
    pub fn fields(&self) -> &[KeyField] {
        &self.fields
    }

    /// Returns the key of these values, one for each field: the key of requests with these values.
    ///
    /// # Errors
    ///
    /// Returns an error of kind [`Missing`](KeyErrorKind::Missing) if a value is empty, and of kind
    /// [`Invalid`](KeyErrorKind::Invalid) if no request can have it, such as an address that cannot be parsed, or if
    /// the number of values is wrong. If the extractor is misconfigured, it returns that error. The texts contain
    /// no value.
    pub fn key<V: AsRef<str>>(&self, values: &[V]) -> Result<Key, KeyError> {
        let (expected, found) = (self.fields.len(), values.len());
        if expected != found {
            return Err(invalid(format!(
                "the key needs {expected} values, not {found}"
            )));
        }
        self.maker.key(&mut values.iter().map(AsRef::as_ref))
    }

    /// Returns whether a [stored](Key::from_stored) key may be a key of this form: it has the same tags, such as
    /// `ip=`.
    ///
    /// Use it to refuse a stored key of another limiter. A key that was too long and is stored as a hash has no
    /// tags: it may be a key of any form with a value.
    ///
    /// # Examples
    ///
    /// ```
    /// use tollgate::Key;
    /// use tollgate::key::{self, KeyExtractor};
    ///
    /// let forms = key::header("x-api-key").forms();
    /// assert!(forms[0].may_be(&key::header("x-api-key").of("1f0c")));
    /// assert!(!forms[0].may_be(&key::peer_ip().of([192, 0, 2, 1].into())));
    /// ```
    #[must_use]
    pub fn may_be(&self, key: &Key) -> bool {
        match &self.example {
            Some(example) if self.fields.is_empty() => key == example,
            Some(example) => {
                key.as_str().starts_with('#')
                    || example.as_str().starts_with('#')
                    || tags(key).eq(tags(example))
            }
            None => false,
        }
    }
}

/// Returns the tags of the joined keys: the text up to the value. Values contain none of these characters.
fn tags(key: &Key) -> impl Iterator<Item = &str> {
    key.as_str()
        .split(',')
        .map(|part| match part.split_once('=') {
            Some((tag, value)) => {
                let hash_mark = usize::from(value.starts_with('~'));
                part.get(..tag.len() + 1 + hash_mark).unwrap_or(part)
            }
            None if part == "*" => part,
            None => "",
        })
}

impl Maker {
    fn key(&self, values: &mut dyn Iterator<Item = &str>) -> Result<Key, KeyError> {
        match self {
            Self::Fixed(key) => Ok(key.clone()),
            Self::Value { label, make } => {
                let value = values.next().unwrap_or_default();
                if value.trim().is_empty() {
                    let text = format!("{label} is missing");
                    return Err(KeyError::new(KeyErrorKind::Missing, text));
                }
                make(value).map_err(|error| match error.kind() {
                    KeyErrorKind::Invalid => invalid(format!("{label} is not valid: {error}")),
                    _ => error,
                })
            }
            Self::Joined(one, other) => Ok(one.key(values)?.and(&other.key(values)?)),
        }
    }
}

fn invalid(text: impl Into<Arc<str>>) -> KeyError {
    KeyError::new(KeyErrorKind::Invalid, text)
}

impl KeyField {
    /// Returns the label of the value, such as `IP address` or `value of the header x-api-key`.
    #[must_use]
    pub fn label(&self) -> &str {
        &self.label
    }

    /// Returns an example of the value, such as `192.0.2.1`.
    #[must_use]
    pub fn example(&self) -> &str {
        &self.example
    }
}

impl fmt::Debug for KeyForm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("KeyForm").field(&self.fields).finish()
    }
}

#[cfg(test)]
mod tests {
    use std::fmt::Debug;

    use super::*;
    use crate::key::test_request::parts;
    use crate::key::{
        KeyExtractor, PeerAddr, authorization, client_ip, cookie, extension, extension_with,
        from_fn, global, header, peer_ip,
    };

    /// The key of the only form.
    fn key_of(extractor: &impl KeyExtractor, values: &[&str]) -> Result<Key, KeyError> {
        let forms = extractor.forms();
        assert_eq!(forms.len(), 1);
        forms[0].key(values)
    }

    #[derive(Clone)]
    struct User(u64);

    #[test]
    fn each_form_makes_the_key_that_the_extractor_extracts() {
        let mut request = parts(&[
            ("x-api-key", "1f0c"),
            ("cookie", "a=b; session=s%3D1"),
            ("authorization", "Bearer abc"),
        ]);
        let peer = "[2001:db8::7]:5000".parse().unwrap();
        request.extensions.insert(PeerAddr(peer));
        request.extensions.insert(User(42));
        request.extensions.insert("ada@example.com".to_owned());
        let user = extension_with(|user: &User| user.0);
        let cases: Vec<(Box<dyn KeyExtractor>, &[&str])> = vec![
            (Box::new(peer_ip().ipv6_prefix(48)), &["2001:db8::7"]),
            (Box::new(client_ip().hops(0)), &[" 2001:db8::7 "]),
            (Box::new(header("x-api-key")), &[" 1f0c"]),
            (Box::new(header("x-api-key").plain()), &["1f0c"]),
            (Box::new(header("x-api-key").secret("s")), &["1f0c"]),
            (Box::new(cookie("session")), &["s=1"]),
            (Box::new(cookie("session")), &["s%3D1"]),
            (Box::new(authorization()), &["bearer  abc"]),
            (Box::new(user.clone()), &["42"]),
            (Box::new(user.clone().named("user").secret("s")), &["42"]),
            (Box::new(extension::<String>()), &["ada@example.com"]),
            (Box::new(global()), &[]),
            (
                Box::new((header("x-api-key"), (peer_ip(), global()), user)),
                &["1f0c", "2001:db8::7", "42"],
            ),
            (Box::new(Arc::new(peer_ip())), &["2001:db8::7"]),
        ];
        for (extractor, values) in cases {
            let extracted = extractor.extract(&request).unwrap();
            let form = extractor.forms().remove(0);
            assert_eq!(form.key(values).unwrap(), extracted, "{values:?}");
            assert!(form.may_be(&extracted), "{values:?}");
            let stored = Key::from_stored(extracted.as_str()).unwrap();
            assert!(form.may_be(&stored), "{values:?}");
        }
    }

    #[cfg(feature = "axum-08")]
    #[test]
    fn a_route_is_entered_as_in_the_router() {
        let path = crate::key::path();
        assert_eq!(key_of(&path, &["/a/{b}"]).unwrap(), path.of("/a/{b}"));
        assert_eq!(
            key_of(&path, &["a"]).unwrap_err().to_string(),
            "route is not valid: enter it as in the router, like /users/{id}"
        );
    }

    fn assert_error(result: Result<impl Debug, KeyError>, kind: KeyErrorKind, start: &str) {
        let error = result.unwrap_err();
        assert_eq!(error.kind(), kind, "{error}");
        assert!(error.to_string().starts_with(start), "{error}");
    }

    #[test]
    fn a_value_that_no_request_can_have_is_an_error_that_says_what_to_enter() {
        use KeyErrorKind::{Invalid, Misconfigured, Missing};
        for wrong in ["1.2.3", "ada", "192.0.2.1:80", "192.0.2.0/24", "<script>"] {
            let start = "IP address is not valid: enter one like 192.0.2.1";
            assert_error(key_of(&peer_ip(), &[wrong]), Invalid, start);
        }
        assert_error(key_of(&peer_ip(), &[" "]), Missing, "IP address is missing");
        let start = "value of the header x-api-key is not valid";
        let broken = key_of(&header("x-api-key"), &["a\r\nb"]);
        assert_error(broken, Invalid, start);
        let two = key_of(&cookie("session"), &["a; session=b"]);
        assert_error(two, Invalid, "value of the cookie session is not valid");
        for values in [&[][..], &["a", "b"]] {
            let start = "the key needs 1 values, not";
            assert_error(key_of(&header("x-api-key"), values), Invalid, start);
        }
        let start = "invalid header name `a b`";
        assert_error(key_of(&header("a b"), &["x"]), Misconfigured, start);
        let no_proxies = key_of(&client_ip(), &["192.0.2.1"]);
        assert_error(no_proxies, Misconfigured, "`key::client_ip` has no");
        let empty = extension::<String>().named("user").secret("");
        assert_error(key_of(&empty, &["x"]), Misconfigured, "");
    }

    #[test]
    fn a_choice_has_the_forms_of_both_and_a_closure_has_none() {
        let closure = || from_fn(|_| Some(Key::from("ada")));
        assert!(closure().forms().is_empty());
        assert!((peer_ip(), closure()).forms().is_empty());
        let labels = |extractor: &dyn KeyExtractor| {
            let forms = extractor.forms();
            let labels = forms.iter().map(|form| {
                let labels = form.fields().iter().map(KeyField::label);
                labels.collect::<Vec<_>>().join(" and ")
            });
            labels.collect::<Vec<_>>()
        };
        let choice = header("a").or(peer_ip()).or(closure());
        assert_eq!(labels(&choice), ["value of the header a", "IP address"]);
        let joined = (choice, cookie("c").or(global()));
        assert_eq!(
            labels(&joined),
            [
                "value of the header a and value of the cookie c",
                "value of the header a",
                "IP address and value of the cookie c",
                "IP address",
            ]
        );
    }

    #[test]
    fn a_stored_key_of_another_extractor_is_none_of_a_form() {
        let may_be = |extractor: &dyn KeyExtractor, key: &Key| extractor.forms()[0].may_be(key);
        let address = peer_ip().of([192, 0, 2, 1].into());
        let hashed = header("a").of("1");
        assert!(!may_be(&header("a"), &address));
        assert!(!may_be(&header("b"), &hashed));
        assert!(!may_be(&header("a").plain(), &hashed));
        assert!(!may_be(&peer_ip(), &Key::from("ada")));
        assert!(!may_be(&peer_ip(), &Key::global()));
        assert!(!may_be(&global(), &address));
        assert!(!may_be(&peer_ip(), &address.and(&hashed)));
        assert!(!may_be(&(peer_ip(), header("a")), &hashed.and(&address)));
        let fixed = KeyForm::fixed(Key::from("jobs"));
        assert!(fixed.may_be(&Key::from("jobs")) && !fixed.may_be(&Key::from("ada")));
        let text = KeyForm::new("user", "ada", |value| Ok(Key::from(value)));
        assert!(text.may_be(&Key::from("bob")) && !text.may_be(&Key::global()));
        assert!(text.may_be(&Key::from("b".repeat(100))));
    }
}
