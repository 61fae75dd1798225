//! Keys from a closure, and the global key.

use std::fmt;
use std::marker::PhantomData;

use http::request::Parts;

use super::error::{KeyError, KeyErrorKind};
use super::extractor::{KeyExtractor, inherent_or};
use super::key::{IntoKey, Key};

/// Returns an extractor that calls a closure for the [key](crate::IntoKey) of each request.
///
/// The closure returns a key, or an `Option` of one. `None` means that the request has no key: it is rejected with 400
/// by default, or the next extractor of `.or(..)` is tried. The key is stored as readable text: for secrets, use
/// [`header`](super::header()), [`cookie`](super::cookie()) or [`authorization`](super::authorization()), which store a
/// hash.
///
/// A closure cannot return a `&str` that it borrows from the request. Own the text: `.to_owned()`.
///
/// # Examples
///
/// ```
/// use tollgate::{Key, key};
///
/// // Each HTTP method is counted separately.
/// let by_method = key::from_fn(|parts| Key::from(parts.method.as_str()));
///
/// // Requests without a query have no key.
/// let by_query = key::from_fn(|parts| parts.uri.query().map(str::to_owned));
/// ```
#[doc(alias("query", "path_param", "from_async_fn"))]
pub fn from_fn<F, K>(f: F) -> FromFn<F, K>
where
    F: Fn(&Parts) -> K + Send + Sync + 'static,
    K: OptionalKey + 'static,
{
    FromFn {
        f,
        key: PhantomData,
    }
}

/// A return value of a closure of [`from_fn`]: a [key](crate::IntoKey), or an `Option` of one.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a key",
    label = "expected a key or an `Option` of one: text, bytes, a number, an address, or a pair of these",
    note = "for a UUID, or another type that implements `Display`, write `Key::from_display(value)`"
)]
pub trait OptionalKey {
    /// Returns the key, if there is one.
    fn into_optional_key(self) -> Option<Key>;
}

#[diagnostic::do_not_recommend]
impl<K: IntoKey> OptionalKey for K {
    fn into_optional_key(self) -> Option<Key> {
        Some(self.into_key())
    }
}

impl<K: IntoKey> OptionalKey for Option<K> {
    fn into_optional_key(self) -> Option<Key> {
        self.map(K::into_key)
    }
}

/// A key extractor that calls a closure; created by [`from_fn`].
#[derive(Clone, Copy)]
pub struct FromFn<F, K> {
    f: F,
    key: PhantomData<fn() -> K>,
}

inherent_or!(FromFn<F, K>);

impl<F, K> KeyExtractor for FromFn<F, K>
where
    F: Fn(&Parts) -> K + Send + Sync + 'static,
    K: OptionalKey + 'static,
{
    fn extract(&self, parts: &Parts) -> Result<Key, KeyError> {
        (self.f)(parts)
            .into_optional_key()
            .ok_or_else(|| KeyError::new(KeyErrorKind::Missing, "the request has no key"))
    }
}

impl<F, K> fmt::Debug for FromFn<F, K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("FromFn")
    }
}

/// Returns an extractor that counts all requests together, to limit the total load of a service.
///
/// It is [`Key::global`], as a key is the extractor that returns it for every request.
#[must_use]
pub fn global() -> Key {
    Key::global()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::test_request::get;

    #[test]
    fn the_closure_returns_the_key_or_none() {
        let key = from_fn(|parts| parts.uri.query().map(Key::from));
        assert_eq!(
            key.extract(&get()).unwrap_err().kind(),
            KeyErrorKind::Missing
        );
        let mut parts = get();
        parts.uri = "/?ada".parse().unwrap();
        assert_eq!(key.extract(&parts).unwrap(), Key::from("ada"));
    }
}
