//! Encodes checks, refunds, credits and resets as commands that call the scripts.
#![cfg_attr(
    not(test),
    expect(
        clippy::indexing_slicing,
        reason = "a level has the index of its count in the plan"
    )
)]

use std::io::{self, Write};
use std::iter;

use redis::RedisWrite;
use rmp::encode;
use smallvec::SmallVec;

use super::call_number::CallNumber;
use super::call_plan::{BatchEntry, CallPlan, Group};
use super::counts::{Count, ValueName};
use super::fields::{CALL_FIELDS, CHANGE_FIELDS, LIST_FIELDS, QUOTA_FIELDS, RECEIPT_FIELDS};
use super::key_names::KeyNames;
use super::server_clock::ServerClock;
use crate::decision::QuotaAnswer;
use crate::quota::{Calendar, Quota};
use crate::store::redis::script::{Script, ScriptCall, Scripts};
use crate::store::requests::{Adjust, Change, Subject};

/// Bytes that a command reserves for a key name.
const KEY_NAME_CAPACITY: usize = 64;

/// The most values that are packed one after the other, which halves the time to unpack them. More are
/// packed as one array: a Lua function returns at most 8 000 values.
const MAX_UNWRAPPED_VALUES: usize = 4_000;

/// The most units that the checks of one entry may ask for together. The queue splits larger entries: each unit of a
/// sorted set takes Redis half a microsecond.
pub(crate) const MAX_ENTRY_UNITS: u64 = 100_000;

