//! The names of stored keys: `{prefix}:v3:{tag}` for the row of a key, `{prefix}:v3:{tag}:…` for its logs and sets.

use std::num::NonZeroU16;
use std::sync::Arc;

use crc16::{State, XMODEM};

use super::counts::{Value, ValueName};
use crate::key::Key;
use crate::store::requests::Subject;

/// Names the keys of a store: its prefix, and how hash tags are chosen.
#[derive(Clone, Debug)]
pub(crate) struct KeyNames {
    prefix: Arc<str>,
    hash_tags: HashTags,
}

/// The choice of the hash tags of stored keys, for [`RedisStore::hash_tags`](crate::RedisStore::hash_tags).
///
/// On Redis Cluster, keys with the same hash tag are in the same slot. A call can only have keys of one slot, so the
/// checks of keys with one tag can share calls. With fewer tags, more checks share a call. With more tags, the masters
/// get more even shares: choose about 16 times as many tags as there are masters.
///
/// With [`Shared`](Self::Shared) or [`ByPrefix`](Self::ByPrefix), keys are stored as
/// `prefix:v3:{7}:limiter,key`, with the number of the tag in braces. All processes must make the same choice. Another
/// one starts at 0 units.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum HashTags {
    /// Each key of each limiter has its own hash tag.
    #[default]
    PerKey,
    /// All keys share this number of hash tags. The limiter and the key choose one of them.
    Shared(NonZeroU16),
    /// All keys share this number of hash tags. The first part of a joined key, its prefix, chooses one of them, for any
    /// limiter.
    ///
    /// For [levels](crate::guide::levels#in-a-cluster) of tenants and their users. If the key of the users is a tuple
    /// that begins with the key of the tenant, they are all in one slot. One call then decides both levels. Different
    /// tenants spread over the masters, but all checks of one tenant go to one master.
    ///
    /// The first part of a tuple is its first extractor. The first part of a key from [`Key::and`](crate::Key::and) is the
    /// key on which `and` was called. A key that was not joined is its own first part, so a
    /// [global](crate::key::global) level has a slot of its own.
    #[doc(alias("ByFirstPart"))]
    ByPrefix(NonZeroU16),
}

impl HashTags {
    fn number(self, subject: Subject<'_>) -> Option<u16> {
        match self {
            Self::PerKey => None,
            Self::Shared(tags) => Some(crc(subject) % tags),
            Self::ByPrefix(tags) => Some(subject.key.first_part_hash() % tags),
        }
    }
}

/// The version of the stored format. Another version starts new counts.
const FORMAT_VERSION: &str = "v3";

/// The hash tag of the block list. No key has it: theirs contain a comma or are numbers.
const BLOCK_LIST_TAG: &str = "blocks";

/// The slots of a cluster, fixed by its specification.
pub(in crate::store::redis) const SLOTS: u16 = 16_384;

impl KeyNames {
    /// Sets the prefix. It is encoded as keys are, since braces in it would move the hash tag.
    pub(crate) fn with_prefix(self, prefix: &str) -> Self {
        let prefix = Key::from(prefix).as_str().into();
        Self { prefix, ..self }
    }

    pub(crate) fn prefix(&self) -> &str {
        &self.prefix
    }

    pub(crate) fn with_hash_tags(self, hash_tags: HashTags) -> Self {
        Self { hash_tags, ..self }
    }

    pub(in crate::store::redis) fn value(
        &self,
        subject: Subject<'_>,
        value: impl Into<ValueName>,
    ) -> String {
        let mut name = String::new();
        self.write_value(subject, value.into(), &mut name);
        name
    }

    /// Appends the name of a value of a key to a text.
    ///
    /// In pieces: it is written for each check, and formatting takes five times as long. The braces enclose the hash tag,
    /// which all stored keys of a limiter and a key share, so that they are in one slot.
    pub(super) fn write_value(&self, subject: Subject<'_>, name: ValueName, out: &mut String) {
        let limiter = subject.limiter.as_str();
        let key = subject.key.as_str();
        push_all(out, &[&self.prefix, ":", FORMAT_VERSION, ":{"]);
        let shared_tag = self.hash_tags.number(subject);
        match shared_tag {
            None => push_all(out, &[limiter, ",", key, "}"]),
            Some(tag) => push_all(out, &[&tag.to_string(), "}:", limiter, ",", key]),
        }
        // No key contains a semicolon: it is encoded.
        let separator = if shared_tag.is_some() { ";" } else { ":" };
        match name.value {
            Value::Row => {}
            Value::Log => {
                push_all(out, &[separator, "log"]);
            }
            Value::Buckets { length } => {
                push_all(out, &[separator, "buckets:", &length.to_string()]);
            }
            Value::SortedSet { window } => {
                push_all(out, &[separator, "set:", &window.to_string()]);
            }
            Value::Held => {
                push_all(out, &[separator, "held"]);
            }
            Value::InFlight => {
                push_all(out, &[separator, "slots"]);
            }
        }
        if let Some((window, number)) = name.soft {
            push_all(out, &[separator, "soft:", &window.to_string()]);
            if number > 1 {
                push_all(out, &[":", &number.to_string()]);
            }
        }
    }

