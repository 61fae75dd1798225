//! Plans a call: which values its entries have, and in which order the script sees them.
#![cfg_attr(
    not(test),
    expect(
        clippy::indexing_slicing,
        reason = "a level has the index of its count, and a group the positions of its numbers"
    )
)]

use std::collections::HashMap;
use std::mem;
use std::ops::Range;
use std::time::Duration;

use smallvec::SmallVec;

use super::counts::{Count, Value, ValueName};
use super::fields::{
    CALL_FIELDS, GROUP_FIELDS, KEY_FIELDS, LEVEL_FIELDS, LIST_FIELDS, QUOTA_FIELDS,
};
use crate::decision::Holding;
use crate::key::{Fingerprint, HashFingerprint};
use crate::quota::Algorithm;
use crate::store::redis::script::{Script, Scripts};
use crate::store::requests::{Check, OwnedCheck, Subject};

/// Identical checks, of one level or several. The script decides them one after the other, as if each had
/// arrived alone.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BatchEntry<'a> {
    pub(crate) levels: &'a [OwnedCheck],
    /// The number of checks. 0 for a charge, which is made even beyond the limits.
    pub(crate) count: u32,
    /// Whether an earlier entry of the call may have a limiter and key of this one.
    pub(crate) may_repeat: bool,
}

impl<'a> BatchEntry<'a> {
    #[cfg(test)]
    pub(crate) fn only(levels: &'a [OwnedCheck]) -> Self {
        Self {
            levels,
            count: 1,
            may_repeat: false,
        }
    }

    /// Returns how many units the entry asks for beyond its cost.
    pub(super) fn more(&self) -> u32 {
        self.check_for_more().map_or(0, |check| check.extra_units)
    }

    /// Returns how many eighths of what is left these units may be. 0 if the entry asks for none.
    fn eighths(&self) -> u32 {
        self.check_for_more().map_or(0, |check| check.extra_eighths)
    }

    fn check_for_more(&self) -> Option<Check<'a>> {
        // Neither slots nor units of soft quotas are held in advance.
        self.checks().next().filter(|check| {
            self.levels.len() == 1
                && check.extra_units > 0
                && !check.quotas.have_holders()
                && !check.quotas.has_soft()
        })
    }

    pub(crate) fn shortest_lease(&self) -> Option<Duration> {
        self.checks()
            .filter_map(|check| check.holding)
            .map(|holding| holding.lease)
            .min()
    }

    fn checks(&self) -> impl Iterator<Item = Check<'a>> + use<'a> {
        self.levels.iter().map(OwnedCheck::check)
    }
}

