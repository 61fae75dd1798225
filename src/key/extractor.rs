//! The trait of everything that finds a key in a request.

use std::sync::Arc;

use http::request::Parts;

use super::combine::Or;
use super::error::KeyError;
use super::reads::Reads;

use super::key::Key;

/// Finds in a request the key under which it is counted.
///
/// For a rule of one's own, [`from_fn`] is shorter than an implementation.
pub trait KeyExtractor: Send + Sync + 'static {
    /// The key of a request.
    ///
    /// # Errors
    ///
    /// When the request has no key, or one that cannot be used, or when the server is not set up to
    /// know it. The [kind](KeyErrorKind) decides how the request is answered.
    fn extract(&self, parts: &Parts) -> Result<Key, KeyError>;

    /// From what keys are taken, so that a layer can tell in the log when it seems not to be set up
    /// well. One that wraps another passes on what that says.
    fn reads(&self) -> Reads {
        Reads::default()
    }

    /// Tries `second` where a request does not have this key.
    ///
    /// What is there but cannot be used is refused all the same: a client must not be able to choose
    /// how it is counted. After [`global`], which every request has, and [`peer_ip`] and
    /// [`client_ip`](client_ip()), which the server and not the request must know, nothing else is
    /// tried.
    #[must_use]
    fn or<Second: KeyExtractor>(self, second: Second) -> Or<Self, Second>
    where
        Self: Sized,
    {
        Or::new(self, second)
    }
}

impl<E: KeyExtractor + ?Sized> KeyExtractor for Arc<E> {
    fn extract(&self, parts: &Parts) -> Result<Key, KeyError> {
        (**self).extract(parts)
    }

    fn reads(&self) -> Reads {
        (**self).reads()
    }
}

impl<E: KeyExtractor + ?Sized> KeyExtractor for Box<E> {
    fn extract(&self, parts: &Parts) -> Result<Key, KeyError> {
        (**self).extract(parts)
    }

    fn reads(&self) -> Reads {
        (**self).reads()
    }
}

#[cfg(test)]
pub(crate) mod test_request {
    //! The head of a request, for the tests of extractors.

    use http::Request;
    use http::request::Parts;

    pub(crate) fn get() -> Parts {
        parts(&[])
    }

    pub(crate) fn parts(headers: &[(&str, &str)]) -> Parts {
        let request = headers
            .iter()
            .fold(Request::get("/"), |request, (name, value)| {
                request.header(*name, *value)
            });
        request.body(()).unwrap().into_parts().0
    }
}
