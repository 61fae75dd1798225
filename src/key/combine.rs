//! Keys of several parts, and keys with a second choice.

use http::request::Parts;

use super::authorization::Authorization;
use super::client_ip::ClientIp;
use super::cookie::Cookie;
use super::error::{KeyError, KeyErrorKind};
use super::extension::Extension;
use super::extractor::KeyExtractor;
use super::from_fn::{FromFn, Global};
use super::header::Header;
use super::key::Key;
use super::peer_ip::PeerIp;
use super::reads::Reads;

/// The key of the first choice, else of the second; made by `or`.
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

/// Gives each extractor the trait's `or` as a method of its own, which needs no import.
macro_rules! alternatives {
    ($($extractor:ident $(<$($parameter:ident),+>)?)*) => {$(
        impl$(<$($parameter),+>)? $extractor$(<$($parameter),+>)? {
            /// Tries `second` where a request does not have this key; see [`KeyExtractor::or`].
            #[must_use]
            pub fn or<Second: KeyExtractor>(self, second: Second) -> Or<Self, Second> {
                Or::new(self, second)
            }
        }
    )*};
}

alternatives!(Authorization ClientIp Cookie Extension<T> FromFn<F> Global Header Or<A, B> PeerIp);

#[cfg(feature = "axum-08")]
use super::path::Path;
#[cfg(feature = "axum-08")]
alternatives!(Path);

macro_rules! tuples {
    ($(($head:ident $($tail:ident)+))*) => {$(
        impl<$head: KeyExtractor, $($tail: KeyExtractor),+> KeyExtractor for ($head, $($tail),+) {
            #[expect(non_snake_case, reason = "a part is named as its type")]
            fn extract(&self, parts: &Parts) -> Result<Key, KeyError> {
                let ($head, $($tail),+) = self;
                let key = $head.extract(parts)?;
                $(let key = key.and(&$tail.extract(parts)?);)+
                Ok(key)
            }

            #[expect(non_snake_case, reason = "a part is named as its type")]
            fn reads(&self) -> Reads {
                let ($head, $($tail),+) = self;
                let reads = $head.reads();
                $(let reads = reads.and($tail.reads());)+
                reads
            }
        }
    )*};
}

tuples!((A B) (A B C) (A B C D));

#[cfg(test)]
mod tests {
    use crate::key::error::KeyErrorKind;
    use crate::key::extractor::KeyExtractor;
    use crate::key::extractor::test_request::{get, parts};
    use crate::key::from_fn::{from_fn, global};
    use crate::key::key::Key;
    use crate::key::{header, peer_ip};

    #[test]
    fn a_key_of_parts_tells_every_combination_apart() {
        let key = (header("a").plain(), header("b").plain());
        let of = |a, b| key.extract(&parts(&[("a", a), ("b", b)])).unwrap();
        assert_eq!(of("1", "2").as_str(), "header:a=1,header:b=2");
        assert_ne!(of("1,b=2", "3"), of("1", "2,b=3"));
        let error = key.extract(&parts(&[("a", "1")])).unwrap_err();
        assert_eq!(error.kind(), KeyErrorKind::Missing);
    }

    #[test]
    fn parts_of_up_to_four_are_joined() {
        let of = |value: &'static str| from_fn(move |_| Some(Key::from(value)));
        let parts = get();
        let key = (of("a"), of("b"), of("c"), of("d"))
            .extract(&parts)
            .unwrap();
        assert_eq!(key.as_str(), "a,b,c,d");
        let key = (of("a"), of("b"), of("c")).extract(&parts).unwrap();
        assert_eq!(key.as_str(), "a,b,c");
    }

    #[test]
    fn the_second_choice_is_taken_only_where_the_first_is_missing() {
        let key = header("a").plain().or(header("b").plain()).or(global());
        let of = |headers: &[_]| {
            key.extract(&parts(headers))
                .map(|key| key.as_str().to_owned())
        };
        assert_eq!(of(&[("a", "1"), ("b", "2")]).unwrap(), "header:a=1");
        assert_eq!(of(&[("b", "2")]).unwrap(), "header:b=2");
        assert_eq!(of(&[]).unwrap(), "*");
        let twice = of(&[("a", "1"), ("a", "2"), ("b", "2")]).unwrap_err();
        assert_eq!(twice.kind(), KeyErrorKind::Ambiguous);
    }

    #[test]
    fn what_is_missing_is_named_with_all_choices() {
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
    fn a_value_of_one_choice_is_never_taken_for_one_of_another() {
        let key = header("a").plain().or(header("b").plain());
        let first = key.extract(&parts(&[("a", "1")])).unwrap();
        let second = key.extract(&parts(&[("b", "1")])).unwrap();
        assert_ne!(first, second);
    }

    #[test]
    fn a_fault_of_the_server_is_not_passed_over() {
        let error = peer_ip().or(global()).extract(&get()).unwrap_err();
        assert_eq!(error.kind(), KeyErrorKind::Misconfigured);
    }

    #[test]
    fn keys_of_parts_have_a_second_choice_too() {
        let key = (header("a"), header("b")).or(global());
        assert_eq!(key.extract(&parts(&[("a", "1")])).unwrap(), Key::global());
    }

    #[test]
    fn a_key_of_parts_is_that_of_its_parts_joined() {
        let (a, b) = (header("a"), header("b"));
        let found = (a.clone(), b.clone()).extract(&parts(&[("a", "1"), ("b", "2")]));
        assert_eq!(found.unwrap(), a.of("1").and(&b.of("2")));
    }
}