/// Encodes a call that decides these entries in order. Returns the script for it, too.
pub(crate) fn encode_checks<'s, 'a>(
    scripts: &'s Scripts,
    names: &KeyNames,
    clock: &ServerClock,
    entries: &[BatchEntry<'a>],
) -> (&'s Script, ScriptCall, CallPlan<'a>) {
    let plan = CallPlan::new(entries);
    let script = plan.script(scripts);
    let mut call = begin(script, names, &plan.keys);
    // Writing to a command does not fail.
    let _ = pack_plan(
        &plan,
        call.number,
        clock,
        &mut call.command.writer_for_next_arg(),
    );
    (script, call, plan)
}

/// Begins a call with the names of its keys. The packed argument follows.
fn begin(script: &Script, names: &KeyNames, keys: &[(Subject<'_>, ValueName)]) -> ScriptCall {
    let mut call = script.call(keys.len(), 1, KEY_NAME_CAPACITY);
    let mut name = String::with_capacity(KEY_NAME_CAPACITY);
    for (subject, value) in keys {
        name.clear();
        names.write_value(*subject, *value, &mut name);
        call.command.write_arg(name.as_bytes());
    }
    call
}

/// Packs the lists and the groups in the format of `cmsgpack`.
fn pack_plan(
    plan: &CallPlan<'_>,
    number: CallNumber,
    clock: &ServerClock,
    out: &mut impl Write,
) -> io::Result<()> {
    let groups_length: u64 = plan.groups.iter().map(Group::length).sum();
    pack_length(plan.end_of_lists - 1 + groups_length, out)?;
    let head = [plan.read_first, plan.end_of_lists, number.get().into()];
    pack_numbers(head, out)?;
    for (_, count) in &plan.counts {
        pack_count(count, clock, out)?;
    }
    for group in &plan.groups {
        let head = [
            group.is_usual.into(),
            group.length(),
            group.entries.len() as u64,
            group.count.into(),
            group.more.into(),
            group.eighths.into(),
            group.levels.len() as u64,
            group.is_shared.into(),
        ];
        pack_numbers(head, out)?;
        for level in &group.levels {
            let (list, _) = plan.counts[level.count];
            pack_numbers([list, level.cost], out)?;
        }
        let keys = plan.key_numbers(group).iter().take(group.named_keys());
        pack_numbers(keys.copied(), out)?;
    }
    Ok(())
}

/// Packs the head of an array, if so many values need one.
fn pack_length(values: u64, out: &mut impl Write) -> io::Result<()> {
    if values > MAX_UNWRAPPED_VALUES as u64 {
        encode::write_array_len(out, u32::try_from(values).unwrap_or(u32::MAX))?;
    }
    Ok(())
}

fn pack_numbers(numbers: impl IntoIterator<Item = u64>, out: &mut impl Write) -> io::Result<()> {
    for number in numbers {
        encode::write_uint(out, number)?;
    }
    Ok(())
}

fn pack_count(count: &Count<'_>, clock: &ServerClock, out: &mut impl Write) -> io::Result<()> {
    encode::write_uint(out, count.quotas.len() as u64)?;
    encode::write_str(out, count.kind())?;
    let rest = [
        count.is_long().into(),
        count.name.value.bucket(),
        count.ttl_millis(),
        count.is_soft().into(),
    ];
    pack_numbers(rest, out)?;
    for quota in count.quotas() {
        encode::write_str(out, script_name(quota))?;
        encode::write_uint(out, count.script_limit(quota).into())?;
        match quota.calendar() {
            None => drop(encode::write_uint(out, count.counted_micros(quota))?),
            Some(calendar) => pack_bytes(&calendar_text(calendar, clock), out)?,
        }
        pack_bytes(&count.header(quota), out)?;
    }
    Ok(())
}

fn pack_bytes(bytes: &[u8], out: &mut impl Write) -> io::Result<()> {
    let length = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
    encode::write_str_len(out, length)?;
    out.write_all(bytes)
}

/// Encodes a call that changes the counts of a key. Returns `None` if it changes none: a charge is a call of checks.
pub(crate) fn encode_adjust(
    script: &Script,
    names: &KeyNames,
    clock: &ServerClock,
    adjust: Adjust<'_>,
) -> Option<ScriptCall> {
    let change = ScriptChange::new(adjust.change)?;
    let mut counts = Count::all(adjust.subject);
    // Slots are given back by their holders.
    counts.retain(|count| {
        !count.name.value.has_holders()
            && !count
                .quotas
                .iter()
                .any(|(index, _)| change.was_exceeded(*index))
    });
    if counts.is_empty() {
        return None;
    }
    let keys: SmallVec<[_; 2]> = counts
        .iter()
        .map(|count| (adjust.subject, count.name))
        .collect();
    let mut call = begin(script, names, &keys);
    let mut out = call.command.writer_for_next_arg();
    // Writing to a command does not fail.
    let _ = pack_change(&change, &counts, call.number, clock, &mut out);
    drop(out);
    Some(call)
}

/// A change as the script reads it.
struct ScriptChange<'a> {
    what: &'static str,
    /// The units to change, the time of the charge, its cost, and what is held of it.
    numbers: [u64; 4],
    /// The answers of the quotas whose charge is given back.
    answers: &'a [QuotaAnswer],
}

impl<'a> ScriptChange<'a> {
    /// `None` for a charge, which is a call of checks.
    fn new(change: Change<'a>) -> Option<Self> {
        match change {
            Change::Reset => Some(Self {
                what: "reset",
                numbers: [0; 4],
                answers: &[],
            }),
            Change::Refund {
                answer,
                cost,
                units,
                held,
            } => Some(Self {
                what: "refund",
                numbers: [
                    units.min(cost).into(),
                    answer.time(),
                    cost.into(),
                    held.into(),
                ],
                answers: answer.quotas(),
            }),
            Change::Credit { units } => Some(Self {
                what: "credit",
                numbers: [units.into(), 0, 0, 0],
                answers: &[],
            }),
            Change::Charge { .. } => None,
        }
    }

    /// A soft quota that was exceeded was not charged.
    fn was_exceeded(&self, quota: usize) -> bool {
        self.answers
            .get(quota)
            .is_some_and(QuotaAnswer::is_exceeded)
    }
}

fn pack_change(
    change: &ScriptChange<'_>,
    counts: &[Count<'_>],
    number: CallNumber,
    clock: &ServerClock,
    out: &mut impl Write,
) -> io::Result<()> {
    let quotas = counts.iter().flat_map(|count| &count.quotas);
    let length = quotas.clone().count();
    let before = CALL_FIELDS.len() + LIST_FIELDS.len() * counts.len() + QUOTA_FIELDS.len() * length;
    let behind = CHANGE_FIELDS.len() + RECEIPT_FIELDS.len() * length;
    pack_length((before + behind) as u64, out)?;
    // No value is read in advance.
    pack_numbers([0, before as u64 + 1, number.get().into()], out)?;
    for count in counts {
        pack_count(count, clock, out)?;
    }
    encode::write_str(out, change.what)?;
    pack_numbers(change.numbers, out)?;
    for (index, _) in quotas {
        let receipt = change
            .answers
            .get(*index)
            .map(QuotaAnswer::receipt)
            .unwrap_or_default();
        pack_numbers([receipt.generation, receipt.position], out)?;
    }
    Ok(())
}

fn script_name(quota: &Quota) -> &'static str {
    match quota.calendar() {
        None => quota.algorithm().script(),
        Some(_) => "calendar_window",
    }
}

/// Returns the window of a calendar as `fixed_window.lua` reads it: the number of the first window, and the seconds at
/// which windows begin.
fn calendar_text(calendar: &Calendar, clock: &ServerClock) -> SmallVec<[u8; 32]> {
    let (first, starts) = calendar.starts_around(clock.expected_time());
    let seconds = starts.iter().map(|start| start / 1_000_000);
    // A value stores the second at which it expires in four bytes, too, which end in 2106.
    iter::once(first)
        .chain(seconds)
        .flat_map(|number| u32::try_from(number).unwrap_or(u32::MAX).to_be_bytes())
        .collect()
}

#[cfg(test)]
mod tests {
    use redis::Arg::Simple;
    use rmp::decode;

    use super::*;
    use crate::decision::Holding;
    use crate::key::Key;
    use crate::quota::{Algorithm, Quotas};
    use crate::store::requests::OwnedCheck;

    /// Limiter, key, quotas and cost.
    type Level<'a> = (&'a str, &'a str, &'a Quotas, u32);

    /// The keys and arguments of a call of these entries, each with its number of checks. Of a header, its code.
    fn words(entries: &[(&[Level<'_>], u32)]) -> String {
        let owned = |(limiter, key, quotas, cost): &Level<'_>| {
            let [limiter, key] = [*limiter, *key].map(Key::from);
            Subject::new(&limiter, &key, quotas).check(*cost).owned()
        };
        let levels = entries.iter().map(|(levels, _)| levels.iter().map(owned));
        let levels: Vec<Vec<OwnedCheck>> = levels.map(Iterator::collect).collect();
        let entries = levels.iter().zip(entries.iter().map(|(_, count)| *count));
        words_of(entries)
    }

    fn words_of<'a>(entries: impl Iterator<Item = (&'a Vec<OwnedCheck>, u32)>) -> String {
        let entries: Vec<_> = entries
            .map(|(levels, count)| BatchEntry {
                levels,
                count,
                may_repeat: true,
            })
            .collect();
        let names = KeyNames::default().with_prefix("p");
        let scripts = Scripts::shared();
        let (_, call, _) = encode_checks(&scripts, &names, &ServerClock::default(), &entries);
        let args = call.command.args_iter().skip(3).map(|arg| match arg {
            Simple(bytes) => bytes.to_vec(),
            _ => unreachable!(),
        });
        let mut args: Vec<_> = args.collect();
        let packed = args.pop().unwrap();
        let mut rest = &*packed;
        let keys = args.into_iter().map(|arg| String::from_utf8(arg).unwrap());
        let mut words: Vec<_> = keys.collect();
        let first = words.len();
        while let Some(first) = rest.first() {
            words.push(if first & 0xe0 == 0xa0 || *first == 0xd9 {
                let length = decode::read_str_len(&mut rest).unwrap();
                let (text, behind) = rest.split_at(usize::try_from(length).unwrap());
                rest = behind;
                let text = String::from_utf8_lossy(text);
                let is_name = text.chars().all(|c| c.is_ascii_lowercase() || c == '_');
                text.chars()
                    .take(if is_name { text.len() } else { 1 })
                    .collect()
            } else {
                decode::read_int::<u64, _>(&mut rest).unwrap().to_string()
            });
        }
        // The number of the call is another one each time.
        words[first + 2] = "#".to_owned();
        words.join(" ")
    }

    #[test]
    fn lists_and_keys_travel_once_and_entries_that_are_alike_as_one_group() {
        let two = Quotas::from([Quota::per_second(5), Quota::per_second(9)]);
        let equal = two.clone();
        let one = Quotas::from(Quota::per_minute(7));
        let expected = "p:v3:{l,a}:log p:v3:{l,b}:log p:v3:{l,c}:log p:v3:{l,d}:log p:v3:{l,e}:log \
            5 28 # 2 log 0 0 3000 0 sliding_log 9 1000000 l sliding_log 5 1000000 l \
            1 log 0 0 121000 0 sliding_log 7 60000000 l \
            0 11 2 1 0 0 1 0 4 3 1 \
            0 11 1 1 0 0 1 0 18 4 2 \
            1 11 2 1 0 0 1 0 18 4 3 \
            0 11 1 2 0 0 1 0 18 4 5";
        let entries: [(&[Level<'_>], u32); 6] = [
            (&[("l", "a", &two, 3)], 1),
            (&[("l", "b", &equal, 3)], 1),
            // Not usual: an earlier entry has its value.
            (&[("l", "b", &one, 4)], 1),
            (&[("l", "c", &one, 4)], 1),
            (&[("l", "d", &one, 4)], 1),
            // Nor are two checks.
            (&[("l", "e", &one, 4)], 2),
        ];
        assert_eq!(words(&entries), expected);
    }

    #[test]
    fn entries_of_several_levels_have_the_keys_of_all_and_share_them() {
        let [user, service] = [5, 1_000].map(|limit| Quotas::from(Quota::per_second(limit)));
        let tree = |key| [("u", key, &user, 1), ("s", "all", &service, 2)];
        let expected = "p:v3:{u,ada}:log p:v3:{s,all}:log p:v3:{u,bob}:log \
            3 24 # 1 log 0 0 3000 0 sliding_log 5 1000000 l 1 log 0 0 3000 0 sliding_log 1000 1000000 l \
            0 16 2 1 0 0 2 1 4 1 14 2 1 2 3 2";
        assert_eq!(words(&[(&tree("ada"), 1), (&tree("bob"), 1)]), expected);
    }

    #[test]
    fn long_logs_and_sorted_sets_stand_behind_the_values_that_are_read_whole() {
        let of = |algorithm| Quota::per_minute(9).with_algorithm(algorithm);
        let [set, window] = [Algorithm::SortedSetLog, Algorithm::FixedWindow].map(of);
        let quotas = Quotas::from([set, Quota::per_minute(5_000), window]);
        let expected = "p:v3:{l,a} p:v3:{l,a}:log p:v3:{l,a}:set:60000000 \
            1 34 # 1 counters 0 0 121000 0 fixed_window 9 60000000 f \
            1 log 1 0 121000 0 sliding_log 5000 60000000 l \
            1 sorted_set 0 0 121000 0 sorted_set_log 9 60000000  \
            0 17 1 1 0 0 3 0 4 2 14 2 24 2 1 2 3";
        assert_eq!(words(&[(&[("l", "a", &quotas, 2)], 1)]), expected);
    }

    #[test]
    fn a_soft_quota_is_a_level_with_a_value_of_its_own() {
        let quotas = Quotas::from([Quota::per_second(9), Quota::per_second(5).soft()]);
        let expected = "p:v3:{l,a}:log p:v3:{l,a}:log:soft:1000000 \
            2 24 # 1 log 0 0 3000 0 sliding_log 9 1000000 l 1 log 0 0 3000 1 sliding_log 5 1000000 l \
            0 14 1 1 0 0 2 0 4 2 14 2 1 2";
        assert_eq!(words(&[(&[("l", "a", &quotas, 2)], 1)]), expected);
        // Alone, it is not usual.
        let alone = Quotas::from(Quota::per_second(5).soft());
        let expected = "p:v3:{l,a}:log:soft:1000000 1 14 # 1 log 0 0 3000 1 sliding_log 5 1000000 l \
            0 11 1 1 0 0 1 0 4 2 1";
        assert_eq!(words(&[(&[("l", "a", &alone, 2)], 1)]), expected);
    }

    #[test]
    fn a_soft_log_is_asked_with_a_cost_that_never_fits_if_the_cost_is_too_large_for_a_log() {
        let hard = Quota::per_second(900_000).with_algorithm(Algorithm::SlidingBuckets(1));
        let soft = Quota::per_second(u32::MAX).soft();
        let quotas = Quotas::from([hard, soft]);
        let words_at = |cost| words(&[(&[("l", "a", &quotas, cost)], 1)]);
        for (cost, of_soft) in [(100_000, 100_000), (100_001, 1_u64 << 32)] {
            let words = words_at(cost);
            let levels = format!("0 14 1 1 0 0 2 0 4 {of_soft} 14 {cost} 2 1");
            assert!(words.ends_with(&levels), "{words}");
        }
    }

    fn holding(sequence: u64, wanted: u32) -> Holding {
        let lease = std::time::Duration::from_secs(15);
        // Bytes that are shown as one letter.
        Holding::new([b'H'; 16], sequence, 2, wanted, lease)
    }

    #[test]
    fn slots_are_a_level_whose_cost_is_what_the_holder_wants() {
        let quotas = Quotas::from([Quota::in_flight(5), Quota::per_second(9)]);
        let [limiter, key] = ["l", "a"].map(Key::from);
        let check = Subject::new(&limiter, &key, &quotas).check(4);
        let owned = |holding: &Holding| vec![check.with_holding(holding).owned()];
        let same = holding(7, 3);
        let entries = [
            owned(&same),
            owned(&same),
            owned(&holding(8, 3)),
            vec![check.owned()],
        ];
        // Each message is a list of its own, and a look is one without a header. The last is a group of one entry.
        let lists = |header: &str| {
            format!(
                "1 log 0 0 3000 0 sliding_log 9 1000000 l 1 in_flight 0 0 31000 0 in_flight 5 15000000 {header} "
            )
        };
        let expected = [
            "p:v3:{l,a}:log p:v3:{l,a}:slots 2 64 # ",
            &lists("H"),
            &lists("H"),
            &lists(""),
            "0 16 2 1 0 0 2 1 4 4 14 3 1 2 1 2 ",
            "0 14 1 1 0 0 2 1 24 4 34 3 1 2 ",
            "0 14 1 1 0 0 2 1 44 4 54 0 1 2",
        ];
        assert_eq!(
            words_of(entries.iter().map(|levels| (levels, 1))),
            expected.concat()
        );
    }

    #[test]
    fn a_message_is_packed_as_the_header_of_the_quota() {
        let quotas = Quotas::from(Quota::in_flight(5));
        let messages = [
            (holding(7, 3), [0.0, 0.0], 0),
            (holding(7, 3).stated(), [0.0, 0.0], 1),
            (holding(7, 0), [0.0, 0.0], 1),
            (holding(7, 3).with_spent(9, 8), [9.0, 8.0], 1),
        ];
        let [limiter, key] = ["l", "a"].map(Key::from);
        let mut counts = Count::all(Subject::new(&limiter, &key, &quotas));
        let header = |count: &Count<'_>| count.header(quotas.single().unwrap()).to_vec();
        assert!(header(&counts[0]).is_empty());
        for (message, sums, is_stated) in &messages {
            counts[0].holding = Some(message);
            let mut expected = vec![b'H'; 16];
            expected.extend(7.0_f64.to_be_bytes());
            expected.extend([2_u32, 15_000].map(u32::to_be_bytes).concat());
            expected.extend(sums.map(f64::to_be_bytes).concat());
            expected.push(*is_stated);
            assert_eq!(header(&counts[0]), expected);
        }
    }

    #[test]
    fn a_change_has_no_slots_and_is_not_sent_for_slots_alone() {
        let [limiter, key] = ["l", "a"].map(Key::from);
        let keys = |quotas: &Quotas| {
            let reset = Subject::new(&limiter, &key, quotas).adjust(Change::Reset);
            let (names, clock) = (KeyNames::default(), ServerClock::default());
            let script = &Scripts::shared().refund;
            let call = encode_adjust(script, &names, &clock, reset)?;
            let arg = call.command.args_iter().nth(2);
            arg.and_then(|arg| match arg {
                Simple(number) => Some(number.to_vec()),
                _ => None,
            })
        };
        let slots = Quota::in_flight(5);
        assert_eq!(keys(&slots.clone().into()), None);
        let both = Quotas::from([slots, Quota::per_second(9)]);
        assert_eq!(keys(&both), Some(b"1".to_vec()));
    }

    #[test]
    fn inexact_products_are_not_usual() {
        for (algorithm, is_inexact) in [
            (Algorithm::Gcra, true),
            (Algorithm::SlidingCounter, true),
            (Algorithm::FixedWindow, false),
        ] {
            let is_usual = |limit, micros| {
                let quota = Quota::new(limit, std::time::Duration::from_micros(micros));
                let quotas = Quotas::from(quota.with_algorithm(algorithm));
                let called = words(&[(&[("l", "a", &quotas, 1)], 1)]);
                called.contains(" 1 11 1 1 0 0 1 0 4 1 1")
            };
            assert!(is_usual(100, 60_000_000));
            // Beyond 2^53, and beyond 2^64.
            assert_eq!(is_usual(1_000_000_000, 10_000_000), !is_inexact);
            assert_eq!(is_usual(u32::MAX, 366 * 86_400_000_000), !is_inexact);
        }
    }
}
