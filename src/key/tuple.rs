//! Tuples of two to eight extractors, which are extractors of a joined key.

use http::request::Parts;

use super::error::KeyError;
use super::extractor::KeyExtractor;
use super::key::Key;
use super::reads::Reads;

macro_rules! tuples {
    ($(($head:ident $($tail:ident)+))*) => {$(
        #[expect(non_snake_case, reason = "a part is named as its type")]
        impl<$head: KeyExtractor, $($tail: KeyExtractor),+> KeyExtractor for ($head, $($tail),+) {
            fn extract(&self, parts: &Parts) -> Result<Key, KeyError> {
                let ($head, $($tail),+) = self;
                let key = $head.extract(parts)?;
                $(let key = key.and($tail.extract(parts)?);)+
                Ok(key)
            }

            fn reads(&self) -> Reads {
                let ($head, $($tail),+) = self;
                let reads = $head.reads();
                $(let reads = reads.and($tail.reads());)+
                reads
            }

            fn config_error(&self) -> Option<KeyError> {
                let ($head, $($tail),+) = self;
                let error = $head.config_error();
                $(let error = error.or_else(|| $tail.config_error());)+
                error
            }
        }
    )*};
}

tuples!(
    (A B)
    (A B C)
    (A B C D)
    (A B C D E)
    (A B C D E F)
    (A B C D E F G)
    (A B C D E F G H)
);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::error::KeyErrorKind;
    use crate::key::test_request::{get, parts};
    use crate::key::{from_fn, global, header};

    #[test]
    fn every_combination_of_parts_has_its_own_key() {
        let key = (header("a").plain(), header("b").plain());
        let one = key.extract(&parts(&[("a", "1"), ("b", "2")])).unwrap();
        assert_eq!(one.as_str(), "header:a=1,header:b=2");
        let left = key.extract(&parts(&[("a", "1,b=2"), ("b", "3")]));
        let right = key.extract(&parts(&[("a", "1"), ("b", "2,b=3")]));
        assert_ne!(left.unwrap(), right.unwrap());
        let error = key.extract(&parts(&[("a", "1")])).unwrap_err();
        assert_eq!(error.kind(), KeyErrorKind::Missing);
    }

    #[test]
    fn three_to_eight_parts_are_joined() {
        let parts = get();
        let key = (part("a"), part("b"), part("c"), part("d"))
            .extract(&parts)
            .unwrap();
        assert_eq!(key.as_str(), "a,b,c,d");
        let key = (part("a"), part("b"), part("c")).extract(&parts).unwrap();
        assert_eq!(key.as_str(), "a,b,c");
        let eight = (
            (part("a"), part("b"), part("c"), part("d"), part("e")),
            (
                part("a"),
                part("b"),
                part("c"),
                part("d"),
                part("e"),
                part("f"),
            ),
            (
                part("a"),
                part("b"),
                part("c"),
                part("d"),
                part("e"),
                part("f"),
                part("g"),
            ),
            (
                part("a"),
                part("b"),
                part("c"),
                part("d"),
                part("e"),
                part("f"),
                part("g"),
                part("h"),
            ),
        );
        let texts = [
            eight.0.extract(&parts),
            eight.1.extract(&parts),
            eight.2.extract(&parts),
            eight.3.extract(&parts),
        ]
        .map(|key| key.unwrap().as_str().to_owned());
        assert_eq!(
            texts,
            [
                "a,b,c,d,e",
                "a,b,c,d,e,f",
                "a,b,c,d,e,f,g",
                "a,b,c,d,e,f,g,h"
            ]
        );
    }

    fn part(value: &'static str) -> impl KeyExtractor {
        from_fn(move |_| Some(Key::from(value)))
    }

    #[test]
    fn or_applies_to_a_tuple() {
        let key = (header("a"), header("b")).or(global());
        assert_eq!(key.extract(&parts(&[("a", "1")])).unwrap(), Key::global());
    }

    #[test]
    fn the_key_of_a_tuple_is_the_join_of_its_keys() {
        let a = header("a");
        let b = header("b");
        let found = (a.clone(), b.clone()).extract(&parts(&[("a", "1"), ("b", "2")]));
        assert_eq!(found.unwrap(), a.of("1").and(b.of("2")));
    }
}