    pub(crate) fn block_list(&self) -> String {
        format!("{}:{FORMAT_VERSION}:{{{BLOCK_LIST_TAG}}}", self.prefix)
    }

    pub(crate) fn tags(&self) -> Option<NonZeroU16> {
        match self.hash_tags {
            HashTags::PerKey => None,
            HashTags::Shared(tags) | HashTags::ByPrefix(tags) => Some(tags),
        }
    }

    /// The cluster slot of a limiter and a key: the CRC16 of their hash tag.
    pub(crate) fn slot(&self, subject: Subject<'_>) -> u16 {
        let crc16 = match self.hash_tags.number(subject) {
            None => crc(subject),
            Some(tag) => State::<XMODEM>::calculate(tag.to_string().as_bytes()),
        };
        crc16 % SLOTS
    }

    pub(crate) fn are_in_several_slots<'a>(
        &self,
        subjects: impl Iterator<Item = Subject<'a>>,
    ) -> bool {
        let mut slots = subjects.map(|subject| self.slot(subject));
        let first = slots.next();
        slots.any(|slot| Some(slot) != first)
    }
}

impl Default for KeyNames {
    fn default() -> Self {
        Self {
            prefix: "tollgate".into(),
            hash_tags: HashTags::PerKey,
        }
    }
}

/// The cluster slot of a stored key: the CRC16 of its hash tag, or of the whole key.
pub(crate) fn key_slot(key: &[u8]) -> u16 {
    State::<XMODEM>::calculate(hash_tag(key).unwrap_or(key)) % SLOTS
}

fn hash_tag(key: &[u8]) -> Option<&[u8]> {
    let open = key.iter().position(|byte| *byte == b'{')?;
    let rest = key.get(open + 1..)?;
    let close = rest.iter().position(|byte| *byte == b'}')?;
    rest.get(..close).filter(|tag| !tag.is_empty())
}

fn push_all(out: &mut String, pieces: &[&str]) {
    for piece in pieces {
        out.push_str(piece);
    }
}

pub(crate) fn member(limiter: &Key, key: &Key) -> String {
    format!("{},{}", limiter.as_str(), key.as_str())
}

