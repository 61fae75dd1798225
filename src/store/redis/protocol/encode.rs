//! Encodes checks, refunds and credits as commands that call the script.

use std::io::{self, Write};
use std::ops::Range;

use hashbrown::HashTable;
use redis::{Cmd, RedisWrite};
use rmp::encode;
use smallvec::SmallVec;

use super::fields::{
    CALL_FIELDS, CREDIT_COUNT_FIELDS, CREDIT_FIELDS, LEVEL_FIELDS, PLACE_FIELDS, QUOTA_FIELDS,
    QUOTA_LIST_FIELDS, REFUND_FIELDS, RUN_FIELDS,
};
use super::key_names::KeyNames;
use super::server_clock::ServerClock;
use crate::algorithm::time_to_live_millis;
use crate::key::Fingerprint;
use crate::quota::{Algorithm, Calendar, Quota, Quotas};
use crate::store::redis::script::Script;
use crate::store::requests::{Check, Credit, OwnedCheck, Refund, Reset, Subject};

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

/// Identical checks, of one level or several. The script decides them one after the other, as if each had
/// arrived alone.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BatchEntry<'a> {
    pub(crate) levels: &'a [OwnedCheck],
    pub(crate) count: u32,
    /// Whether an earlier entry of the call may have a limiter and key of this one.
    pub(crate) may_repeat: bool,
}

impl<'a> BatchEntry<'a> {
    /// Creates the entry of a call that has no other.
    pub(crate) fn only(levels: &'a [OwnedCheck]) -> Self {
        Self {
            levels,
            count: 1,
            may_repeat: false,
        }
    }

    /// Returns how many units the entry asks for beyond its cost.
    pub(crate) fn more(&self) -> u32 {
        match self.levels {
            [level] => level.check().more(),
            _ => 0,
        }
    }

