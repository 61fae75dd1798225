//! The names of stored keys: `{prefix}:v1:{tag}:…`.

use std::fmt;
use std::io;
use std::io::Write;
use std::num::NonZeroU16;
use std::sync::Arc;

use crc16::{State, XMODEM};
use redis::{Cmd, RedisWrite};

use crate::key::Key;
use crate::quota::{Algorithm, Quota};
use crate::store::requests::Subject;

/// How stored keys are named.
#[derive(Clone, Debug)]
pub(crate) struct KeyNames {
    prefix: Arc<str>,
    /// How many hash tags share all keys; else each has one of its own.
    hash_tags: Option<NonZeroU16>,
}

/// The version of what is stored: a later form of it starts its own counts.
const FORMAT: &str = "v1";

/// The hash tag of the list of what is blocked: that of no key, which has a comma or is a number.
const BLOCKS: &str = "blocks";

/// The slots of a cluster, as its specification has them.
pub(crate) const SLOTS: u16 = 16_384;

impl KeyNames {
    /// With a prefix of any text; encoded as keys are, so that it holds no braces, which would move
    /// the hash tag.
    pub(crate) fn with_prefix(self, prefix: &str) -> Self {
        let prefix = Key::from(prefix).as_str().into();
        Self { prefix, ..self }
    }

    pub(crate) fn prefix(&self) -> &str {
        &self.prefix
    }

    pub(crate) fn with_hash_tags(self, hash_tags: NonZeroU16) -> Self {
        let hash_tags = Some(hash_tags);
        Self { hash_tags, ..self }
    }

    /// The names of a subject's stored counts, in the order of the counts.
    fn of<'a>(&'a self, subject: Subject<'a>) -> impl Iterator<Item = KeyName<'a>> {
        let counters = subject.quotas.strictest();
        counters.map(move |quota| KeyName {
            names: self,
            subject,
            quota,
        })
    }

    /// Writes the names of a subject's stored counts as so many arguments of a command.
    pub(crate) fn write(&self, subject: Subject<'_>, command: &mut Cmd) {
        for name in self.of(subject) {
            // Writing to a command does not fail.
            let _ = name.write_to(command.writer_for_next_arg());
        }
    }

    /// The name of the list of what is blocked: one for all that have this prefix.
    pub(crate) fn blocks(&self) -> String {
        format!("{}:{FORMAT}:{{{BLOCKS}}}", self.prefix)
    }

    /// The slot of a cluster in which that list is.
    pub(crate) fn slot_of_blocks() -> u16 {
        State::<XMODEM>::calculate(BLOCKS.as_bytes()) % SLOTS
    }

    /// The slot of a cluster in which a subject's stored counts are: CRC16 of the hash tag.
    pub(crate) fn slot(&self, subject: Subject<'_>) -> u16 {
        let own = crc_of(subject);
        let crc = self.hash_tags.map_or(own, |tags| {
            State::<XMODEM>::calculate((own % tags).to_string().as_bytes())
        });
        crc % SLOTS
    }
}

impl Default for KeyNames {
    fn default() -> Self {
        Self {
            prefix: "tollgate".into(),
            hash_tags: None,
        }
    }
}

/// The CRC16 of what tells a subject from others.
fn crc_of(subject: Subject<'_>) -> u16 {
    let mut crc = State::<XMODEM>::new();
    crc.update(subject.limiter.as_str().as_bytes());
    crc.update(b",");
    crc.update(subject.key.as_str().as_bytes());
    crc.get()
}

/// The name of a stored count. What stands in braces is the hash tag, the same for all of a subject,
/// so that they are in one slot.
#[derive(Clone, Copy)]
struct KeyName<'a> {
    names: &'a KeyNames,
    subject: Subject<'a>,
    quota: &'a Quota,
}

impl KeyName<'_> {
    /// Piece by piece: it is written for each check, and formatting takes five times as long.
    fn write_to(&self, mut out: impl Write) -> io::Result<()> {
        let KeyNames { prefix, hash_tags } = self.names;
        let (limiter, key) = (self.subject.limiter.as_str(), self.subject.key.as_str());
        let mut pieces = |pieces: &[&str]| {
            let mut pieces = pieces.iter();
            pieces.try_for_each(|piece| out.write_all(piece.as_bytes()))
        };
        pieces(&[prefix, ":", FORMAT, ":{"])?;
        match hash_tags {
            None => pieces(&[limiter, ",", key, "}:"])?,
            Some(tags) => {
                let tag = (crc_of(self.subject) % *tags).to_string();
                pieces(&[&tag, "}:", limiter, ",", key, ":"])?;
            }
        }
        let stored_as = StoredAs(self.quota.counted_by());
        write!(out, "{stored_as}:{}", self.quota.window_micros())
    }
}

/// How an algorithm is called in a stored key.
struct StoredAs(Algorithm);

impl fmt::Display for StoredAs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0.facts().key_tag)?;
        match self.0.buckets() {
            None => Ok(()),
            Some(buckets) => write!(f, "{buckets}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;
    use crate::quota::Quotas;

    fn text(name: KeyName<'_>) -> String {
        let mut text = Vec::new();
        name.write_to(&mut text).unwrap();
        String::from_utf8(text).unwrap()
    }

    fn names(prefix: &str, limiter: &str, key: &str, quotas: impl Into<Quotas>) -> Vec<String> {
        let (limiter, key) = (Key::from(limiter), Key::from(key));
        let subject = Subject {
            limiter: &limiter,
            key: &key,
            quotas: &quotas.into(),
        };
        let names = KeyNames::default().with_prefix(prefix);
        names.of(subject).map(text).collect()
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

    #[test]
    fn hash_tags_are_shared_by_keys_whose_names_stay_apart() {
        let tags = NonZeroU16::new(4).unwrap();
        let names = KeyNames::default().with_hash_tags(tags);
        let (limiter, quotas) = (Key::from("l"), Quotas::from(Quota::per_second(1)));
        let keys: Vec<Key> = (0..100)
            .map(|key| Key::from(format!("key:{key}")))
            .collect();
        let subjects = keys.iter().map(|key| Subject {
            limiter: &limiter,
            key,
            quotas: &quotas,
        });
        let slots: HashSet<_> = subjects
            .clone()
            .map(|subject| names.slot(subject))
            .collect();
        assert_eq!(slots.len(), 4);
        let named = subjects.flat_map(|subject| names.of(subject).map(text));
        let named: HashSet<_> = named.collect();
        assert_eq!(named.len(), 100);
        let of_key = "}:l,key:17:log:1000000";
        assert!(
            named
                .iter()
                .any(|name| name.starts_with("tollgate:v1:{") && name.ends_with(of_key))
        );
    }
}