fn crc(subject: Subject<'_>) -> u16 {
    let mut crc = State::<XMODEM>::new();
    crc.update(subject.limiter.as_str().as_bytes());
    crc.update(b",");
    crc.update(subject.key.as_str().as_bytes());
    crc.get()
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::super::counts::Count;
    use super::*;
    use crate::quota::{Algorithm, Quota, Quotas};

    /// The names of the values that count the quotas of a key.
    fn names_of(names: &KeyNames, subject: Subject<'_>) -> Vec<String> {
        let counts = Count::all(subject).into_iter();
        let names = counts.map(|count| names.value(subject, count.name));
        names.collect()
    }

    fn names(prefix: &str, limiter: &str, key: &str, quotas: impl Into<Quotas>) -> Vec<String> {
        let (limiter, key, quotas) = (Key::from(limiter), Key::from(key), quotas.into());
        let subject = Subject::new(&limiter, &key, &quotas);
        let names = KeyNames::default().with_prefix(prefix);
        names_of(&names, subject)
    }

    #[test]
    fn a_name_contains_limiter_and_key_and_that_of_a_log_or_a_set_what_it_counts() {
        let of = |algorithm| Quota::per_day(9).with_algorithm(algorithm);
        let quotas = [
            of(Algorithm::SortedSetLog),
            of(Algorithm::SlidingBuckets(24)),
            of(Algorithm::SlidingLog),
            Quota::per_second(5),
            of(Algorithm::Gcra),
            of(Algorithm::FixedWindow),
        ];
        assert_eq!(
            names("tollgate", "search", "ada", quotas),
            [
                "tollgate:v3:{search,ada}",
                "tollgate:v3:{search,ada}:log",
                "tollgate:v3:{search,ada}:buckets:3600000000",
                "tollgate:v3:{search,ada}:set:86400000000",
            ]
        );
    }

    #[test]
    fn the_value_of_a_soft_quota_has_its_window_in_its_name() {
        let of = |algorithm| Quota::per_second(9).with_algorithm(algorithm);
        let quotas = [
            of(Algorithm::SlidingLog),
            of(Algorithm::SlidingLog).soft(),
            of(Algorithm::Gcra).soft(),
            of(Algorithm::SortedSetLog).soft(),
            Quota::per_minute(9).soft(),
        ];
        assert_eq!(
            names("tollgate", "search", "ada", quotas),
            [
                "tollgate:v3:{search,ada}:soft:1000000:2",
                "tollgate:v3:{search,ada}:log",
                "tollgate:v3:{search,ada}:log:soft:1000000",
                "tollgate:v3:{search,ada}:log:soft:60000000",
                "tollgate:v3:{search,ada}:set:1000000:soft:1000000:3",
            ]
        );
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
    fn keys_that_share_a_hash_tag_have_different_names() {
        let tags = NonZeroU16::new(4).unwrap();
        let names = KeyNames::default().with_hash_tags(HashTags::Shared(tags));
        let (limiter, quotas) = (Key::from("l"), Quotas::from(Quota::per_second(1)));
        let mut keys: Vec<Key> = (0..100)
            .map(|key| Key::from(format!("key:{key}")))
            .collect();
        // Named as the other keys of "key:1" are.
        keys.extend(["key:1:log:1000000", "key:1;log:1000000"].map(Key::from));
        let subjects = keys.iter().map(|key| Subject::new(&limiter, key, &quotas));
        let slots: HashSet<_> = subjects
            .clone()
            .map(|subject| names.slot(subject))
            .collect();
        assert_eq!(slots.len(), 4);
        let named = subjects.flat_map(|subject| names_of(&names, subject));
        let named: HashSet<_> = named.collect();
        assert_eq!(named.len(), 102);
        let is_log =
            |name: &String| name.starts_with("tollgate:v3:{") && name.ends_with("}:l,key:17;log");
        assert!(named.iter().any(is_log));
    }

    #[test]
    fn with_tags_by_prefix_a_tenant_and_its_users_are_in_one_slot_at_every_limiter() {
        let tags = NonZeroU16::new(48).unwrap();
        let names = KeyNames::default().with_hash_tags(HashTags::ByPrefix(tags));
        let quotas = Quotas::from(Quota::per_second(1));
        let limiters = ["user", "tenant"].map(Key::from);
        let mut slots_of_tenants = HashSet::new();
        for tenant in 0..1_000 {
            // The keys of every second tenant are hashed: they are longer than 64 bytes.
            let padding = (tenant % 2) * 70;
            let tenant = Key::from(format!("{tenant}{}", "x".repeat(padding)));
            let users =
                (0..4).map(|user: usize| Key::from(format!("{user}{}", "y".repeat(32 * user))));
            let joined = users.map(|user| tenant.and(&user).and(Key::from("route")));
            let keys: Vec<Key> = joined.chain([tenant.clone()]).collect();
            let subjects = keys.iter().flat_map(|key| {
                limiters
                    .each_ref()
                    .map(|limiter| Subject::new(limiter, key, &quotas))
            });
            let slots: HashSet<_> = subjects
                .clone()
                .map(|subject| names.slot(subject))
                .collect();
            assert_eq!(slots.len(), 1);
            let named: Vec<_> = subjects
                .flat_map(|subject| names_of(&names, subject))
                .collect();
            for name in &named {
                let (_, tag) = name.split_once('{').unwrap();
                let (tag, _) = tag.split_once('}').unwrap();
                let slot = State::<XMODEM>::calculate(tag.as_bytes()) % SLOTS;
                assert!(slots.contains(&slot), "{name}");
            }
            assert_eq!(named.iter().collect::<HashSet<_>>().len(), named.len());
            slots_of_tenants.extend(slots);
        }
        assert_eq!(slots_of_tenants.len(), 48);
    }

    #[test]
    fn a_name_with_a_tag_by_prefix_contains_the_tag_before_limiter_and_key() {
        let tags = NonZeroU16::new(48).unwrap();
        let names = KeyNames::default().with_hash_tags(HashTags::ByPrefix(tags));
        let (limiter, key) = (Key::from("user"), Key::from("acme").and(Key::from("ada")));
        let quotas = Quotas::from(Quota::per_second(1));
        let subject = Subject::new(&limiter, &key, &quotas);
        assert_eq!(
            names_of(&names, subject),
            ["tollgate:v3:{35}:user,acme,ada;log",]
        );
    }
}
