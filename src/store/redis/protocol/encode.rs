//! Encodes checks, refunds and credits as commands that call the script.

use std::io::{self, Write};

use redis::{Cmd, RedisWrite};
use rmp::encode;
use smallvec::SmallVec;

use super::fields::{
    CALL_FIELDS, CREDIT_COUNT_FIELDS, CREDIT_FIELDS, QUOTA_FIELDS, QUOTA_LIST_FIELDS,
    REFUND_FIELDS, RUN_FIELDS, TOGETHER_CHECK_FIELDS,
};
use super::key_names::KeyNames;
use crate::algorithm::time_to_live_millis;
use crate::quota::{Algorithm, Quota, Quotas};
use crate::store::redis::script::Script;
use crate::store::requests::{Check, Credit, Refund, Reset, Subject};

/// Bytes that a command reserves for a key name.
const KEY_NAME_CAPACITY: usize = 64;

/// The most values that are packed one after the other, which halves the time to unpack them. More are
/// packed as one array: a Lua function returns at most 8 000 values.
const MAX_UNWRAPPED_VALUES: usize = 4_000;

/// The most units that the checks of one entry may ask for together. The queue splits larger entries;
/// the script fails them.
pub(crate) const MAX_ENTRY_UNITS: u64 = 100_000;

/// The units up to which a log is packed in the value of its subject, whatever their times: the script's
/// `MAX_RUNS`. The log of a higher limit may need the key of a list.
const MAX_PACKED_UNITS: u32 = 128;

/// Checks of one cost on the same key and quotas. The script decides them one after the other, as if
/// each had arrived alone.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BatchEntry<'a> {
    pub(crate) check: Check<'a>,
    pub(crate) count: u32,
    /// Whether an earlier entry of the call may have the same limiter and key.
    pub(crate) may_repeat: bool,
}

impl<'a> BatchEntry<'a> {
    /// Creates the entry of a call that has no other.
    pub(crate) fn only(check: Check<'a>) -> Self {
        Self {
            check,
            count: 1,
            may_repeat: false,
        }
    }
}

/// The logs whose list is among the keys of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ListKeys {
    /// None: while a cluster moves a slot, it runs no call for keys that are partly there.
    None,
    /// The logs that may need one, by their limit. The script fails a check of a log that was larger under
    /// a higher limit, before it writes anything.
    OfLargeLimits,
    All,
}

impl ListKeys {
    fn include(self, quota: &Quota) -> bool {
        match self {
            Self::None => false,
            Self::OfLargeLimits => quota.limit() > MAX_PACKED_UNITS,
            Self::All => true,
        }
    }
}

/// The quotas of a list whose counts need a key of their own, in the order of their counts.
fn extras(quotas: &Quotas, lists: ListKeys) -> impl Iterator<Item = &Quota> {
    let counts = quotas.strictest();
    counts.filter(move |quota| needs_extra(quota, lists))
}

fn needs_extra(quota: &Quota, lists: ListKeys) -> bool {
    match quota.counted_by() {
        Algorithm::SortedSetLog => true,
        Algorithm::SlidingLog => lists.include(quota),
        _ => false,
    }
}

/// Returns whether a count is packed in the value of a subject.
fn needs_value(quotas: &Quotas) -> bool {
    let mut counts = quotas.strictest();
    counts.any(|quota| quota.counted_by() != Algorithm::SortedSetLog)
}

/// The number of each count's extra key, from `first` on; 0 for a count without one.
fn extra_numbers(quotas: &Quotas, lists: ListKeys, first: u64) -> SmallVec<[u64; 4]> {
    let mut next = first;
    let numbers = quotas.strictest().map(|quota| {
        if !needs_extra(quota, lists) {
            return 0;
        }
        next += 1;
        next - 1
    });
    numbers.collect()
}

