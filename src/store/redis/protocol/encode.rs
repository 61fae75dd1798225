//! Encodes checks, refunds and credits as commands that call the script.

use std::io::{self, Write};
use std::ops::Range;

use hashbrown::HashTable;
use redis::{Cmd, RedisWrite};
use rmp::encode;
use smallvec::SmallVec;

use super::counts::{Count, Value, header};
use super::fields::{
    CALL_FIELDS, CHANGE_FIELDS, KEY_FIELDS, LEVEL_FIELDS, LIST_FIELDS, QUOTA_FIELDS,
    RECEIPT_FIELDS, RUN_FIELDS,
};
use super::key_names::KeyNames;
use super::server_clock::ServerClock;
use crate::decision::Receipt;
use crate::key::Fingerprint;
use crate::quota::{Calendar, Quota, Quotas};
use crate::store::redis::script::{Script, Scripts};
use crate::store::requests::{Check, Credit, OwnedCheck, Refund, Reset, Subject};

/// Bytes that a command reserves for a key name.
const KEY_NAME_CAPACITY: usize = 64;

/// The most values that are packed one after the other, which halves the time to unpack them. More are
/// packed as one array: a Lua function returns at most 8 000 values.
const MAX_UNWRAPPED_VALUES: usize = 4_000;

/// The most units that the checks of one entry may ask for together. The queue splits larger entries: each unit of a
/// sorted set takes Redis half a microsecond.
pub(crate) const MAX_ENTRY_UNITS: u64 = 100_000;

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
    pub(super) fn more(&self) -> u32 {
        match self.levels {
            [level] => level.check().more(),
            _ => 0,
        }
    }

    pub(super) fn checks(&self) -> impl Iterator<Item = Check<'a>> + use<'a> {
        self.levels.iter().map(OwnedCheck::check)
    }
}

/// How a call asks the script: the counts of the lists of quotas in it, and its entries in runs. The reply is in the same
/// order.
#[derive(Debug, Default)]
pub(crate) struct CallPlan<'a> {
    lists: SmallVec<[QuotaList<'a>; 4]>,
    pub(super) runs: SmallVec<[Run; 4]>,
    /// The number of the key of each level of each entry.
    numbers: SmallVec<[u64; 64]>,
    /// The keys that are read before the script decides, and the others behind them.
    whole: u64,
    apart: u64,
    /// The place among the arguments behind all lists.
    end_of_lists: u64,
}

/// A list of quotas in a call.
#[derive(Debug)]
struct QuotaList<'a> {
    quotas: &'a Quotas,
    /// Its counts, each with the place of its description among the arguments.
    counts: SmallVec<[(u64, Count<'a>); 1]>,
}

/// Entries in a row with the same number of checks, and levels of the same counts and costs.
#[derive(Debug)]
pub(super) struct Run {
    /// Whether the loop of the script may decide it.
    pub(super) is_usual: bool,
    pub(super) entries: Range<usize>,
    count: u32,
    more: u32,
    pub(super) levels: SmallVec<[Level; 2]>,
    /// Where the numbers of the keys are, level by level of each entry.
    numbers: Range<usize>,
}

/// A count of a level of a check: to the script, each is a level.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Level {
    /// Which list of quotas, and which of its counts.
    list: usize,
    count: usize,
    pub(super) cost: u32,
    /// Whether several entries of the run have one value, which replies once.
    pub(super) is_shared: bool,
}

impl Level {
    /// Returns whether it is the first count of a check.
    pub(super) fn is_first_of_check(&self) -> bool {
        self.count == 0
    }
}

/// Marks the number of a key that is not read whole: these follow the others.
const APART: u64 = 1 << 32;

