//! Encodes checks, refunds and credits as commands that call the script.

use std::io::{self, Write};

use redis::{Cmd, RedisWrite};
use rmp::encode;
use smallvec::SmallVec;

use super::fields::{
    CALL_FIELDS, CREDIT_FIELDS, CREDIT_KEY_FIELDS, QUOTA_FIELDS, QUOTA_LIST_FIELDS, REFUND_FIELDS,
    RUN_FIELDS, TOGETHER_CHECK_FIELDS,
};
use super::key_names::KeyNames;
use crate::algorithm::time_to_live_millis;
use crate::quota::{Quota, Quotas};
use crate::store::redis::script::Script;
use crate::store::requests::{Check, Credit, Refund};

/// Bytes that a command reserves for a key name.
const KEY_NAME_CAPACITY: usize = 64;

/// The most values that are packed one after the other, which halves the time to unpack them. More are
/// packed as one array: a Lua function returns at most 8 000 values.
const MAX_UNWRAPPED_VALUES: usize = 4_000;

/// The most units that the checks of one entry may ask for together. The queue splits larger entries;
/// the script fails them.
pub(crate) const MAX_ENTRY_UNITS: u64 = 100_000;

/// Checks of one cost on the same key and quotas. The script decides them one after the other, as if
/// each had arrived alone.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BatchEntry<'a> {
    pub(crate) check: Check<'a>,
    pub(crate) count: u32,
}