    fn checks(&self) -> impl Iterator<Item = Check<'a>> + use<'a> {
        self.levels.iter().map(OwnedCheck::check)
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

/// Entries in a row that have several levels, and whose replies are shared.
#[derive(Clone, Debug)]
pub(crate) struct RunOfLevels {
    /// The place of the first entry among all entries of the call.
    pub(crate) first: usize,
    pub(crate) entries: usize,
    /// The number of the value of each level of each entry.
    pub(crate) values: Vec<u64>,
}

/// Encodes a call that decides these entries in order. Returns the runs of several levels too.
pub(crate) fn encode_checks(
    script: &Script,
    names: &KeyNames,
    clock: &ServerClock,
    entries: &[BatchEntry<'_>],
    lists: ListKeys,
) -> (Cmd, Vec<RunOfLevels>) {
    let (quota_lists, places) = QuotaLists::of(entries, lists);
    let keys = usize::try_from(places.keys).unwrap_or_default();
    let mut call = script.call(keys, 1, KEY_NAME_CAPACITY);
    let mut written = 0;
    places.for_each_level(entries, |check, place| {
        if place.value > written {
            written = place.value;
            names.write_value(check.subject, &mut call);
        }
    });
    if places.keys > places.values {
        places.for_each_level(entries, |check, place| {
            // Those of a repeated subject are written.
            if place.extra > written {
                for quota in extras(check.quotas(), lists) {
                    written += 1;
                    names.write_extra(check.subject, quota, &mut call);
                }
            }
        });
    }
    let runs = quota_lists.runs(entries, &places.places);
    // Writing to a command does not fail.
    let _ = quota_lists.pack(clock, &places, &runs, &mut call.writer_for_next_arg());
    (call, runs_of_levels(&runs, &places.places))
}

fn runs_of_levels(runs: &[EntryRun<'_>], places: &[Place]) -> Vec<RunOfLevels> {
    let mut first = 0;
    let runs = runs.iter().filter_map(|run| {
        let entries = usize::try_from(run.entries).unwrap_or_default();
        first += entries;
        let has_levels = run.first.levels.len() > 1;
        has_levels.then(|| RunOfLevels {
            first: first - entries,
            entries,
            values: run
                .places_in(places)
                .iter()
                .map(|place| place.value)
                .collect(),
        })
    });
    runs.collect()
}

/// The places of the quotas and keys of all levels of a call. The extra keys follow the values.
#[derive(Default)]
struct Places {
    places: SmallVec<[Place; 64]>,
    /// The number of values, one for each subject.
    values: u64,
    /// The number of all keys.
    keys: u64,
}

impl Places {
    /// Calls `f` with each level of these entries, and its places.
    fn for_each_level<'a>(&self, entries: &[BatchEntry<'a>], mut f: impl FnMut(Check<'a>, &Place)) {
        let mut places = self.places.iter();
        for entry in entries {
            for (check, place) in entry.checks().zip(&mut places) {
                f(check, place);
            }
        }
    }
}

/// The places of the quotas and keys of one level. All are numbers from 1, as Lua counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Place {
    quota_list: u64,
    /// 0 if no count is packed.
    value: u64,
    /// The key that is its first extra key; 0 if it has none.
    extra: u64,
}

/// The places of subjects that a later entry may have too.
#[derive(Default)]
struct KnownPlaces(HashTable<(Fingerprint, Place)>);

impl KnownPlaces {
    fn find(&self, subject: Subject<'_>, is_fit: impl Fn(&Place) -> bool) -> Option<Place> {
        let subject = subject.fingerprint();
        let is_of_subject =
            |(known, place): &(Fingerprint, Place)| *known == subject && is_fit(place);
        let found = self.0.find(subject.hash(), is_of_subject);
        found.map(|(_, place)| *place)
    }

    fn insert(&mut self, subject: Subject<'_>, place: Place) {
        let subject = subject.fingerprint();
        let hash = |(known, _): &(Fingerprint, Place)| known.hash();
        self.0.insert_unique(subject.hash(), (subject, place), hash);
    }
}

/// Entries in a row with the same number of checks, and levels of the same quotas and costs.
struct EntryRun<'a> {
    entries: u64,
    first: BatchEntry<'a>,
    /// The places of all levels of all entries; of one level, the place of the first entry only, since the keys of
    /// the others follow each other.
    places: Range<usize>,
    /// The place that another entry of one level continues the run with.
    next: Place,
    /// The numbers of keys of an entry of one level.
    values: u64,
    extras: u64,
}

impl EntryRun<'_> {
    fn fields(&self) -> usize {
        RUN_FIELDS.len()
            + LEVEL_FIELDS.len() * self.first.levels.len()
            + PLACE_FIELDS.len() * self.places.len()
    }

    /// Returns whether an entry with these places continues the run.
    fn is_continued_by(&self, entry: &BatchEntry<'_>, own: &[Place], places: &[Place]) -> bool {
        let (first, levels) = (self.first.levels, entry.levels);
        if self.first.count != entry.count || first.len() != levels.len() {
            return false;
        }
        // The usual case is one level.
        if let ([first], [level], [place]) = (first, levels, own) {
            let (first, check) = (first.check(), level.check());
            let costs = |check: Check<'_>| (check.cost(), check.more());
            return costs(first) == costs(check) && self.next == *place;
        }
        let levels = first.iter().zip(levels);
        let mut levels = levels.zip(self.places_in(places).iter().zip(own));
        levels.all(|((first, level), (place, own))| {
            first.check().cost() == level.check().cost() && place.quota_list == own.quota_list
        })
    }

    /// Adds an entry, whose places these are.
    fn push(&mut self, places: Range<usize>) {
        self.entries += 1;
        self.next.value += self.values;
        self.next.extra += self.extras;
        if self.first.levels.len() > 1 {
            self.places.end = places.end;
        }
    }

    fn places_in<'p>(&self, places: &'p [Place]) -> &'p [Place] {
        places.get(self.places.clone()).unwrap_or_default()
    }

    fn pack(&self, places: &[Place], out: &mut impl Write) -> io::Result<()> {
        let places = self.places_in(places);
        encode::write_uint(out, self.entries)?;
        encode::write_uint(out, self.first.count.into())?;
        encode::write_uint(out, self.first.more().into())?;
        encode::write_uint(out, self.first.levels.len() as u64)?;
        for (check, place) in self.first.checks().zip(places) {
            encode::write_uint(out, place.quota_list)?;
            encode::write_uint(out, check.cost().into())?;
        }
        for place in places {
            encode::write_uint(out, place.value)?;
            encode::write_uint(out, place.extra)?;
        }
        Ok(())
    }
}