impl<'a> CallPlan<'a> {
    fn of(entries: &[BatchEntry<'a>]) -> Self {
        let mut plan = Self {
            end_of_lists: CALL_FIELDS.len() as u64 + 1,
            ..Self::default()
        };
        let repeats = entries.iter().any(|entry| entry.may_repeat);
        let (mut known, mut uses) = (KnownKeys::default(), Uses::default());
        for (index, entry) in entries.iter().enumerate() {
            let (first, mut levels, mut is_new) = (plan.numbers.len(), SmallVec::new(), true);
            for check in entry.checks() {
                let list = plan.find_or_add(check.quotas());
                let counts = plan.lists.get(list).map_or(0, |list| list.counts.len());
                for count in 0..counts {
                    let known_number = plan
                        .value_of(list, count)
                        .and_then(|value| known.find(check.subject, value).filter(|_| repeats));
                    is_new &= known_number.is_none();
                    let number = known_number.unwrap_or_else(|| plan.add_key(list, count));
                    if let (None, true, Some(value)) =
                        (known_number, repeats, plan.value_of(list, count))
                    {
                        known.insert(check.subject, value, number);
                    }
                    plan.numbers.push(number);
                    levels.push(Level {
                        list,
                        count,
                        cost: check.cost(),
                        is_shared: false,
                    });
                }
            }
            plan.add_entry(index, entry, levels, first, is_new, &mut uses);
        }
        let whole = plan.whole;
        for number in plan.numbers.iter_mut().filter(|number| **number >= APART) {
            *number = *number - APART + whole;
        }
        if !plan.has_loop() {
            for run in &mut plan.runs {
                run.is_usual = false;
            }
        }
        plan
    }

    /// Returns the index of a list.
    fn find_or_add(&mut self, quotas: &'a Quotas) -> usize {
        let known = self.lists.iter().position(|list| list.quotas == quotas);
        known.unwrap_or_else(|| {
            let counts = Count::all(quotas).into_iter().map(|count| {
                let place = self.end_of_lists;
                let fields = LIST_FIELDS.len() + QUOTA_FIELDS.len() * count.quotas.len();
                self.end_of_lists += fields as u64;
                (place, count)
            });
            let counts = counts.collect();
            self.lists.push(QuotaList { quotas, counts });
            self.lists.len() - 1
        })
    }

    fn described(&self, list: usize, count: usize) -> Option<&(u64, Count<'a>)> {
        self.lists.get(list)?.counts.get(count)
    }

    fn value_of(&self, list: usize, count: usize) -> Option<Value> {
        Some(self.described(list, count)?.1.value)
    }

    /// Returns what a level counts.
    pub(super) fn count_of(&self, level: &Level) -> Option<&Count<'a>> {
        Some(&self.described(level.list, level.count)?.1)
    }

    /// Returns the numbers of the keys of a run, level by level of each entry.
    pub(super) fn numbers_of(&self, run: &Run) -> &[u64] {
        self.numbers.get(run.numbers.clone()).unwrap_or_default()
    }

    /// Returns the number of a new key.
    fn add_key(&mut self, list: usize, count: usize) -> u64 {
        if self
            .described(list, count)
            .is_some_and(|(_, count)| count.is_apart())
        {
            self.apart += 1;
            APART + self.apart
        } else {
            self.whole += 1;
            self.whole
        }
    }

    /// Adds an entry to the last run, or to a new one.
    fn add_entry(
        &mut self,
        index: usize,
        entry: &BatchEntry<'a>,
        levels: SmallVec<[Level; 2]>,
        first: usize,
        is_new: bool,
        uses: &mut Uses,
    ) {
        let own = self.numbers.get(first..).unwrap_or_default();
        let is_usual = match &*levels {
            [level] => {
                is_new
                    && entry.count == 1
                    && entry.more() == 0
                    && level.cost > 0
                    && self.count_of(level).is_some_and(Count::is_usual)
            }
            _ => false,
        };
        let number = self.runs.len();
        if let Some(run) = self.runs.last_mut()
            && run.is_usual == is_usual
            && run.is_alike(entry, &levels)
        {
            let goes_on = match (own, first.checked_sub(1)) {
                ([own], Some(before)) => {
                    is_new
                        && self
                            .numbers
                            .get(before)
                            .is_some_and(|before| before + 1 == *own)
                }
                _ => uses.fit(number, own),
            };
            if goes_on {
                for (level, number_of_key) in run.levels.iter_mut().zip(own) {
                    level.is_shared |= own.len() > 1 && uses.is_used(number, *number_of_key);
                }
                run.entries.end = index + 1;
                run.numbers.end = self.numbers.len();
                uses.note(number, own);
                return;
            }
        }
        uses.note(number + 1, own);
        self.runs.push(Run {
            is_usual,
            entries: index..index + 1,
            count: entry.count,
            more: entry.more(),
            levels,
            numbers: first..self.numbers.len(),
        });
    }

