//! The trait of key extractors, and the choice between two of them.

use std::sync::Arc;

use http::request::Parts;

use super::error::{KeyError, KeyErrorKind};
use super::key::Key;
use super::reads::Reads;

/// Extracts the key under which a request is counted.
///
/// A closure in [`from_fn`](super::from_fn()) is shorter than an implementation.
pub trait KeyExtractor: Send + Sync + 'static {
    /// Returns the key of a request.
    ///
    /// # Errors
    ///
    /// When the request has no key or an ambiguous one, or when the server is not set up to know it. The
    /// [kind](KeyErrorKind) decides how the request is answered.
    fn extract(&self, parts: &Parts) -> Result<Key, KeyError>;

    /// Returns what keys are read from, so that a layer can log signs of a misconfiguration: see
    /// [`Reads`], which has an example.
    ///
    /// An extractor that wraps another one returns what the inner one returns, and one that asks two
    /// returns [both](Reads::and). By default, it reads [nothing](Reads::nothing) that a layer looks at.
    fn reads(&self) -> Reads {
        Reads::nothing()
    }

    /// Tries `second` where a request does not have this key.
    ///
    /// An ambiguous key is rejected all the same: otherwise a client could choose how it is counted.
    /// `second` is never tried after [`global`](super::global), which every request has, nor after
    /// [`peer_ip`](super::peer_ip()) and [`client_ip`](super::client_ip()), which fail only on a server
    /// that is not set up.
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

/// Counts by the first key, or by the second where a request does not have the first; made by
/// [`KeyExtractor::or`].
#[derive(Clone, Copy, Debug)]
pub struct Or<A, B> {
    first: A,
    second: B,
}

impl<A, B> Or<A, B> {
    pub(super) fn new(first: A, second: B) -> Self {
        Self { first, second }
    }
}

impl<A: KeyExtractor, B: KeyExtractor> KeyExtractor for Or<A, B> {
    fn extract(&self, parts: &Parts) -> Result<Key, KeyError> {
        match self.first.extract(parts) {
            Err(first) if first.kind() == KeyErrorKind::Missing => self
                .second
                .extract(parts)
                .map_err(|second| match second.kind() {
                    KeyErrorKind::Missing => {
                        KeyError::new(KeyErrorKind::Missing, format!("{first}, or {second}"))
                    }
                    KeyErrorKind::Ambiguous | KeyErrorKind::Misconfigured => second,
                }),
            found => found,
        }
    }

    fn reads(&self) -> Reads {
        self.first.reads().and(self.second.reads())
    }
}

/// Gives an extractor the trait's `or` as an inherent method, which needs no import of the trait.
macro_rules! inherent_or {
    ($extractor:ident $(<$($parameter:ident),+>)?) => {
        impl$(<$($parameter),+>)? $extractor$(<$($parameter),+>)? {
            /// Tries `second` where a request does not have this key; see
            /// [`KeyExtractor::or`](crate::KeyExtractor::or).
            #[must_use]
            pub fn or<Second: crate::key::KeyExtractor>(
                self,
                second: Second,
            ) -> crate::key::Or<Self, Second> {
                crate::key::Or::new(self, second)
            }
        }
    };
}

pub(super) use inherent_or;

inherent_or!(Or<A, B>);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::test_request::{get, parts};
    use crate::key::{global, header, peer_ip};

    #[test]
    fn the_second_key_is_used_only_where_the_first_is_missing() {
        let key = header("a").plain().or(header("b").plain()).or(global());
        let key_of = |headers: &[_]| {
            key.extract(&parts(headers))
                .map(|key| key.as_str().to_owned())
        };
        assert_eq!(key_of(&[("a", "1"), ("b", "2")]).unwrap(), "header:a=1");
        assert_eq!(key_of(&[("b", "2")]).unwrap(), "header:b=2");
        assert_eq!(key_of(&[]).unwrap(), "*");
        let twice = key_of(&[("a", "1"), ("a", "2"), ("b", "2")]).unwrap_err();
        assert_eq!(twice.kind(), KeyErrorKind::Ambiguous);
    }

    #[test]
    fn the_error_names_all_missing_keys() {
        let key = header("x-api-key").or(header("x-tenant-id"));
        let error = key.extract(&get()).unwrap_err();
        assert_eq!(error.kind(), KeyErrorKind::Missing);
        let text = error.to_string();
        assert!(
            text.contains("x-api-key") && text.contains("x-tenant-id"),
            "{text}"
        );
    }

    #[test]
    fn a_value_of_the_first_key_is_never_taken_for_one_of_the_second() {
        let key = header("a").plain().or(header("b").plain());
        let first = key.extract(&parts(&[("a", "1")])).unwrap();
        let second = key.extract(&parts(&[("b", "1")])).unwrap();
        assert_ne!(first, second);
    }

    #[test]
    fn a_misconfigured_server_is_an_error_in_spite_of_a_second_key() {
        let error = peer_ip().or(global()).extract(&get()).unwrap_err();
        assert_eq!(error.kind(), KeyErrorKind::Misconfigured);
    }
}