/// A list of quotas in a call.
struct QuotaList<'a> {
    quotas: &'a Quotas,
    needs_value: bool,
    /// The number of its extra keys.
    extras: u64,
}

/// The distinct lists of quotas in a call; most calls have one.
struct QuotaLists<'a> {
    lists: SmallVec<[QuotaList<'a>; 4]>,
    keys: ListKeys,
}

impl<'a> QuotaLists<'a> {
    fn of(entries: &[BatchEntry<'a>], keys: ListKeys) -> (Self, Places) {
        let mut lists = Self {
            lists: SmallVec::new(),
            keys,
        };
        let repeats = entries.iter().any(|entry| entry.may_repeat);
        let (mut places, mut known) = (Places::default(), KnownPlaces::default());
        let mut extra_keys = 0;
        for entry in entries {
            for check in entry.checks() {
                let index = lists.find_or_add(check.quotas());
                let Some(list) = lists.lists.get(index) else {
                    continue;
                };
                let mut place = Place {
                    quota_list: index as u64 + 1,
                    ..Place::default()
                };
                if repeats {
                    let same =
                        known.find(check.subject, |known| known.quota_list == place.quota_list);
                    if let Some(place) = same {
                        places.places.push(place);
                        continue;
                    }
                    let shared = known.find(check.subject, |known| known.value > 0);
                    place.value = shared.map_or(0, |known| known.value);
                }
                if list.needs_value && place.value == 0 {
                    places.values += 1;
                    place.value = places.values;
                }
                if list.extras > 0 {
                    place.extra = extra_keys + 1;
                    extra_keys += list.extras;
                }
                if repeats {
                    known.insert(check.subject, place);
                }
                places.places.push(place);
            }
        }
        if extra_keys > 0 {
            for place in places.places.iter_mut().filter(|place| place.extra > 0) {
                place.extra += places.values;
            }
        }
        places.keys = places.values + extra_keys;
        (lists, places)
    }

    /// Returns the index of a list.
    fn find_or_add(&mut self, quotas: &'a Quotas) -> usize {
        let known = self.lists.iter().position(|list| list.quotas == quotas);
        known.unwrap_or_else(|| {
            self.lists.push(QuotaList {
                quotas,
                needs_value: needs_value(quotas),
                extras: extras(quotas, self.keys).count() as u64,
            });
            self.lists.len() - 1
        })
    }

    fn runs<'e>(
        &self,
        entries: &[BatchEntry<'e>],
        places: &[Place],
    ) -> SmallVec<[EntryRun<'e>; 4]> {
        let mut runs = SmallVec::<[EntryRun<'_>; 4]>::new();
        let mut start = 0;
        for entry in entries {
            let range = start..start + entry.levels.len();
            start = range.end;
            let own = places.get(range.clone()).unwrap_or_default();
            match runs.last_mut() {
                Some(run) if run.is_continued_by(entry, own, places) => run.push(range),
                _ => runs.push(self.run_of(*entry, range, own)),
            }
        }
        runs
    }

    /// Begins a run with an entry.
    fn run_of<'e>(
        &self,
        entry: BatchEntry<'e>,
        places: Range<usize>,
        own: &[Place],
    ) -> EntryRun<'e> {
        let first = own.first().copied().unwrap_or_default();
        let list = usize::try_from(first.quota_list).unwrap_or_default();
        let list = self.lists.get(list.saturating_sub(1));
        let (values, extras) = (
            u64::from(first.value > 0),
            list.map_or(0, |list| list.extras),
        );
        EntryRun {
            entries: 1,
            first: entry,
            places,
            next: Place {
                value: first.value + values,
                extra: first.extra + extras,
                ..first
            },
            values,
            extras,
        }
    }

