//! Checks that wait for the next call. Those that are alike wait as one entry.

use std::collections::VecDeque;
use std::hash::{BuildHasher, RandomState};

use hashbrown::HashTable;
use tokio::time::Instant;

use super::callers::{Caller, Callers};
use crate::quota::Algorithm;
use crate::store::check::{Check, Subject};
use crate::{Error, Key, Quotas};

/// The most work in one call, in tenths of a microsecond of the server: a short call leaves the
/// server to others, and its first answers do not wait long for its last.
const MOST_WORK: u64 = 3_000;

/// What an entry takes for each quota, what each of its checks does, and a unit in a log: about what
/// the benches measure.
const WORK_OF_ENTRY: u64 = 45;
const WORK_OF_CHECK: u64 = 5;
const WORK_OF_UNIT: u64 = 1;

/// All that wait, in order of their arrival, but that a check joins the last entry of its key where
/// that is like it.
#[derive(Debug, Default)]
pub(super) struct Queue {
    entries: VecDeque<Waiting>,
    /// How many entries have left: an entry keeps its number, its place is that less these.
    left: usize,
    /// Of each key that waits, the number of its last entry.
    last_of_key: HashTable<usize>,
    hasher: RandomState,
}

#[derive(Debug)]
pub(super) struct Waiting {
    asked: Asked,
    callers: Callers,
    hash: u64,
}

/// What is asked for each caller of an entry.
#[derive(Clone, Debug)]
pub(super) struct Asked {
    limiter: Key,
    key: Key,
    quotas: Quotas,
    cost: u32,
}

impl Queue {
    /// Has a check wait.
    pub(super) fn push(&mut self, check: Check<'_>, caller: Caller) {
        let hash = self.hash_of(check);
        let last = self.last_of_key(hash, check.subject);
        let last_place = last.map(|number| number - self.left);
        if let Some(last) = last_place.and_then(|place| self.entries.get_mut(place))
            && last.asked.is_like(check)
        {
            last.callers.push(caller);
            return;
        }
        let callers = Callers::new(caller);
        self.append(Asked::from(check), callers, hash, last);
    }

    /// Has an entry wait that was taken from another queue.
    pub(super) fn push_entry(&mut self, asked: Asked, callers: Callers) {
        let hash = self.hash_of(asked.check());
        let last = self.last_of_key(hash, asked.check().subject);
        self.append(asked, callers, hash, last);
    }

    fn append(&mut self, asked: Asked, callers: Callers, hash: u64, last_of_key: Option<usize>) {
        let number = self.left + self.entries.len();
        self.entries.push_back(Waiting {
            asked,
            callers,
            hash,
        });
        self.note_last(hash, last_of_key, number);
    }

    fn hash_of(&self, check: Check<'_>) -> u64 {
        self.hasher.hash_one((check.limiter(), check.key()))
    }

    pub(super) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Takes what fits into one call, at least one check. Those that nobody waits for any more are
    /// dropped, and who is late is told so.
    pub(super) fn take(&mut self, late: &impl Fn() -> Error) -> Vec<Waiting> {
        let now = Instant::now();
        let (mut taken, mut work) = (Vec::new(), 0);
        while let Some(front) = self.entries.front_mut() {
            front.callers.keep_waiting(now, late);
            if front.callers.len() == 0 {
                self.pop();
                continue;
            }
            let left = MOST_WORK.saturating_sub(work);
            // One check is sent however much work it is.
            let fit = front
                .asked
                .checks_within(left)
                .max(usize::from(taken.is_empty()));
            if fit == 0 {
                break;
            }
            let next = if fit < front.callers.len() {
                Some(front.split_off_first(fit))
            } else {
                self.pop()
            };
            work += next.as_ref().map_or(0, Waiting::work);
            taken.extend(next);
        }
        taken
    }

    fn pop(&mut self) -> Option<Waiting> {
        let entry = self.entries.pop_front()?;
        let number = self.left;
        if let Ok(last) = self
            .last_of_key
            .find_entry(entry.hash, |last| *last == number)
        {
            last.remove();
        }
        self.left += 1;
        Some(entry)
    }

    fn last_of_key(&self, hash: u64, subject: Subject<'_>) -> Option<usize> {
        let of_key = |number: &usize| {
            let entry = self.entries.get(number - self.left);
            entry.is_some_and(|entry| entry.asked.is_of(subject))
        };
        self.last_of_key.find(hash, of_key).copied()
    }

    fn note_last(&mut self, hash: u64, before: Option<usize>, number: usize) {
        let before = before.and_then(|before| self.last_of_key.find_mut(hash, |n| *n == before));
        if let Some(before) = before {
            *before = number;
            return;
        }
        let (entries, left) = (&self.entries, self.left);
        let hash_of = |number: &usize| entries.get(number - left).map_or(0, |entry| entry.hash);
        self.last_of_key.insert_unique(hash, number, hash_of);
    }
}

impl Waiting {
    fn split_off_first(&mut self, count: usize) -> Self {
        Self {
            asked: self.asked.clone(),
            callers: self.callers.split_off_first(count),
            hash: self.hash,
        }
    }

    pub(super) fn into_parts(self) -> (Asked, Callers) {
        (self.asked, self.callers)
    }

    fn work(&self) -> u64 {
        self.asked.work_of_entry() + self.callers.len() as u64 * self.asked.work_of_check()
    }
}

impl Asked {
    pub(super) fn check(&self) -> Check<'_> {
        Check {
            subject: Subject {
                limiter: &self.limiter,
                key: &self.key,
                quotas: &self.quotas,
            },
            cost: self.cost,
        }
    }

    fn is_of(&self, subject: Subject<'_>) -> bool {
        self.key == *subject.key && self.limiter == *subject.limiter
    }

    fn is_like(&self, check: Check<'_>) -> bool {
        self.cost == check.cost() && self.quotas == *check.quotas()
    }

    fn work_of_entry(&self) -> u64 {
        self.quotas.len() as u64 * WORK_OF_ENTRY
    }

    fn work_of_check(&self) -> u64 {
        let of_units = |algorithm| match algorithm {
            Algorithm::SlidingLog | Algorithm::SortedSetLog => u64::from(self.cost) * WORK_OF_UNIT,
            _ => 0,
        };
        let quotas = self.quotas.counters();
        quotas
            .map(|quota| WORK_OF_CHECK + of_units(quota.counted_by()))
            .sum()
    }

    /// How many such checks are done with so much work.
    fn checks_within(&self, work: u64) -> usize {
        let left = work.saturating_sub(self.work_of_entry());
        usize::try_from(left / self.work_of_check().max(1)).unwrap_or(usize::MAX)
    }
}

impl From<Check<'_>> for Asked {
    fn from(check: Check<'_>) -> Self {
        Self {
            limiter: check.limiter().clone(),
            key: check.key().clone(),
            quotas: check.quotas().clone(),
            cost: check.cost(),
        }
    }
}