    /// Returns the quota that says which script decides, or `None` if the call needs several algorithms.
    fn only_algorithm(&self) -> Option<&Quota> {
        let script = |quota: &Quota| quota.counted_by().facts().script;
        let mut quotas = self.lists.iter().flat_map(|list| list.quotas.iter());
        let first = quotas.next()?;
        quotas
            .all(|quota| script(quota) == script(first))
            .then_some(first)
    }

    fn script<'s>(&self, scripts: &'s Scripts) -> &'s Script {
        scripts.decide(self.only_algorithm().map(Quota::counted_by))
    }

    fn has_loop(&self) -> bool {
        self.only_algorithm()
            .is_some_and(|quota| !matches!(Value::of(quota), Value::SortedSet { .. }))
    }

    /// Writes the names of the keys in the order of their numbers.
    fn write_keys(&self, names: &KeyNames, entries: &[BatchEntry<'a>], call: &mut Cmd) {
        let mut written = 0;
        for is_apart in [false, true] {
            let mut numbers = self.numbers.iter();
            for entry in entries {
                for check in entry.checks() {
                    let list = self.lists.iter().find(|list| list.quotas == check.quotas());
                    let counts = list.map_or(&[][..], |list| &list.counts);
                    for ((_, count), number) in counts.iter().zip(&mut numbers) {
                        if *number > written && (*number > self.whole) == is_apart {
                            written = *number;
                            names.write_value(check.subject, count.value, call);
                        }
                    }
                }
            }
        }
    }

    /// Packs the lists and the runs in the format of `cmsgpack`.
    fn pack(&self, clock: &ServerClock, out: &mut impl Write) -> io::Result<()> {
        let fields = self.end_of_lists - 1 + self.runs.iter().map(Run::length).sum::<u64>();
        if fields > MAX_UNWRAPPED_VALUES as u64 {
            encode::write_array_len(out, u32::try_from(fields).unwrap_or(u32::MAX))?;
        }
        encode::write_uint(out, self.whole)?;
        encode::write_uint(out, self.end_of_lists)?;
        for (_, count) in self.lists.iter().flat_map(|list| &list.counts) {
            pack_count(count, clock, out)?;
        }
        for run in &self.runs {
            self.pack_run(run, out)?;
        }
        Ok(())
    }

    fn pack_run(&self, run: &Run, out: &mut impl Write) -> io::Result<()> {
        let depth = run.levels.len() as u64;
        for number in [
            run.is_usual.into(),
            run.length(),
            run.entries.len() as u64,
            run.count.into(),
            run.more.into(),
            depth,
        ] {
            encode::write_uint(out, number)?;
        }
        for level in &run.levels {
            let place = self.described(level.list, level.count);
            encode::write_uint(out, place.map_or(0, |(place, _)| *place))?;
            encode::write_uint(out, level.cost.into())?;
            encode::write_uint(out, level.is_shared.into())?;
        }
        let numbers = self.numbers_of(run).iter();
        for number in numbers.take(if depth == 1 { 1 } else { usize::MAX }) {
            encode::write_uint(out, *number)?;
        }
        Ok(())
    }
}

impl Run {
    /// Returns how many arguments the run has.
    fn length(&self) -> u64 {
        let keys = match &*self.levels {
            [_] => 1,
            _ => self.numbers.len(),
        };
        let length =
            RUN_FIELDS.len() + LEVEL_FIELDS.len() * self.levels.len() + KEY_FIELDS.len() * keys;
        length as u64
    }

    /// Returns whether an entry has the same checks.
    fn is_alike(&self, entry: &BatchEntry<'_>, levels: &[Level]) -> bool {
        let of = |level: &Level| (level.list, level.count, level.cost);
        (self.count, self.more) == (entry.count, entry.more())
            && self.levels.iter().map(of).eq(levels.iter().map(of))
    }
}