/// Encodes a call that decides these entries in order.
pub(crate) fn encode_checks(script: &Script, names: &KeyNames, entries: &[BatchEntry<'_>]) -> Cmd {
    let quota_lists = QuotaLists::of(entries);
    let keys = entries.iter().map(|entry| key_count(entry.check.quotas()));
    let keys = keys.sum();
    let mut call = script.call(keys, 1, KEY_NAME_CAPACITY);
    for entry in entries {
        names.write(entry.check.subject, &mut call);
    }
    let runs = quota_lists.runs(entries);
    // Writing to a command does not fail.
    let _ = quota_lists.pack(&runs, &mut call.writer_for_next_arg());
    call
}

/// The number of keys that quotas are stored in.
fn key_count(quotas: &Quotas) -> usize {
    quotas.strictest().count()
}

/// Entries in a row with the same quotas, cost and count.
struct EntryRun {
    entries: u64,
    /// The number of the list of quotas, from 1 as Lua counts.
    quota_list: u64,
    cost: u64,
    count: u64,
}

impl EntryRun {
    fn continues(&self, previous: &Self) -> bool {
        (self.quota_list, self.cost, self.count)
            == (previous.quota_list, previous.cost, previous.count)
    }
}

/// The distinct lists of quotas in a call; most calls have one.
struct QuotaLists<'a> {
    lists: SmallVec<[&'a Quotas; 4]>,
    /// The index of each entry's list.
    list_of_entry: SmallVec<[usize; 64]>,
}

impl<'a> QuotaLists<'a> {
    fn of(entries: &[BatchEntry<'a>]) -> Self {
        let mut lists = SmallVec::<[&Quotas; 4]>::new();
        let list_of_entry = entries.iter().map(|entry| {
            let quotas = entry.check.quotas();
            let known = lists.iter().position(|list| *list == quotas);
            known.unwrap_or_else(|| {
                lists.push(quotas);
                lists.len() - 1
            })
        });
        let list_of_entry = list_of_entry.collect();
        Self {
            lists,
            list_of_entry,
        }
    }

    fn runs(&self, entries: &[BatchEntry<'_>]) -> SmallVec<[EntryRun; 4]> {
        let mut runs = SmallVec::<[EntryRun; 4]>::new();
        for (entry, list) in entries.iter().zip(&self.list_of_entry) {
            let run = EntryRun {
                entries: 1,
                quota_list: *list as u64 + 1,
                cost: entry.check.cost().into(),
                count: entry.count.into(),
            };
            match runs.last_mut() {
                Some(last) if run.continues(last) => last.entries += 1,
                _ => runs.push(run),
            }
        }
        runs
    }

    /// Packs the lists and the runs of entries in the format of `cmsgpack`.
    fn pack(&self, runs: &[EntryRun], out: &mut impl Write) -> io::Result<()> {
        let of_lists = self
            .lists
            .iter()
            .map(|quotas| QUOTA_LIST_FIELDS.len() + QUOTA_FIELDS.len() * quotas.len());
        let of_runs = RUN_FIELDS.len() * runs.len();
        let values = CALL_FIELDS.len() + of_lists.sum::<usize>() + of_runs;
        if values > MAX_UNWRAPPED_VALUES {
            encode::write_array_len(out, u32::try_from(values).unwrap_or(u32::MAX))?;
        }
        self.pack_lists(out)?;
        for run in runs {
            for value in [run.entries, run.quota_list, run.cost, run.count] {
                encode::write_uint(out, value)?;
            }
        }
        Ok(())
    }

    fn pack_lists(&self, out: &mut impl Write) -> io::Result<()> {
        encode::write_uint(out, self.lists.len() as u64)?;
        for quotas in &self.lists {
            encode::write_uint(out, quotas.len() as u64)?;
            for (quota, counter) in quotas.with_counters() {
                let algorithm = quota.counted_by();
                encode::write_str(out, algorithm.facts().script)?;
                encode::write_uint(out, algorithm.parts())?;
                encode::write_uint(out, counter as u64 + 1)?;
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
    let keys = checks.iter().map(|check| key_count(check.quotas())).sum();
    let args = checks
        .iter()
        .map(|check| TOGETHER_CHECK_FIELDS.len() + QUOTA_FIELDS.len() * check.quotas().len());
    let mut call = script.call(keys, args.sum(), KEY_NAME_CAPACITY);
    for check in checks {
        names.write(check.subject, &mut call);
    }
    let mut first_key = 1;
    for check in checks {
        call.arg(check.quotas().len()).arg(check.cost());
        for (quota, counter) in check.quotas().with_counters() {
            let algorithm = quota.counted_by();
            call.write_arg(algorithm.facts().script.as_bytes());
            call.arg(algorithm.parts()).arg(first_key + counter);
            call.arg(quota.limit()).arg(quota.window_micros());
            call.arg(ttl_millis(quota));
        }
        first_key += key_count(check.quotas());
    }
    call
}

/// Encodes a call that gives units of one check back.
pub(crate) fn encode_refund(script: &Script, names: &KeyNames, refund: &Refund<'_>) -> Cmd {
    let keys = key_count(refund.quotas());
    let mut call = script.call(keys, keys * REFUND_FIELDS.len(), KEY_NAME_CAPACITY);
    names.write(refund.subject, &mut call);
    for (quota, answer) in refund.charged() {
        let receipt = answer.receipt();
        write_quota(quota, &mut call);
        call.arg(refund.units()).arg(refund.answer().time());
        call.arg(receipt.generation).arg(receipt.position);
        call.arg(refund.cost).arg(refund.held);
    }
    call
}

/// Encodes a call that credits units to a subject, by the strictest quota of each key.
pub(crate) fn encode_credit(script: &Script, names: &KeyNames, credit: &Credit<'_>) -> Cmd {
    let keys = key_count(credit.quotas());
    let args = CREDIT_FIELDS.len() + keys * CREDIT_KEY_FIELDS.len();
    let mut call = script.call(keys, args, KEY_NAME_CAPACITY);
    names.write(credit.subject, &mut call);
    call.arg(credit.units());
    for quota in credit.quotas().strictest() {
        write_quota(quota, &mut call);
    }
    call
}

/// Writes the arguments with which refunds and credits describe a key.
fn write_quota(quota: &Quota, call: &mut Cmd) {
    let algorithm = quota.counted_by();
    call.write_arg(algorithm.facts().script.as_bytes());
    call.arg(algorithm.parts());
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
    use crate::store::redis::script::Scripts;
    use crate::store::requests::Subject;

    /// The keys and arguments of a call of these entries: quotas, cost and count.
    fn written(entries: &[(&Quotas, u32, u32)]) -> String {
        let (limiter, key) = (Key::from("l"), Key::from("k"));
        let entries: Vec<_> = entries
            .iter()
            .map(|(quotas, cost, count)| BatchEntry {
                check: Check {
                    subject: Subject {
                        limiter: &limiter,
                        key: &key,
                        quotas,
                    },
                    cost: *cost,
                },
                count: *count,
            })
            .collect();
        let call = encode_checks(
            &Scripts::shared().decide,
            &KeyNames::default().with_prefix("p"),
            &entries,
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
    fn quota_lists_travel_once_and_entries_that_are_alike_as_one_run() {
        let two = Quotas::from([Quota::per_second(5), Quota::per_second(9)]);
        let buckets = Algorithm::SlidingBuckets(60);
        let one = Quotas::from(Quota::per_minute(7).algorithm(buckets));
        let (log, counter) = ("p:v1:{l,k}:log:1000000", "p:v1:{l,k}:buckets60:60000000");
        let quota_lists = "2 2 sliding_log 1 1 5 1000000 3000 sliding_log 1 1 9 1000000 3000 \
            1 sliding_buckets 60 1 7 60000000 121000";
        // Another list, of equal quotas.
        let equal = Quotas::from([Quota::per_second(5), Quota::per_second(9)]);
        assert_eq!(
            written(&[
                (&two, 3, 1),
                (&equal, 3, 1),
                (&one, 4, 1),
                (&one, 4, 2),
                (&two, 4, 2)
            ]),
            format!(
                "5 {log} {log} {counter} {counter} {log} {quota_lists} 2 1 3 1 1 2 4 1 1 2 4 2 1 1 4 2"
            )
        );
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
