//! Plans a call: which values its entries have, and in which order the script sees them.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::mem;
use std::ops::Range;
use std::time::Duration;

use smallvec::SmallVec;

use super::counts::{Count, Value, ValueName};
use super::fields::{
    CALL_FIELDS, GROUP_FIELDS, KEY_FIELDS, LEVEL_FIELDS, LIST_FIELDS, QUOTA_FIELDS,
};
use crate::decision::Holding;
use crate::key::HashFingerprint;
use crate::quota::{Algorithm, Quota};
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
    /// Creates the entry of a call that has no other.
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
        match self.checks().next() {
            // Neither slots nor units of soft quotas are held in advance.
            Some(check)
                if self.levels.len() == 1
                    && !check.quotas.has_slots()
                    && !check.quotas.has_soft() =>
            {
                check.extra_units
            }
            _ => 0,
        }
    }

    /// Returns the shortest lease of the slots that the entry asks for.
    pub(crate) fn shortest_lease(&self) -> Option<Duration> {
        let holdings = self.checks().filter_map(|check| check.holding);
        holdings.map(|holding| holding.lease).min()
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
    pub(super) fn of(entries: &[BatchEntry<'a>]) -> Self {
        let mut plan = Self {
            lists: SmallVec::new(),
            counts: SmallVec::new(),
            groups: SmallVec::new(),
            keys: Vec::with_capacity(entries.len()),
            read_first: 0,
            numbers: Vec::with_capacity(entries.len()),
            end_of_lists: CALL_FIELDS.len() as u64 + 1,
        };
        let mut apart = Vec::new();
        // The keys that a later entry may have too: the number of each, and the count that used it last.
        let mut known = HashMap::<_, (u64, usize), HashFingerprint>::default();
        let repeats = entries.iter().any(|entry| entry.may_repeat);
        for (index, entry) in entries.iter().enumerate() {
            let (first, mut levels) = (plan.numbers.len(), SmallVec::<[ScriptLevel; 2]>::new());
            let (mut is_new, mut fits) = (true, true);
            for (check_index, check) in entry.checks().enumerate() {
                for count in plan.counts_of(&check) {
                    let Some((_, facts)) = plan.counts.get(count) else {
                        continue;
                    };
                    let (name, is_apart) = (facts.name, facts.is_apart());
                    let leaves_out = facts.quotas().any(|quota| quota.leaves_out(check.cost));
                    let mut new_key = || {
                        let keys = if is_apart { &mut apart } else { &mut plan.keys };
                        keys.push((check.subject, name));
                        keys.len() as u64 + if is_apart { APART } else { 0 }
                    };
                    let number = if repeats {
                        match known.entry((check.fingerprint(), name)) {
                            Entry::Occupied(mut known) => {
                                is_new = false;
                                let (number, last_count) = known.get_mut();
                                fits &= mem::replace(last_count, count) == count;
                                *number
                            }
                            Entry::Vacant(unknown) => unknown.insert((new_key(), count)).0,
                        }
                    } else {
                        new_key()
                    };
                    plan.numbers.push(number);
                    levels.push(ScriptLevel {
                        check: check_index,
                        count,
                        cost: match name.value {
                            Value::InFlight => {
                                check.holding.map_or(0, |holding| holding.wanted.into())
                            }
                            _ if leaves_out && entry.count > 0 => NEVER_FITS,
                            _ => check.cost.into(),
                        },
                    });
                }
            }
            let (is_single, more) = (levels.len() == 1, entry.more());
            let is_usual = |level: &ScriptLevel| {
                level.cost > 0 && plan.count(level).is_some_and(Count::is_usual)
            };
            let group = Group {
                is_usual: is_single
                    && is_new
                    && (entry.count, more) == (1, 0)
                    && levels.iter().all(is_usual),
                is_shared: !is_single && !is_new,
                entries: index..index + 1,
                checks: entry.levels.len(),
                count: entry.count,
                more,
                levels,
                numbers: first..plan.numbers.len(),
            };
            // The script knows the keys of a group of one level by the first one.
            let follows = || matches!(plan.numbers.get(first.saturating_sub(1)..), Some([last, own]) if last + 1 == *own);
            match plan.groups.last_mut() {
                Some(last)
                    if fits && (!is_single || is_new && follows()) && last.is_like(&group) =>
                {
                    last.is_shared |= group.is_shared;
                    last.entries.end = group.entries.end;
                    last.numbers.end = group.numbers.end;
                }
                _ => plan.groups.push(group),
            }
        }
        plan.read_first = plan.keys.len() as u64;
        plan.keys.append(&mut apart);
        for number in plan.numbers.iter_mut().filter(|number| **number > APART) {
            *number = *number - APART + plan.read_first;
        }
        // These scripts have no loop.
        if let None | Some(Algorithm::SortedSetLog | Algorithm::InFlight) = plan.algorithm() {
            for group in &mut plan.groups {
                group.is_usual = false;
            }
        }
        plan
    }

    /// Returns the indexes of the counts of a check.
    fn counts_of(&mut self, check: &Check<'a>) -> Range<usize> {
        let subject = check.subject;
        let holding = check.holding.filter(|_| subject.quotas.has_slots());
        let mut lists = self.lists.iter();
        let known = lists.find(|list| list.subject.counts_like(subject) && list.holding == holding);
        if let Some(QuotaList { counts, .. }) = known {
            return counts.clone();
        }
        let first = self.counts.len();
        for mut count in Count::all(subject) {
            count.holding = holding.filter(|_| count.name.value == Value::InFlight);
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

    /// Returns the algorithm of all quotas, or `None` if they are counted by several. [`Algorithm::InFlight`] may stand beside
    /// any other.
    pub(super) fn algorithm(&self) -> Option<Algorithm> {
        let mut counts = self.counts.iter();
        if counts.any(|(_, count)| count.name.value == Value::InFlight) {
            return Some(Algorithm::InFlight);
        }
        let script = |quota: &Quota| quota.algorithm().script();
        let mut quotas = self
            .lists
            .iter()
            .flat_map(|list| list.subject.quotas.iter());
        let first = quotas.next()?;
        let is_same = quotas.all(|quota| script(quota) == script(first));
        is_same.then(|| first.algorithm())
    }

    /// Returns what a level counts.
    pub(super) fn count(&self, level: &ScriptLevel) -> Option<&Count<'a>> {
        Some(&self.counts.get(level.count)?.1)
    }

    /// Returns the numbers of the keys of a group, level by level of each entry.
    pub(super) fn numbers_of(&self, group: &Group) -> &[u64] {
        self.numbers.get(group.numbers.clone()).unwrap_or_default()
    }
}

impl Group {
    /// Whether one group may have the entries of both, if their keys allow it.
    fn is_like(&self, other: &Self) -> bool {
        self.is_usual == other.is_usual
            && (self.checks, self.count, self.more) == (other.checks, other.count, other.more)
            && self.levels == other.levels
    }

    /// Returns how many keys the call names: of a group of one level, the first one.
    pub(super) fn named_keys(&self) -> usize {
        if self.levels.len() == 1 {
            1
        } else {
            self.numbers.len()
        }
    }

    /// Returns how many arguments the group has.
    pub(super) fn length(&self) -> u64 {
        let levels = LEVEL_FIELDS.len() * self.levels.len();
        (GROUP_FIELDS.len() + levels + KEY_FIELDS.len() * self.named_keys()) as u64
    }
}