    /// Packs the lists and the runs of entries in the format of `cmsgpack`.
    fn pack(
        &self,
        clock: &ServerClock,
        places: &Places,
        runs: &[EntryRun<'_>],
        out: &mut impl Write,
    ) -> io::Result<()> {
        let of_lists = self
            .lists
            .iter()
            .map(|list| QUOTA_LIST_FIELDS.len() + QUOTA_FIELDS.len() * list.quotas.len());
        let of_runs = runs.iter().map(EntryRun::fields);
        let fields = CALL_FIELDS.len() + of_lists.sum::<usize>() + of_runs.sum::<usize>();
        if fields > MAX_UNWRAPPED_VALUES {
            encode::write_array_len(out, u32::try_from(fields).unwrap_or(u32::MAX))?;
        }
        encode::write_uint(out, self.lists.len() as u64)?;
        encode::write_uint(out, places.values)?;
        self.pack_lists(clock, out)?;
        for run in runs {
            run.pack(&places.places, out)?;
        }
        Ok(())
    }

    fn pack_lists(&self, clock: &ServerClock, out: &mut impl Write) -> io::Result<()> {
        for QuotaList { quotas, .. } in &self.lists {
            let extras = extra_numbers(quotas, self.keys, 1);
            encode::write_uint(out, quotas.len() as u64)?;
            for (quota, counter) in quotas.with_counters() {
                let algorithm = quota.counted_by();
                encode::write_str(out, script_of(quota))?;
                encode::write_uint(out, algorithm.parts())?;
                encode::write_uint(out, counter as u64 + 1)?;
                encode::write_uint(out, extras.get(counter).copied().unwrap_or_default())?;
                encode::write_uint(out, quota.limit().into())?;
                match quota.calendar() {
                    None => drop(encode::write_uint(out, quota.counted_micros())?),
                    Some(calendar) => {
                        let window = calendar_text(quota, calendar, clock);
                        encode::write_str_len(out, CALENDAR_TEXT_LENGTH)?;
                        out.write_all(&window)?;
                    }
                }
                encode::write_str(out, &ttl_millis(quota).to_string())?;
            }
        }
        Ok(())
    }
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
    clock: &ServerClock,
    refund: &Refund<'_>,
    lists: ListKeys,
) -> Cmd {
    let quotas = refund.quotas();
    let args = quotas.strictest().count() * REFUND_FIELDS.len();
    let mut call = call_for_counts(script, names, refund.subject, lists, args);
    let extras = extra_numbers(quotas, lists, first_extra(quotas));
    let answers = refund.answer().quotas();
    let charged = quotas.strictest_with_index();
    let charged = charged.filter_map(|(index, quota)| Some((quota, answers.get(index)?)));
    for ((quota, answer), extra) in charged.zip(extras) {
        let receipt = answer.receipt();
        write_quota(quota, extra, clock, &mut call);
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
    clock: &ServerClock,
    credit: &Credit<'_>,
    lists: ListKeys,
) -> Cmd {
    encode_counts(script, names, clock, credit.subject, lists, credit.units())
}

/// Encodes a call that forgets the counts of a subject.
pub(crate) fn encode_reset(
    script: &Script,
    names: &KeyNames,
    clock: &ServerClock,
    reset: &Reset<'_>,
    lists: ListKeys,
) -> Cmd {
    encode_counts(script, names, clock, reset.subject, lists, ALL_UNITS)
}

/// The units of a credit that forgets the counts.
const ALL_UNITS: i64 = -1;

fn encode_counts(
    script: &Script,
    names: &KeyNames,
    clock: &ServerClock,
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
        write_quota(quota, extra, clock, &mut call);
    }
    call
}

/// Writes the arguments with which refunds and credits describe a count.
fn write_quota(quota: &Quota, extra: u64, clock: &ServerClock, call: &mut Cmd) {
    call.write_arg(script_of(quota).as_bytes());
    call.arg(quota.counted_by().parts()).arg(extra);
    call.arg(quota.limit());
    match quota.calendar() {
        None => call.arg(quota.counted_micros()),
        Some(calendar) => call.arg(calendar_text(quota, calendar, clock).as_slice()),
    };
    call.arg(ttl_millis(quota));
}

/// Returns the name of the file in `lua/` that decides the quota.
fn script_of(quota: &Quota) -> &'static str {
    match quota.calendar() {
        None => quota.counted_by().facts().script,
        Some(_) => "calendar_window",
    }
}

