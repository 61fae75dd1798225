//! Keys from a closure, and the global key.

use std::fmt;

use http::request::Parts;

use super::error::{KeyError, KeyErrorKind};
use super::extractor::{KeyExtractor, inherent_or};
use super::form::KeyForm;
use super::key::Key;

/// Returns an extractor that calls a closure for the [`Key`] of each request.
///
/// `None` means that the request has no key: it is rejected with 400 by default, or the next extractor of
/// `.or(..)` is tried. The key is stored as readable text: for secrets, use
/// [`header`](super::header()), [`cookie`](super::cookie()) or
/// [`authorization`](super::authorization()), which store a hash.
///
/// # Examples
///
/// ```
/// use tollgate::{Key, key};
///
/// // Each HTTP method is counted separately.
/// let by_method = key::from_fn(|parts| Some(Key::from(parts.method.as_str())));
/// ```
pub fn from_fn<F>(f: F) -> FromFn<F>
where
    F: Fn(&Parts) -> Option<Key> + Send + Sync + 'static,
{
    FromFn { f }
}

/// A key extractor that calls a closure; created by [`from_fn`].
#[derive(Clone, Copy)]
pub struct FromFn<F> {
    f: F,
}

inherent_or!(FromFn<F>);

impl<F> KeyExtractor for FromFn<F>
where
    F: Fn(&Parts) -> Option<Key> + Send + Sync + 'static,
{
    fn extract(&self, parts: &Parts) -> Result<Key, KeyError> {
        (self.f)(parts)
            .ok_or_else(|| KeyError::new(KeyErrorKind::Missing, "the request has no key"))
    }
}

impl<F> fmt::Debug for FromFn<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("FromFn")
    }
}

/// Returns an extractor that counts all requests together, to limit the total load of a service.
#[must_use]
pub fn global() -> Global {
    Global(())
}

/// A key extractor that counts all requests together; created by [`global`].
#[derive(Clone, Copy, Debug)]
pub struct Global(());

inherent_or!(Global);

impl KeyExtractor for Global {
    fn extract(&self, _: &Parts) -> Result<Key, KeyError> {
        Ok(Key::global())
    }

    fn forms(&self) -> Vec<KeyForm> {
        vec![KeyForm::fixed(Key::global())]
    }
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
