//! The names of stored keys: `{prefix}:v1:{tag}:…`.

use std::fmt;
use std::sync::Arc;

use redis::{Cmd, RedisWrite};

use crate::Key;
use crate::quota::{Algorithm, Quota};
use crate::store::check::Subject;

/// What stands before every stored key.
#[derive(Clone, Debug)]
pub(super) struct Prefix(Arc<str>);

/// The version of what is stored: a later form of it starts its own counts.
const FORMAT: &str = "v1";

impl Prefix {
    /// A prefix of any text; encoded as keys are, so that it holds no braces, which would move the
    /// hash tag.
    pub(super) fn new(prefix: &str) -> Self {
        Self(Key::from(prefix).as_str().into())
    }

    pub(super) fn as_str(&self) -> &str {
        &self.0
    }

    /// The names of a subject's stored counts, in the order of the counts.
    fn names_of<'a>(&'a self, subject: Subject<'a>) -> impl Iterator<Item = Name<'a>> {
        let counters = subject.quotas.counters();
        counters.map(move |quota| Name {
            prefix: &self.0,
            subject,
            quota,
        })
    }

    /// Writes the names of a subject's stored counts as so many arguments of a command.
    pub(super) fn write_names(&self, subject: Subject<'_>, command: &mut Cmd) {
        for name in self.names_of(subject) {
            command.write_arg_fmt(name);
        }
    }
}

/// The name of a stored count. Limiter and key stand in the hash tag, so that all of a subject are in
/// one slot.
struct Name<'a> {
    prefix: &'a str,
    subject: Subject<'a>,
    quota: &'a Quota,
}

impl fmt::Display for Name<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}:{FORMAT}:{{{},{}}}:{}:{}",
            self.prefix,
            self.subject.limiter.as_str(),
            self.subject.key.as_str(),
            StoredAs(self.quota.counted_by()),
            self.quota.window_micros(),
        )
    }
}

impl Default for Prefix {
    fn default() -> Self {
        Self::new("tollgate")
    }
}

/// How an algorithm is called in a stored key.
struct StoredAs(Algorithm);

impl fmt::Display for StoredAs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Algorithm::SlidingLog => f.write_str("log"),
            Algorithm::SortedSetLog => f.write_str("set"),
            Algorithm::SlidingCounter => f.write_str("counter"),
            Algorithm::SlidingBuckets(buckets) => write!(f, "buckets{buckets}"),
            Algorithm::FixedWindow => f.write_str("fixed"),
            Algorithm::Gcra => f.write_str("gcra"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Quotas;

    fn names(prefix: &str, limiter: &str, key: &str, quotas: impl Into<Quotas>) -> Vec<String> {
        let (limiter, key) = (Key::from(limiter), Key::from(key));
        let subject = Subject {
            limiter: &limiter,
            key: &key,
            quotas: &quotas.into(),
        };
        let prefix = Prefix::new(prefix);
        prefix
            .names_of(subject)
            .map(|name| name.to_string())
            .collect()
    }

    #[test]
    fn a_name_holds_all_that_makes_a_count_its_own() {
        assert_eq!(
            names(
                "tollgate",
                "search",
                "ada",
                [Quota::per_second(5), Quota::per_day(9)]
            ),
            [
                "tollgate:v1:{search,ada}:log:1000000",
                "tollgate:v1:{search,ada}:log:86400000000",
            ]
        );
    }

    #[test]
    fn quotas_of_one_window_have_one_name() {
        let quotas = [Quota::per_second(5), Quota::per_second(9)];
        assert_eq!(names("p", "l", "k", quotas).len(), 1);
    }

    #[test]
    fn no_text_moves_or_breaks_the_hash_tag() {
        for hostile in [
            "", "}", "{", "{}", "}{", "a{b}c", "\n", "\0", ",", "é", "{a,b}",
        ] {
            for name in [
                names(hostile, "limiter", "key", Quota::per_second(1)),
                names("prefix", hostile, "key", Quota::per_second(1)),
                names("prefix", "limiter", hostile, Quota::per_second(1)),
            ]
            .concat()
            {
                assert_eq!(name.matches('{').count(), 1, "{name}");
                assert_eq!(name.matches('}').count(), 1, "{name}");
                let (_, tag) = name.split_once('{').unwrap();
                let (tag, _) = tag.split_once('}').unwrap();
                assert!(tag.len() > 1, "{name}");
                assert!(name.bytes().all(|byte| byte.is_ascii_graphic()), "{name}");
            }
        }
    }

    #[test]
    fn limiter_and_key_are_not_confused() {
        let quota = Quota::per_second(1);
        assert_ne!(
            names("p", "a,b", "c", quota.clone()),
            names("p", "a", "b,c", quota)
        );
    }
}
