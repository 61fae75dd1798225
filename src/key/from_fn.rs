//! Keys from a closure, and the global key.

use std::fmt;

use http::request::Parts;

use super::error::{KeyError, KeyErrorKind};
use super::extractor::{KeyExtractor, inherent_or};
use super::key::Key;

/// Counts by the [`Key`] that a closure makes of the request; `None` is a request without a key.
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

/// Counts by the key that a closure returns; made by [`from_fn`].
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

/// Counts all requests together: for a limit that protects the service behind it from its total load.
#[must_use]
pub fn global() -> Global {
    Global(())
}

/// Counts all requests together; made by [`global`].
#[derive(Clone, Copy, Debug)]
pub struct Global(());

inherent_or!(Global);

impl KeyExtractor for Global {
    fn extract(&self, _: &Parts) -> Result<Key, KeyError> {
        Ok(Key::global())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::test_request::get;

    #[test]
    fn a_closure_makes_the_key_or_none() {
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