const CALENDAR_TEXT_LENGTH: u32 = 34;

/// Returns the window of a calendar as `calendar_window.lua` reads it: the number that stands for it, the number of the
/// first window, and the seconds at which windows begin.
fn calendar_text(quota: &Quota, calendar: &Calendar, clock: &ServerClock) -> SmallVec<[u8; 40]> {
    let (first, starts) = calendar.starts_around(clock.expected_time());
    let [_, _, counted_micros @ ..] = quota.counted_micros().to_be_bytes();
    let mut text = SmallVec::from_slice(&counted_micros);
    let starts = starts.iter().map(|start| start / 1_000_000);
    for number in [first].into_iter().chain(starts) {
        // A value stores the second at which it expires in four bytes, too, which end in 2106.
        let number = u32::try_from(number).unwrap_or(u32::MAX);
        text.extend_from_slice(&number.to_be_bytes());
    }
    text
}

fn ttl_millis(quota: &Quota) -> u64 {
    time_to_live_millis(quota.longest_counted_micros())
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
        let levels = entries.iter().zip(&keys);
        let levels: Vec<[OwnedCheck; 1]> = levels
            .map(|((_, quotas, cost, _), key)| [Check::new(&limiter, key, quotas, *cost).into()])
            .collect();
        let entries: Vec<_> = entries
            .iter()
            .zip(&levels)
            .map(|((.., count), levels)| BatchEntry {
                levels,
                count: *count,
                may_repeat: true,
            })
            .collect();
        packed_words(&entries, lists)
    }

    /// The keys and arguments of a call.
    fn packed_words(entries: &[BatchEntry<'_>], lists: ListKeys) -> String {
        let (call, _) = encode_checks(
            &Scripts::shared().decide,
            &KeyNames::default().with_prefix("p"),
            &ServerClock::default(),
            entries,
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
                2 1 0 1 1 3 1 0 2 1 0 1 2 4 2 0 1 2 0 1 2 4 4 0 1 2 0 1 2 4 1 0",
                &quota_lists[2..]
            )
        );
    }

    #[test]
    fn entries_of_several_levels_have_the_places_of_all_and_share_keys() {
        let user = Quotas::from(Quota::per_second(5));
        let service = Quotas::from(Quota::per_second(1_000));
        let tree = |key: &str, cost| -> [OwnedCheck; 2] {
            let [limiter, key, all] = ["u", key, "all"].map(Key::from);
            [
                Check::new(&limiter, &key, &user, 1).into(),
                Check::new(&all, &all, &service, cost).into(),
            ]
        };
        let trees = [tree("a", 1), tree("b", 1), tree("a", 2)];
        let entry = |levels, count| BatchEntry {
            levels,
            count,
            may_repeat: true,
        };
        let alone = &trees[1][1..];
        let entries = [
            entry(&trees[0], 1),
            entry(&trees[1], 1),
            entry(&trees[2], 1),
            entry(alone, 1),
            entry(&trees[2], 7),
        ];
        let quota_lists =
            "1 sliding_log 1 1 0 5 1000000 3000 1 sliding_log 1 1 1 1000 1000000 3000";
        assert_eq!(
            packed_words(&entries, ListKeys::OfLargeLimits),
            format!(
                "4 p:v2:{{u,a}} p:v2:{{all,all}} p:v2:{{u,b}} p:v2:{{all,all}}:log:1000000 2 3 \
                {quota_lists} 2 1 0 2 1 1 2 1 1 0 2 4 3 0 2 4 1 1 0 2 1 1 2 2 1 0 2 4 \
                1 1 0 1 2 1 2 4 1 7 0 2 1 1 2 2 1 0 2 4"
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
            said.ends_with(&format!(" 1 2 {list} 2 1 0 1 1 1 1 3")),
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