/// The values and the groups of a call. The reply is in the same order.
#[derive(Debug)]
pub(crate) struct CallPlan<'a> {
    lists: SmallVec<[QuotaList<'a>; 4]>,
    /// Each with the place of its description among the arguments.
    pub(super) counts: SmallVec<[(u64, Count<'a>); 4]>,
    pub(super) groups: SmallVec<[Group; 4]>,
    /// The values that are read before the script decides, and behind them the others.
    pub(super) keys: Vec<(Subject<'a>, ValueName)>,
    pub(super) read_first: u64,
    /// The number of the key of each level of each entry, from 1.
    numbers: Vec<u64>,
    /// The place among the arguments behind all lists.
    pub(super) end_of_lists: u64,
}

/// A list of quotas with the share and the lease of its first request, the holder that asks for its slots, and its counts.
#[derive(Debug)]
struct QuotaList<'a> {
    subject: Subject<'a>,
    holding: Option<&'a Holding>,
    counts: Range<usize>,
}

/// Entries in a row with the same number of checks, and levels of the same counts and costs.
#[derive(Debug)]
pub(super) struct Group {
    /// Whether the loop of the script may decide it.
    pub(super) is_usual: bool,
    /// Whether entries of several levels may have values in common, which then reply once.
    pub(super) is_shared: bool,
    pub(super) entries: Range<usize>,
    /// The number of checks of each entry that are decided together.
    pub(super) checks: usize,
    pub(super) count: u32,
    pub(super) more: u32,
    pub(super) eighths: u32,
    pub(super) levels: SmallVec<[ScriptLevel; 2]>,
    /// The positions of the numbers of the keys, level by level of each entry.
    numbers: Range<usize>,
}

/// A count of a level of a check: to the script, each is a level.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ScriptLevel {
    /// Which check of the entry.
    pub(super) check: usize,
    /// Which count of the call.
    pub(super) count: usize,
    pub(super) cost: u64,
}

/// A cost above every limit: the script charges nothing, and replies that it has no room.
const NEVER_FITS: u64 = 1 << 32;

/// Marks the number of a key that is not read first.
const APART: u64 = 1 << 32;

impl<'a> CallPlan<'a> {
    pub(super) fn new(entries: &[BatchEntry<'a>]) -> Self {
        let mut plan = Self {
            lists: SmallVec::new(),
            counts: SmallVec::new(),
            groups: SmallVec::new(),
            keys: Vec::with_capacity(entries.len()),
            read_first: 0,
            numbers: Vec::with_capacity(entries.len()),
            end_of_lists: CALL_FIELDS.len() as u64 + 1,
        };
        let mut builder = PlanBuilder {
            plan: &mut plan,
            apart: Vec::new(),
            repeats: entries.iter().any(|entry| entry.may_repeat),
            known: HashMap::default(),
        };
        for (index, entry) in entries.iter().enumerate() {
            builder.add(index, entry);
        }
        builder.finish();
        plan
    }

    /// The indexes of the counts of a check, which are added if no earlier check has them.
    fn add_counts(&mut self, check: &Check<'a>) -> Range<usize> {
        let subject = check.subject;
        let holding = check.holding.filter(|_| subject.quotas.have_holders());
        let known = self
            .lists
            .iter()
            .find(|list| list.subject.counts_like(subject) && list.holding == holding);
        if let Some(QuotaList { counts, .. }) = known {
            return counts.clone();
        }
        let first = self.counts.len();
        for count in Count::with_holders(subject, holding) {
            let fields = LIST_FIELDS.len() + QUOTA_FIELDS.len() * count.quotas.len();
            self.counts.push((self.end_of_lists, count));
            self.end_of_lists += fields as u64;
        }
        let counts = first..self.counts.len();
        self.lists.push(QuotaList {
            subject,
            holding,
            counts: counts.clone(),
        });
        counts
    }

    pub(super) fn script<'s>(&self, scripts: &'s Scripts) -> &'s Script {
        match self.algorithm() {
            None if self.has_slots() => &scripts.mixed_in_flight,
            algorithm => scripts.decide(algorithm),
        }
    }

    fn has_slots(&self) -> bool {
        self.values().any(|value| value == Value::InFlight)
    }

    fn values(&self) -> impl Iterator<Item = Value> {
        self.counts.iter().map(|(_, count)| count.name.value)
    }

    /// Returns the algorithm of all quotas, or `None` if they are counted by several. [`Algorithm::InFlight`] may stand beside
    /// logs, and [`Algorithm::Held`] beside any other.
    fn algorithm(&self) -> Option<Algorithm> {
        match self.values().filter(|value| value.has_holders()).min() {
            Some(Value::Held) => return Some(Algorithm::Held),
            Some(_) => {
                let are_alone = self.values().all(Value::is_decided_with_slots);
                return are_alone.then_some(Algorithm::InFlight);
            }
            None => {}
        }
        let mut quotas = self
            .lists
            .iter()
            .flat_map(|list| list.subject.quotas.iter());
        let first = quotas.next()?.algorithm();
        let is_same = quotas.all(|quota| quota.algorithm().script() == first.script());
        is_same.then_some(first)
    }

    fn has_held(&self, levels: &[ScriptLevel]) -> bool {
        levels
            .iter()
            .any(|level| self.count(level).name.value == Value::Held)
    }

    pub(super) fn count(&self, level: &ScriptLevel) -> &Count<'a> {
        let (_, count) = &self.counts[level.count];
        count
    }

    /// The numbers of the keys of a group, level by level of each entry.
    pub(super) fn key_numbers(&self, group: &Group) -> &[u64] {
        &self.numbers[group.numbers.clone()]
    }
}