/// The keys that a later entry may have too.
#[derive(Default)]
struct KnownKeys(HashTable<(Fingerprint, Value, u64)>);

impl KnownKeys {
    fn find(&self, subject: Subject<'_>, value: Value) -> Option<u64> {
        let subject = subject.fingerprint();
        let found = self.0.find(subject.hash(), |(known, of, _)| {
            *known == subject && *of == value
        });
        found.map(|(.., number)| *number)
    }

    fn insert(&mut self, subject: Subject<'_>, value: Value, number: u64) {
        let subject = subject.fingerprint();
        let hash = |(known, ..): &(Fingerprint, Value, u64)| known.hash();
        self.0
            .insert_unique(subject.hash(), (subject, value, number), hash);
    }
}

/// The run, counted from 1, and the level in which each key of a run of several levels was used last.
#[derive(Default)]
struct Uses(Vec<(usize, usize)>);

impl Uses {
    fn of(&self, number: u64) -> (usize, usize) {
        let found = self.0.get(Self::index(number));
        found.copied().unwrap_or_default()
    }

    fn index(number: u64) -> usize {
        let index = match number.checked_sub(APART) {
            Some(apart) => 2 * apart + 1,
            None => 2 * number,
        };
        usize::try_from(index).unwrap_or_default()
    }

    fn is_used(&self, run: usize, number: u64) -> bool {
        self.of(number).0 == run
    }

    /// Returns whether no key of an entry is used in another level of the run.
    fn fit(&self, run: usize, numbers: &[u64]) -> bool {
        let mut numbers = numbers.iter().enumerate();
        numbers.all(|(level, number)| {
            let (used_in, at) = self.of(*number);
            used_in != run || at == level
        })
    }

    fn note(&mut self, run: usize, numbers: &[u64]) {
        if numbers.len() < 2 {
            return;
        }
        for (level, number) in numbers.iter().enumerate() {
            let index = Self::index(*number);
            if self.0.len() <= index {
                self.0.resize(index + 1, (0, 0));
            }
            if let Some(used) = self.0.get_mut(index) {
                *used = (run, level);
            }
        }
    }
}