/// Encodes a call that decides these entries in order.
pub(crate) fn encode_checks(
    script: &Script,
    names: &KeyNames,
    entries: &[BatchEntry<'_>],
    lists: ListKeys,
) -> Cmd {
    let (quota_lists, places) = QuotaLists::of(entries, lists);
    let keys = usize::try_from(places.keys).unwrap_or_default();
    let mut call = script.call(keys, 1, KEY_NAME_CAPACITY);
    let mut written = 0;
    for (entry, place) in entries.iter().zip(&places.places) {
        if place.value > written {
            written = place.value;
            names.write_value(entry.check.subject, &mut call);
        }
    }
    for entry in entries {
        for quota in extras(entry.check.quotas(), lists) {
            names.write_extra(entry.check.subject, quota, &mut call);
        }
    }
    let runs = EntryRun::all_of(entries, &places.places);
    // Writing to a command does not fail.
    let _ = quota_lists.pack(places.values, &runs, &mut call.writer_for_next_arg());
    call
}

/// The places of the quotas and keys of all entries of a call. The extra keys follow the values.
#[derive(Default)]
struct EntryPlaces {
    places: SmallVec<[EntryPlace; 64]>,
    /// The number of values, one for each subject.
    values: u64,
    /// The number of all keys.
    keys: u64,
}

/// The places of the quotas and keys of one entry. All are numbers from 1, as Lua counts.
struct EntryPlace {
    quota_list: u64,
    value: u64,
    /// The key that is its first extra key, if it has one.
    extra: u64,
}

/// Returns whether two entries are of one subject.
fn share_subject(one: &BatchEntry<'_>, other: &BatchEntry<'_>) -> bool {
    let (one, other) = (one.check.subject, other.check.subject);
    one.key == other.key && one.limiter == other.limiter
}

/// Entries in a row with the same quotas, cost and count, each of another subject.
struct EntryRun {
    entries: u64,
    quota_list: u64,
    cost: u64,
    count: u64,
    first_value: u64,
    first_extra: u64,
}

impl EntryRun {
    fn all_of(entries: &[BatchEntry<'_>], places: &[EntryPlace]) -> SmallVec<[Self; 4]> {
        let mut runs = SmallVec::<[Self; 4]>::new();
        for (entry, place) in entries.iter().zip(places) {
            let run = Self {
                entries: 1,
                quota_list: place.quota_list,
                cost: entry.check.cost().into(),
                count: entry.count.into(),
                first_value: place.value,
                first_extra: place.extra,
            };
            match runs.last_mut() {
                Some(last) if run.continues(last) => last.entries += 1,
                _ => runs.push(run),
            }
        }
        runs
    }

    fn continues(&self, previous: &Self) -> bool {
        let next_value = match previous.first_value {
            0 => 0,
            first => first + previous.entries,
        };
        (self.quota_list, self.cost, self.count, self.first_value)
            == (
                previous.quota_list,
                previous.cost,
                previous.count,
                next_value,
            )
    }

    fn fields(&self) -> [u64; RUN_FIELDS.len()] {
        [
            self.entries,
            self.quota_list,
            self.cost,
            self.count,
            self.first_value,
            self.first_extra,
        ]
    }
}

/// The distinct lists of quotas in a call; most calls have one.
struct QuotaLists<'a> {
    lists: SmallVec<[&'a Quotas; 4]>,
    keys: ListKeys,
}

impl<'a> QuotaLists<'a> {
    fn of(entries: &[BatchEntry<'a>], keys: ListKeys) -> (Self, EntryPlaces) {
        let mut lists = SmallVec::<[&Quotas; 4]>::new();
        let mut extras_of_list = SmallVec::<[u64; 4]>::new();
        let mut places = EntryPlaces::default();
        let mut next_extra = 1;
        for entry in entries {
            let quotas = entry.check.quotas();
            let known = lists.iter().position(|list| *list == quotas);
            let list = known.unwrap_or_else(|| {
                lists.push(quotas);
                extras_of_list.push(extras(quotas, keys).count() as u64);
                lists.len() - 1
            });
            let mut earlier = entries.iter().zip(&places.places);
            let shared = if entry.may_repeat {
                earlier.find(|(other, _)| share_subject(other, entry))
            } else {
                None
            };
            let value = match shared {
                Some((_, place)) if place.value > 0 => place.value,
                _ if needs_value(quotas) => places.values + 1,
                _ => 0,
            };
            places.values = places.values.max(value);
            places.places.push(EntryPlace {
                quota_list: list as u64 + 1,
                value,
                extra: next_extra,
            });
            next_extra += extras_of_list.get(list).copied().unwrap_or_default();
        }
        for place in &mut places.places {
            place.extra += places.values;
        }
        places.keys = places.values + next_extra - 1;
        (Self { lists, keys }, places)
    }

    /// Packs the lists and the runs of entries in the format of `cmsgpack`.
    fn pack(&self, values: u64, runs: &[EntryRun], out: &mut impl Write) -> io::Result<()> {
        let of_lists = self
            .lists
            .iter()
            .map(|quotas| QUOTA_LIST_FIELDS.len() + QUOTA_FIELDS.len() * quotas.len());
        let of_runs = RUN_FIELDS.len() * runs.len();
        let fields = CALL_FIELDS.len() + of_lists.sum::<usize>() + of_runs;
        if fields > MAX_UNWRAPPED_VALUES {
            encode::write_array_len(out, u32::try_from(fields).unwrap_or(u32::MAX))?;
        }
        encode::write_uint(out, self.lists.len() as u64)?;
        encode::write_uint(out, values)?;
        self.pack_lists(out)?;
        for field in runs.iter().flat_map(EntryRun::fields) {
            encode::write_uint(out, field)?;
        }
        Ok(())
    }

    fn pack_lists(&self, out: &mut impl Write) -> io::Result<()> {
        for quotas in &self.lists {
            let extras = extra_numbers(quotas, self.keys, 1);
            encode::write_uint(out, quotas.len() as u64)?;
            for (quota, counter) in quotas.with_counters() {
                let algorithm = quota.counted_by();
                encode::write_str(out, algorithm.facts().script)?;
                encode::write_uint(out, algorithm.parts())?;
                encode::write_uint(out, counter as u64 + 1)?;
                encode::write_uint(out, extras.get(counter).copied().unwrap_or_default())?;
                encode::write_uint(out, quota.limit().into())?;
                encode::write_uint(out, quota.window_micros())?;
                encode::write_str(out, &ttl_millis(quota).to_string())?;
            }
        }
        Ok(())
    }
}

/// Encodes a call that decides these checks together.
pub(crate) fn encode_checks_together(
    script: &Script,
    names: &KeyNames,
    checks: &[Check<'_>],
) -> Cmd {
    let extra_keys = checks
        .iter()
        .map(|check| extras(check.quotas(), ListKeys::All).count());
    let args = checks
        .iter()
        .map(|check| TOGETHER_CHECK_FIELDS.len() + QUOTA_FIELDS.len() * check.quotas().len());
    let keys = checks.len() + extra_keys.sum::<usize>();
    let mut call = script.call(keys, args.sum(), KEY_NAME_CAPACITY);
    for check in checks {
        names.write_value(check.subject, &mut call);
    }
    for check in checks {
        for quota in extras(check.quotas(), ListKeys::All) {
            names.write_extra(check.subject, quota, &mut call);
        }
    }
    let (mut first_counter, mut first_extra) = (1, checks.len() as u64 + 1);
    for check in checks {
        let quotas = check.quotas();
        let extra_numbers = extra_numbers(quotas, ListKeys::All, first_extra);
        call.arg(quotas.len()).arg(check.cost());
        for (quota, counter) in quotas.with_counters() {
            let algorithm = quota.counted_by();
            call.write_arg(algorithm.facts().script.as_bytes());
            call.arg(algorithm.parts()).arg(first_counter + counter);
            call.arg(extra_numbers.get(counter).copied().unwrap_or_default());
            call.arg(quota.limit()).arg(quota.window_micros());
            call.arg(ttl_millis(quota));
        }
        first_counter += quotas.strictest().count();
        first_extra += extras(quotas, ListKeys::All).count() as u64;
    }
    call
}

/// Begins a call for all counts of a subject, whose arguments the caller appends.
fn call_for_counts(
    script: &Script,
    names: &KeyNames,
    subject: Subject<'_>,
    lists: ListKeys,
    args: usize,
) -> Cmd {
    let has_value = needs_value(subject.quotas);
    let keys = usize::from(has_value) + extras(subject.quotas, lists).count();
    let mut call = script.call(keys, args, KEY_NAME_CAPACITY);
    if has_value {
        names.write_value(subject, &mut call);
    }
    for quota in extras(subject.quotas, lists) {
        names.write_extra(subject, quota, &mut call);
    }
    call
}

/// The number of the first extra key of a call for all counts of a subject.
fn first_extra(quotas: &Quotas) -> u64 {
    1 + u64::from(needs_value(quotas))
}

/// Encodes a call that gives units of one check back.
pub(crate) fn encode_refund(
    script: &Script,
    names: &KeyNames,
    refund: &Refund<'_>,
    lists: ListKeys,
) -> Cmd {
    let quotas = refund.quotas();
    let args = quotas.strictest().count() * REFUND_FIELDS.len();
    let mut call = call_for_counts(script, names, refund.subject, lists, args);
    let extras = extra_numbers(quotas, lists, first_extra(quotas));
    for ((quota, answer), extra) in refund.charged().zip(extras) {
        let receipt = answer.receipt();
        write_quota(quota, extra, &mut call);
        call.arg(refund.units()).arg(refund.answer().time());
        call.arg(receipt.generation).arg(receipt.position);
        call.arg(refund.cost).arg(refund.held);
    }
    call
}

/// Encodes a call that credits units to a subject, by the strictest quota of each count.
pub(crate) fn encode_credit(
    script: &Script,
    names: &KeyNames,
    credit: &Credit<'_>,
    lists: ListKeys,
) -> Cmd {
    encode_counts(script, names, credit.subject, lists, credit.units())
}

/// Encodes a call that forgets the counts of a subject.
pub(crate) fn encode_reset(
    script: &Script,
    names: &KeyNames,
    reset: &Reset<'_>,
    lists: ListKeys,
) -> Cmd {
    encode_counts(script, names, reset.subject, lists, ALL_UNITS)
}

/// The units of a credit that forgets the counts.
const ALL_UNITS: i64 = -1;

fn encode_counts(
    script: &Script,
    names: &KeyNames,
    subject: Subject<'_>,
    lists: ListKeys,
    units: impl Into<i64>,
) -> Cmd {
    let quotas = subject.quotas;
    let args = CREDIT_FIELDS.len() + quotas.strictest().count() * CREDIT_COUNT_FIELDS.len();
    let mut call = call_for_counts(script, names, subject, lists, args);
    call.arg(units.into());
    let extras = extra_numbers(quotas, lists, first_extra(quotas));
    for (quota, extra) in quotas.strictest().zip(extras) {
        write_quota(quota, extra, &mut call);
    }
    call
}

/// Writes the arguments with which refunds and credits describe a count.
fn write_quota(quota: &Quota, extra: u64, call: &mut Cmd) {
    let algorithm = quota.counted_by();
    call.write_arg(algorithm.facts().script.as_bytes());
    call.arg(algorithm.parts()).arg(extra);
    call.arg(quota.limit()).arg(quota.window_micros());
    call.arg(ttl_millis(quota));
}

fn ttl_millis(quota: &Quota) -> u64 {
    time_to_live_millis(quota.window_micros())
}

#[cfg(test)]
mod tests {
    use redis::Arg::Simple;
    use rmp::decode;

    use super::*;
    use crate::key::Key;
    use crate::quota::Algorithm;
    use crate::store::redis::script::{Scripts, source};

    /// The keys and arguments of a call of these entries: key, quotas, cost and count.
    fn written(entries: &[(&str, &Quotas, u32, u32)], lists: ListKeys) -> String {
        let limiter = Key::from("l");
        let keys: Vec<_> = entries.iter().map(|(key, ..)| Key::from(*key)).collect();
        let entries: Vec<_> = entries
            .iter()
            .zip(&keys)
            .map(|((_, quotas, cost, count), key)| BatchEntry {
                check: Check {
                    subject: Subject {
                        limiter: &limiter,
                        key,
                        quotas,
                    },
                    cost: *cost,
                },
                count: *count,
                may_repeat: true,
            })
            .collect();
        let call = encode_checks(
            &Scripts::shared().decide,
            &KeyNames::default().with_prefix("p"),
            &entries,
            lists,
        );
        let args = call.args_iter().skip(2).map(|arg| match arg {
            Simple(bytes) => bytes.to_vec(),
            _ => unreachable!(),
        });
        let mut args: Vec<_> = args.collect();
        let mut packed = &*args.pop().unwrap();
        let mut words: Vec<_> = args
            .into_iter()
            .map(|arg| String::from_utf8(arg).unwrap())
            .collect();
        while let Some(first) = packed.first() {
            words.push(if first & 0xe0 == 0xa0 {
                let (text, rest) = decode::read_str_from_slice(packed).unwrap();
                packed = rest;
                text.to_owned()
            } else {
                let number: u64 = decode::read_int(&mut packed).unwrap();
                number.to_string()
            });
        }
        words.join(" ")
    }

    #[test]
    fn quota_lists_and_values_travel_once_and_entries_that_are_alike_as_one_run() {
        let two = Quotas::from([Quota::per_second(5), Quota::per_second(9)]);
        let buckets = Algorithm::SlidingBuckets(60);
        let one = Quotas::from(Quota::per_minute(7).algorithm(buckets));
        let quota_lists = "2 2 sliding_log 1 1 0 5 1000000 3000 sliding_log 1 1 0 9 1000000 3000 \
            1 sliding_buckets 60 1 0 7 60000000 121000";
        // Another list, of equal quotas.
        let equal = Quotas::from([Quota::per_second(5), Quota::per_second(9)]);
        assert_eq!(
            written(
                &[
                    ("a", &two, 3, 1),
                    ("b", &equal, 3, 1),
                    ("b", &one, 4, 1),
                    ("c", &one, 4, 1),
                    ("d", &one, 4, 2),
                    ("a", &one, 4, 2)
                ],
                ListKeys::OfLargeLimits
            ),
            format!(
                "4 p:v2:{{l,a}} p:v2:{{l,b}} p:v2:{{l,c}} p:v2:{{l,d}} 2 4 {} \
                2 1 3 1 1 5 2 2 4 1 2 5 1 2 4 2 4 5 1 2 4 2 1 5",
                &quota_lists[2..]
            )
        );
    }

    #[test]
    fn sorted_sets_and_logs_of_high_limits_have_keys_of_their_own() {
        let set = Quota::per_hour(5).algorithm(Algorithm::SortedSetLog);
        let large = Quota::per_minute(MAX_PACKED_UNITS + 1);
        let small = Quota::per_second(MAX_PACKED_UNITS);
        // By the strictest quota of a count, which charges it.
        let lowered = Quota::per_second(1_000_000).named("lax");
        let quotas = Quotas::from([small, set, lowered, large]);
        let entries = [("a", &quotas, 1, 1), ("b", &quotas, 1, 1)];
        let extras = |key: &str, window: &str| format!("p:v2:{{l,{key}}}:{window}");
        let of_large = |key| [extras(key, "set:3600000000"), extras(key, "log:60000000")].join(" ");
        let said = written(&entries, ListKeys::OfLargeLimits);
        let keys = format!(
            "6 p:v2:{{l,a}} p:v2:{{l,b}} {} {} ",
            of_large("a"),
            of_large("b")
        );
        assert!(said.starts_with(&keys), "{said}");
        let list = "4 sliding_log 1 1 0 128 1000000 3000 sorted_set_log 1 2 1 5 3600000000 7201000 \
            sliding_log 1 1 0 1000000 1000000 3000 sliding_log 1 3 2 129 60000000 121000";
        assert!(
            said.ends_with(&format!(" 1 2 {list} 2 1 1 1 1 3")),
            "{said}"
        );
        let said = written(&entries, ListKeys::All);
        assert!(said.starts_with("8 "), "{said}");
        assert!(said.contains("{l,b}:log:1000000 p:v2:{l,b}:set"), "{said}");
    }

    #[test]
    fn the_script_packs_as_many_runs_as_the_client_assumes() {
        let text = format!("local MAX_RUNS = {MAX_PACKED_UNITS}\n");
        assert!(source("runs").contains(&text));
    }

    #[test]
    fn a_call_of_an_unknown_script_is_repeated_with_its_text() {
        let script = &Scripts::shared().decide;
        let mut call = script.call(1, 1, 1);
        call.arg("key").arg(7);
        let words = |call: &Cmd| {
            let args = call.args_iter().map(|arg| match arg {
                Simple(bytes) => bytes.to_vec(),
                _ => unreachable!(),
            });
            args.collect::<Vec<_>>()
        };
        let (by_hash, by_text) = (words(&call), words(&script.by_text(&call)));
        assert_eq!(
            (by_hash[0].as_slice(), by_text[0].as_slice()),
            (&b"EVALSHA"[..], &b"EVAL"[..])
        );
        let [(_, decide), ..] = Scripts::texts();
        assert_eq!(by_text[1], decide.as_bytes());
        assert_eq!(by_hash[2..], [&b"1"[..], b"key", b"7"]);
        assert_eq!(by_text[2..], by_hash[2..]);
    }
}