/// A plan that lacks entries, and how their keys are numbered.
struct PlanBuilder<'p, 'a> {
    plan: &'p mut CallPlan<'a>,
    /// The values that are not read before the script decides.
    apart: Vec<(Subject<'a>, ValueName)>,
    /// Whether an entry may have a key of an earlier one.
    repeats: bool,
    /// The keys that a later entry may have too.
    known: HashMap<(Fingerprint, ValueName), KnownKey, HashFingerprint>,
}

struct KnownKey {
    number: u64,
    /// The count that used it last.
    last_count: usize,
}

/// The number of a key in the use of one count.
struct NumberedKey {
    number: u64,
    is_new: bool,
    /// Whether no other count has used the key since this one.
    has_same_count: bool,
}

impl<'a> PlanBuilder<'_, 'a> {
    fn add(&mut self, index: usize, entry: &BatchEntry<'a>) {
        let first = self.plan.numbers.len();
        let mut levels = SmallVec::<[ScriptLevel; 2]>::new();
        let mut is_new = true;
        let mut fits = true;
        for (check_index, check) in entry.checks().enumerate() {
            for count in self.plan.add_counts(&check) {
                let key = self.number_key(&check, count);
                is_new &= key.is_new;
                fits &= key.has_same_count;
                self.plan.numbers.push(key.number);
                let (_, facts) = &self.plan.counts[count];
                levels.push(ScriptLevel {
                    check: check_index,
                    count,
                    cost: script_cost(facts, &check, entry.count),
                });
            }
        }
        let is_single = levels.len() == 1;
        let more = entry.more();
        let is_usual = is_single
            && is_new
            && entry.count == 1
            && more == 0
            && levels
                .iter()
                .all(|level| level.cost > 0 && self.plan.count(level).is_usual());
        let group = Group {
            is_usual,
            // Each message changes what is held before the next one is decided.
            is_shared: !is_single && !is_new && !self.plan.has_held(&levels),
            entries: index..index + 1,
            checks: entry.levels.len(),
            count: entry.count,
            more,
            eighths: entry.eighths(),
            levels,
            numbers: first..self.plan.numbers.len(),
        };
        let may_join = fits && (!is_single || is_new && self.follows(first));
        match self.plan.groups.last_mut() {
            Some(last) if may_join && last.is_like(&group) => last.join(&group),
            _ => self.plan.groups.push(group),
        }
    }

    fn number_key(&mut self, check: &Check<'a>, count: usize) -> NumberedKey {
        let (_, facts) = &self.plan.counts[count];
        let name = facts.name;
        let is_apart = facts.is_apart();
        if !self.repeats {
            return NumberedKey {
                number: self.add_key(check.subject, name, is_apart),
                is_new: true,
                has_same_count: true,
            };
        }
        let key = (check.fingerprint(), name);
        if let Some(known) = self.known.get_mut(&key) {
            let last_count = mem::replace(&mut known.last_count, count);
            return NumberedKey {
                number: known.number,
                is_new: false,
                has_same_count: last_count == count,
            };
        }
        let number = self.add_key(check.subject, name, is_apart);
        let last_count = count;
        self.known.insert(key, KnownKey { number, last_count });
        NumberedKey {
            number,
            is_new: true,
            has_same_count: true,
        }
    }

    fn add_key(&mut self, subject: Subject<'a>, name: ValueName, is_apart: bool) -> u64 {
        if is_apart {
            self.apart.push((subject, name));
            self.apart.len() as u64 + APART
        } else {
            self.plan.keys.push((subject, name));
            self.plan.keys.len() as u64
        }
    }

    /// Whether the number at this position is the next one: the script knows the keys of a group of one level by the first.
    fn follows(&self, position: usize) -> bool {
        let numbers = &self.plan.numbers;
        position > 0 && numbers[position - 1] + 1 == numbers[position]
    }

    fn finish(self) {
        let Self {
            plan, mut apart, ..
        } = self;
        plan.read_first = plan.keys.len() as u64;
        plan.keys.append(&mut apart);
        for number in plan.numbers.iter_mut().filter(|number| **number > APART) {
            *number = *number - APART + plan.read_first;
        }
        // These scripts have no loop.
        if let None | Some(Algorithm::SortedSetLog | Algorithm::InFlight | Algorithm::Held) =
            plan.algorithm()
        {
            for group in &mut plan.groups {
                group.is_usual = false;
            }
        }
    }
}

/// What the script charges to a count. An entry of 0 checks is a charge, which is made even beyond the limits.
fn script_cost(count: &Count<'_>, check: &Check<'_>, checks: u32) -> u64 {
    if count.name.value.has_holders() {
        check.holding.map_or(0, |holding| holding.wanted.into())
    } else if checks > 0 && count.quotas().any(|quota| quota.leaves_out(check.cost)) {
        NEVER_FITS
    } else {
        check.cost.into()
    }
}

impl Group {
    /// Whether one group may have the entries of both, if their keys allow it.
    fn is_like(&self, other: &Self) -> bool {
        self.is_usual == other.is_usual
            && (self.checks, self.count, self.more, self.eighths)
                == (other.checks, other.count, other.more, other.eighths)
            && self.levels == other.levels
    }

    /// The entries of `next` follow those of this group.
    fn join(&mut self, next: &Self) {
        self.is_shared |= next.is_shared;
        self.entries.end = next.entries.end;
        self.numbers.end = next.numbers.end;
    }

    /// Returns how many keys the call names: of a group of one level, the first one.
    pub(super) fn named_keys(&self) -> usize {
        if self.levels.len() == 1 {
            1
        } else {
            self.numbers.len()
        }
    }

    pub(super) fn length(&self) -> u64 {
        let levels = LEVEL_FIELDS.len() * self.levels.len();
        (GROUP_FIELDS.len() + levels + KEY_FIELDS.len() * self.named_keys()) as u64
    }
}