/// Encodes a call that decides these entries in order. Returns the script for it, too.
pub(crate) fn encode_checks<'s, 'a>(
    scripts: &'s Scripts,
    names: &KeyNames,
    clock: &ServerClock,
    entries: &[BatchEntry<'a>],
) -> (&'s Script, Cmd, CallPlan<'a>) {
    let plan = CallPlan::of(entries);
    let script = plan.script(scripts);
    let keys = usize::try_from(plan.whole + plan.apart).unwrap_or_default();
    let mut call = script.call(keys, 1, KEY_NAME_CAPACITY);
    plan.write_keys(names, entries, &mut call);
    // Writing to a command does not fail.
    let _ = plan.pack(clock, &mut call.writer_for_next_arg());
    (script, call, plan)
}

fn pack_count(count: &Count<'_>, clock: &ServerClock, out: &mut impl Write) -> io::Result<()> {
    encode::write_uint(out, count.quotas.len() as u64)?;
    encode::write_str(out, count.value.kind())?;
    encode::write_uint(out, count.is_long().into())?;
    encode::write_uint(out, count.value.bucket())?;
    encode::write_uint(out, count.ttl_millis())?;
    for quota in count.quotas() {
        encode::write_str(out, script_of(quota))?;
        encode::write_uint(out, quota.limit().into())?;
        match quota.calendar() {
            None => drop(encode::write_uint(out, quota.counted_micros())?),
            Some(calendar) => pack_bytes(&calendar_text(calendar, clock), out)?,
        }
        pack_bytes(&header(quota), out)?;
    }
    Ok(())
}

fn pack_bytes(bytes: &[u8], out: &mut impl Write) -> io::Result<()> {
    let length = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
    encode::write_str_len(out, length)?;
    out.write_all(bytes)
}

/// Encodes a call that gives units of one check back.
pub(crate) fn encode_refund(
    script: &Script,
    names: &KeyNames,
    clock: &ServerClock,
    refund: &Refund<'_>,
) -> Cmd {
    let change = Change {
        what: "refund",
        units: refund.units(),
        time: refund.answer().time(),
        cost: refund.cost,
        refundable: refund.held,
    };
    let answers = refund.answer().quotas();
    let receipt_of = |index: usize| answers.get(index).map(|answer| answer.receipt());
    change.encode(script, names, clock, refund.subject, receipt_of)
}

/// Encodes a call that credits units to a subject.
pub(crate) fn encode_credit(
    script: &Script,
    names: &KeyNames,
    clock: &ServerClock,
    credit: &Credit<'_>,
) -> Cmd {
    let change = Change {
        what: "credit",
        units: credit.units(),
        ..Change::default()
    };
    change.encode(script, names, clock, credit.subject, |_| None)
}

/// Encodes a call that forgets the counts of a subject.
pub(crate) fn encode_reset(
    script: &Script,
    names: &KeyNames,
    clock: &ServerClock,
    reset: &Reset<'_>,
) -> Cmd {
    let change = Change {
        what: "reset",
        ..Change::default()
    };
    change.encode(script, names, clock, reset.subject, |_| None)
}

/// A change of all counts of a subject.
#[derive(Default)]
struct Change {
    what: &'static str,
    units: u32,
    time: u64,
    cost: u32,
    refundable: u32,
}

impl Change {
    fn encode(
        &self,
        script: &Script,
        names: &KeyNames,
        clock: &ServerClock,
        subject: Subject<'_>,
        receipt_of: impl Fn(usize) -> Option<Receipt>,
    ) -> Cmd {
        let counts = Count::all(subject.quotas);
        let mut call = script.call(counts.len(), 1, KEY_NAME_CAPACITY);
        for count in &counts {
            names.write_value(subject, count.value, &mut call);
        }
        // Writing to a command does not fail.
        let _ = self.pack(&counts, clock, receipt_of, &mut call.writer_for_next_arg());
        call
    }

    fn pack(
        &self,
        counts: &[Count<'_>],
        clock: &ServerClock,
        receipt_of: impl Fn(usize) -> Option<Receipt>,
        out: &mut impl Write,
    ) -> io::Result<()> {
        let quotas = || counts.iter().flat_map(|count| &count.quotas);
        let of_lists = LIST_FIELDS.len() * counts.len() + QUOTA_FIELDS.len() * quotas().count();
        let before = CALL_FIELDS.len() + of_lists;
        let fields = before + CHANGE_FIELDS.len() + RECEIPT_FIELDS.len() * quotas().count();
        if fields > MAX_UNWRAPPED_VALUES {
            encode::write_array_len(out, u32::try_from(fields).unwrap_or(u32::MAX))?;
        }
        // No value is read in advance.
        encode::write_uint(out, 0)?;
        encode::write_uint(out, before as u64 + 1)?;
        for count in counts {
            pack_count(count, clock, out)?;
        }
        encode::write_str(out, self.what)?;
        for number in [
            self.units.into(),
            self.time,
            self.cost.into(),
            self.refundable.into(),
        ] {
            encode::write_uint(out, number)?;
        }
        for (index, _) in quotas() {
            let receipt = receipt_of(*index).unwrap_or_default();
            encode::write_uint(out, receipt.generation)?;
            encode::write_uint(out, receipt.position)?;
        }
        Ok(())
    }
}

/// Returns the name of the algorithm in a call.
fn script_of(quota: &Quota) -> &'static str {
    match quota.calendar() {
        None => quota.counted_by().facts().script,
        Some(_) => "calendar_window",
    }
}

/// Returns the window of a calendar as `fixed_window.lua` reads it: the number of the first window, and the seconds at
/// which windows begin.
fn calendar_text(calendar: &Calendar, clock: &ServerClock) -> SmallVec<[u8; 32]> {
    let (first, starts) = calendar.starts_around(clock.expected_time());
    let starts = starts.iter().map(|start| start / 1_000_000);
    let mut text = SmallVec::new();
    for number in [first].into_iter().chain(starts) {
        // A value stores the second at which it expires in four bytes, too, which end in 2106.
        let number = u32::try_from(number).unwrap_or(u32::MAX);
        text.extend_from_slice(&number.to_be_bytes());
    }
    text
}
