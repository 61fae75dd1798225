//! The trait of key extractors, and the choice between two of them.

use std::sync::Arc;

use http::request::Parts;

use super::error::{KeyError, KeyErrorKind};
use super::key::Key;
use super::reads::Reads;

/// Extracts the key of a request, which decides who shares a count.
///
/// The [module docs](crate::key) list the extractors of this crate. For your own, a closure in
/// [`from_fn`](super::from_fn()) is shorter than an implementation of this trait. [`Reads`] has an example
/// of an implementation.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a key extractor",
    label = "expected a key extractor, such as `key::header(\"x-api-key\")`",
    note = "for a closure, write `key::from_fn(|parts| ..)`, which returns text, a number or a `Key`",
    note = "for a header, write `key::header(\"x-api-key\")`; for one key of all requests, `key::global()`; for a \
            request extension, `key::extension::<T>()`",
    note = "the module `tollgate::key` lists all extractors"
)]
pub trait KeyExtractor: Send + Sync + 'static {
    /// Returns the key of a request.
    ///
    /// # Errors
    ///
    /// Returns an error if the request has no key or an ambiguous one, or if the server is misconfigured.
    /// The [kind](KeyErrorKind) of the error decides how the layer answers the request.
    fn extract(&self, parts: &Parts) -> Result<Key, KeyError>;

    /// Returns the parts of a request that this extractor reads, so that the layer can warn about a likely
    /// misconfiguration; see [`Reads`].
    ///
    /// An extractor that wraps another one should forward the call. One that wraps two should
    /// [join](Reads::and) their results. The default is [`Reads::nothing`].
    fn reads(&self) -> Reads {
        Reads::nothing()
    }

    /// Returns what is wrong with the configuration of this extractor, such as an invalid network of
    /// [`client_ip`](super::client_ip()), if it can be seen without a request.
    ///
    /// A layer logs the error when it is added to a service, before the first request. The error has the kind
    /// [`Misconfigured`](KeyErrorKind::Misconfigured), and [`extract`](Self::extract) returns it, too. An extractor that
    /// wraps others should forward the call. The default is `None`.
    fn config_error(&self) -> Option<KeyError> {
        None
    }

    /// Uses the key of `second` if a request does not have this key.
    ///
    /// `second` is tried only after [`KeyErrorKind::Missing`]. A request whose key is ambiguous is still
    /// rejected: otherwise a client could choose how it is counted. [`global`](super::global),
    /// [`peer_ip`](super::peer_ip()) and [`client_ip`](super::client_ip()) never report a missing key, so
    /// `second` has no effect after them.
    ///
    /// # Examples
    ///
    /// ```
    /// use tollgate::key;
    ///
    /// let by_api_key_or_address = key::header("x-api-key").or(key::peer_ip());
    /// ```
    #[must_use]
    fn or<Second: KeyExtractor>(self, second: Second) -> Or<Self, Second>
    where
        Self: Sized,
    {
        Or(self, second)
    }
}

/// A key is the extractor that returns it for every request.
impl KeyExtractor for Key {
    fn extract(&self, _: &Parts) -> Result<Key, KeyError> {
        Ok(self.clone())
    }
}

macro_rules! pointers {
    ($($pointer:ident)+) => {$(
        impl<E: KeyExtractor + ?Sized> KeyExtractor for $pointer<E> {
            fn extract(&self, parts: &Parts) -> Result<Key, KeyError> {
                (**self).extract(parts)
            }

            fn reads(&self) -> Reads {
                (**self).reads()
            }

            fn config_error(&self) -> Option<KeyError> {
                (**self).config_error()
            }
        }
    )+};
}

pointers!(Arc Box);

/// A key extractor that uses a second one if a request does not have the first key; created by
/// [`KeyExtractor::or`].
#[derive(Clone, Copy, Debug)]
pub struct Or<A, B>(pub(super) A, pub(super) B);

impl<A: KeyExtractor, B: KeyExtractor> KeyExtractor for Or<A, B> {
    fn extract(&self, parts: &Parts) -> Result<Key, KeyError> {
        match self.0.extract(parts) {
            Err(first) if first.kind() == KeyErrorKind::Missing => {
                self.1.extract(parts).map_err(|second| match second.kind() {
                    KeyErrorKind::Missing => {
                        KeyError::new(KeyErrorKind::Missing, format!("{first}, or {second}"))
                    }
                    _ => second,
                })
            }
            found => found,
        }
    }

    fn reads(&self) -> Reads {
        self.0.reads().and(self.1.reads())
    }

    fn config_error(&self) -> Option<KeyError> {
        let first = self.0.config_error();
        first.or_else(|| self.1.config_error())
    }
}

/// Adds the trait's `or` as an inherent method, so that callers need not import the trait.
macro_rules! inherent_or {
    ($extractor:ident $(<$($parameter:ident),+>)?) => {
        impl$(<$($parameter),+>)? $extractor$(<$($parameter),+>)? {
            /// Uses the key of `second` if a request does not have this key; see
            /// [`KeyExtractor::or`](crate::KeyExtractor::or).
            #[must_use]
            pub fn or<Second: crate::key::KeyExtractor>(
                self,
                second: Second,
            ) -> crate::key::Or<Self, Second> {
                crate::key::Or(self, second)
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
    fn the_second_key_is_used_only_if_the_first_is_missing() {
        let key = header("a").plain().or(header("b").plain()).or(global());
        for (headers, expected) in [
            (&[("a", "1"), ("b", "2")][..], "header:a=1"),
            (&[("b", "2")], "header:b=2"),
            (&[], "*"),
        ] {
            assert_eq!(key.extract(&parts(headers)).unwrap().as_str(), expected);
        }
        let twice = parts(&[("a", "1"), ("a", "2"), ("b", "2")]);
        let error = key.extract(&twice).unwrap_err();
        assert_eq!(error.kind(), KeyErrorKind::Ambiguous);
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
    fn equal_values_of_the_two_extractors_have_different_keys() {
        let key = header("a").plain().or(header("b").plain());
        let first = key.extract(&parts(&[("a", "1")])).unwrap();
        let second = key.extract(&parts(&[("b", "1")])).unwrap();
        assert_ne!(first, second);
    }

    #[test]
    fn a_second_key_does_not_hide_a_misconfiguration() {
        let error = peer_ip().or(global()).extract(&get()).unwrap_err();
        assert_eq!(error.kind(), KeyErrorKind::Misconfigured);
    }
}
