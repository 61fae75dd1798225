//! A key by a closure, and the key of everybody.

use std::fmt;

use http::request::Parts;

use super::error::{KeyError, KeyErrorKind};
use super::extractor::KeyExtractor;
use super::key::Key;

/// Counts by the [`Key`] that a closure makes of the request; `None` is a request without a key.
///
/// # Examples
///
/// ```
/// use tollgate::{Key, key};
///
/// // Each HTTP method has a count of its own.
/// let by_method = key::from_fn(|parts| Some(Key::from(parts.method.as_str())));
/// ```
pub fn from_fn<F>(f: F) -> FromFn<F>
where
    F: Fn(&Parts) -> Option<Key> + Send + Sync + 'static,
{
    FromFn { f }
}

/// Finds a key by a closure; made by [`from_fn`].
#[derive(Clone, Copy)]
pub struct FromFn<F> {
    f: F,
}

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

/// Counts everybody together: for a limit that protects what is behind it, whoever asks.
#[must_use]
pub fn global() -> Global {
    Global(())
}

/// Counts everybody together; made by [`global`].
#[derive(Clone, Copy, Debug)]
pub struct Global(());

impl KeyExtractor for Global {
    fn extract(&self, _: &Parts) -> Result<Key, KeyError> {
        Ok(Key::global())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::extractor::test_request::get;

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
