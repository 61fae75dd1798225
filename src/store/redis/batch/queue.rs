//! Checks that wait for the next call. Those that are alike wait as one entry.

use std::collections::VecDeque;
use std::iter::repeat;

use hashbrown::HashTable;
use tokio::time::Instant;

use super::waiters::{Waiter, Waiters};
use crate::error::Error;
use crate::key::Fingerprint;
use crate::key::Key;
use crate::quota::Algorithm;
use crate::quota::{Quota, Quotas};
use crate::store::redis::protocol::MAX_ENTRY_UNITS;
use crate::store::requests::{Check, Subject};

/// The most work in one call, in tenths of a microsecond of the server: a short call leaves the
/// server to others, and its first answers do not wait long for its last.
const MOST_WORK: u64 = 3_000;

/// What an entry takes for each stored count, what each of its checks does, and a unit in a log: about
/// what the benches measure. A bucket of a window takes a tenth of a microsecond more.
const WORK_OF_ENTRY: u64 = 28;
const WORK_OF_CHECK: u64 = 8;
const WORK_OF_UNIT: u64 = 1;

/// All that wait, in order of their arrival, but that a check joins the last entry of its key where
/// that is like it.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    entries: VecDeque<QueueEntry>,
    /// How many entries have left: an entry keeps its number, its place is that less these.
    left: usize,
    /// Of each key that waits, the number of its last entry.
    last_of_key: HashTable<usize>,
}

#[derive(Debug)]
pub(crate) struct QueueEntry {
    asked: OwnedCheck,
    callers: Waiters,
    whose: Fingerprint,
}

/// What is asked for each caller of an entry.
#[derive(Clone, Debug)]
pub(crate) struct OwnedCheck {
    limiter: Key,
    key: Key,
    quotas: Quotas,
    cost: u32,
}

impl Queue {
    /// Has a check wait.
    pub(crate) fn push(&mut self, check: Check<'_>, caller: Waiter) {
        let whose = check.subject.fingerprint();
        let last = self.last_of_key(whose);
        let last_place = last.map(|number| number - self.left);
        if let Some(last) = last_place.and_then(|place| self.entries.get_mut(place))
            && last.asked.is_like(check)
        {
            last.callers.push(caller);
            return;
        }
        let callers = Waiters::new(caller);
        self.append(OwnedCheck::from(check), callers, whose, last);
    }

    /// Has an entry wait that was taken from another queue.
    pub(crate) fn push_entry(&mut self, asked: OwnedCheck, callers: Waiters) {
        let whose = asked.check().subject.fingerprint();
        let last = self.last_of_key(whose);
        self.append(asked, callers, whose, last);
    }

    fn append(
        &mut self,
        asked: OwnedCheck,
        callers: Waiters,
        whose: Fingerprint,
        last: Option<usize>,
    ) {
        let number = self.left + self.entries.len();
        self.entries.push_back(QueueEntry {
            asked,
            callers,
            whose,
        });
        self.note_last(whose, last, number);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Takes what fits into one call, at least one check. Those that nobody waits for any more are
    /// dropped, and who is late is told so.
    pub(crate) fn take(&mut self, late: &impl Fn() -> Error) -> Vec<QueueEntry> {
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
            work += next.as_ref().map_or(0, QueueEntry::work);
            taken.extend(next);
        }
        taken
    }

    /// Tells who is late; those who are keep their places.
    pub(crate) fn expire(&mut self, now: Instant, late: &impl Fn() -> Error) {
        for entry in &mut self.entries {
            entry.callers.expire(now, late);
        }
    }

    /// Tells all why they are not asked for.
    pub(crate) fn fail(self, error: &Error) {
        for entry in self.entries {
            entry.callers.answer(repeat(Err(error.clone())));
        }
    }

    /// Until when the first of those waits who still do.
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        let entries = self.entries.iter();
        entries
            .filter_map(|entry| entry.callers.next_deadline())
            .min()
    }

    fn pop(&mut self) -> Option<QueueEntry> {
        let entry = self.entries.pop_front()?;
        let number = self.left;
        if let Ok(last) = self
            .last_of_key
            .find_entry(entry.whose.hash(), |last| *last == number)
        {
            last.remove();
        }
        self.left += 1;
        Some(entry)
    }

    fn last_of_key(&self, whose: Fingerprint) -> Option<usize> {
        let of_key = |number: &usize| {
            let entry = self.entries.get(number - self.left);
            entry.is_some_and(|entry| entry.whose == whose)
        };
        self.last_of_key.find(whose.hash(), of_key).copied()
    }

    fn note_last(&mut self, whose: Fingerprint, before: Option<usize>, number: usize) {
        let hash = whose.hash();
        let before = before.and_then(|before| self.last_of_key.find_mut(hash, |n| *n == before));
        if let Some(before) = before {
            *before = number;
            return;
        }
        let (entries, left) = (&self.entries, self.left);
        let rehash = |number: &usize| {
            let entry = entries.get(number - left);
            entry.map_or(0, |entry| entry.whose.hash())
        };
        self.last_of_key.insert_unique(hash, number, rehash);
    }
}

impl QueueEntry {
    fn split_off_first(&mut self, count: usize) -> Self {
        Self {
            asked: self.asked.clone(),
            callers: self.callers.split_off_first(count),
            whose: self.whose,
        }
    }

    pub(crate) fn into_parts(self) -> (OwnedCheck, Waiters) {
        (self.asked, self.callers)
    }

    fn work(&self) -> u64 {
        self.asked.work_of_entry() + self.callers.len() as u64 * self.asked.work_of_check()
    }
}

impl OwnedCheck {
    pub(crate) fn check(&self) -> Check<'_> {
        Check {
            subject: Subject {
                limiter: &self.limiter,
                key: &self.key,
                quotas: &self.quotas,
            },
            cost: self.cost,
        }
    }

    fn is_like(&self, check: Check<'_>) -> bool {
        self.cost == check.cost() && self.quotas == *check.quotas()
    }

    fn work_of_entry(&self) -> u64 {
        let quotas = self.quotas.counters();
        let of_quota = |quota: &Quota| WORK_OF_ENTRY + quota.counted_by().parts();
        quotas.map(of_quota).sum()
    }

    fn work_of_check(&self) -> u64 {
        let of_units = |algorithm: Algorithm| match algorithm {
            Algorithm::SlidingLog | Algorithm::SortedSetLog => u64::from(self.cost) * WORK_OF_UNIT,
            // Each check adds up the buckets.
            counted => counted.parts() / 4,
        };
        let quotas = self.quotas.counters();
        quotas
            .map(|quota| WORK_OF_CHECK + of_units(quota.counted_by()))
            .sum()
    }

    /// How many such checks are done with so much work, as one entry.
    fn checks_within(&self, work: u64) -> usize {
        let left = work.saturating_sub(self.work_of_entry());
        let done = left / self.work_of_check().max(1);
        let most = (MAX_ENTRY_UNITS / u64::from(self.cost.max(1))).max(1);
        usize::try_from(done.min(most)).unwrap_or(usize::MAX)
    }
}

impl From<Check<'_>> for OwnedCheck {
    fn from(check: Check<'_>) -> Self {
        Self {
            limiter: check.limiter().clone(),
            key: check.key().clone(),
            quotas: check.quotas().clone(),
            cost: check.cost(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;
    use tokio::sync::oneshot;

    use super::*;
    use crate::decision::Answer;
    use crate::error::ErrorKind;

    type Receiver = oneshot::Receiver<Result<Answer, Error>>;

    fn late() -> Error {
        Error::new(ErrorKind::Timeout, "late")
    }

    /// A check waits; the other end of its answer.
    fn push(queue: &mut Queue, key: &str, quotas: &Quotas, cost: u32) -> Receiver {
        let (limiter, key) = (Key::from("l"), Key::from(key));
        let (answer, receiver) = oneshot::channel();
        let subject = Subject {
            limiter: &limiter,
            key: &key,
            quotas,
        };
        let deadline = Instant::now() + Duration::from_secs(60);
        queue.push(Check { subject, cost }, Waiter::new(answer, deadline));
        receiver
    }

    /// Of each entry of the next call its key, its cost and how many checks it is.
    fn take(queue: &mut Queue) -> Vec<(String, u32, usize)> {
        let taken = queue.take(&late).into_iter().map(QueueEntry::into_parts);
        let entry = |(asked, callers): (OwnedCheck, Waiters)| {
            (asked.key.as_str().to_owned(), asked.cost, callers.len())
        };
        taken.map(entry).collect()
    }

    fn entry(key: &str, cost: u32, count: usize) -> (String, u32, usize) {
        (key.to_owned(), cost, count)
    }

    #[test]
    fn a_check_joins_the_last_of_its_key_that_is_like_it() {
        let (mut queue, quotas) = (Queue::default(), Quotas::from(Quota::per_minute(9)));
        let others = Quotas::from(Quota::per_minute(8));
        let waiting = [
            push(&mut queue, "a", &quotas, 1),
            push(&mut queue, "b", &quotas, 1),
            push(&mut queue, "a", &quotas, 1),
            push(&mut queue, "a", &quotas, 2),
            push(&mut queue, "a", &quotas, 1),
            push(&mut queue, "b", &others, 1),
        ];
        let taken = take(&mut queue);
        let expected = [
            ("a", 1, 2),
            ("b", 1, 1),
            ("a", 2, 1),
            ("a", 1, 1),
            ("b", 1, 1),
        ];
        assert_eq!(
            taken,
            expected.map(|(key, cost, count)| entry(key, cost, count))
        );
        assert!(queue.is_empty() && queue.last_of_key.is_empty());
        drop(waiting);
    }

    #[test]
    fn a_call_is_no_longer_than_its_work_and_never_empty() {
        let (mut queue, quotas) = (Queue::default(), Quotas::from(Quota::per_minute(9)));
        let mut waiting: Vec<_> = (0..5_000)
            .map(|_| push(&mut queue, "a", &quotas, 1))
            .collect();
        waiting.push(push(&mut queue, "b", &quotas, 100_000));
        waiting.push(push(&mut queue, "c", &quotas, 1));
        let mut calls = Vec::new();
        while !queue.is_empty() {
            calls.push(take(&mut queue));
        }
        let of_a = calls.iter().flatten().filter(|(key, ..)| key == "a");
        let counts: Vec<_> = of_a.map(|(.., count)| *count).collect();
        assert_eq!(counts.iter().sum::<usize>(), 5_000);
        assert!(counts.iter().all(|count| *count <= 600), "{counts:?}");
        // However much it is, it has a call of its own.
        assert!(calls.contains(&vec![entry("b", 100_000, 1)]));
    }

    #[test]
    fn checks_of_one_entry_ask_for_no_more_units_than_the_script_takes() {
        let quota = Quota::per_minute(u32::MAX).algorithm(Algorithm::Gcra);
        let (mut queue, quotas) = (Queue::default(), Quotas::from(quota));
        let mut waiting = Vec::new();
        for (cost, checks) in [(60_000, 2), (270, 400), (200_000, 1)] {
            waiting.extend((0..checks).map(|_| push(&mut queue, "a", &quotas, cost)));
            let mut taken = Vec::new();
            while !queue.is_empty() {
                taken.extend(take(&mut queue).into_iter().map(|(.., count)| count));
            }
            let units = |count: &usize| *count == 1 || *count as u64 * u64::from(cost) <= 100_000;
            assert!(taken.iter().all(units), "{taken:?}");
            assert_eq!(taken.iter().sum::<usize>(), checks);
        }
    }

    #[test]
    fn who_has_gone_is_not_sent() {
        let (mut queue, quotas) = (Queue::default(), Quotas::from(Quota::per_minute(9)));
        drop(push(&mut queue, "a", &quotas, 1));
        let waits = push(&mut queue, "b", &quotas, 1);
        drop(push(&mut queue, "b", &quotas, 1));
        assert_eq!(take(&mut queue), [entry("b", 1, 1)]);
        drop(waits);
    }

    proptest! {
        #[test]
        fn every_check_is_taken_once_and_those_of_a_key_in_their_order(
            steps in prop::collection::vec((0..4_usize, 1..4_u32, any::<bool>()), 1..200),
        ) {
            let (mut queue, quotas) = (Queue::default(), Quotas::from(Quota::per_minute(9)));
            let keys = ["a", "b", "c", "d"];
            let (mut waiting, mut pushed, mut taken) = (Vec::new(), Vec::new(), Vec::new());
            for (key, cost, takes) in steps {
                waiting.push(push(&mut queue, keys[key], &quotas, cost));
                pushed.push((keys[key].to_owned(), cost));
                if takes {
                    taken.extend(take(&mut queue));
                }
            }
            taken.extend(take(&mut queue));
            let taken = taken.into_iter().flat_map(|(key, cost, count)| {
                std::iter::repeat_n((key, cost), count)
            });
            let taken: Vec<_> = taken.collect();
            for of in keys {
                let costs = |all: &[(String, u32)]| {
                    let of_key = all.iter().filter(|(key, _)| key == of);
                    of_key.map(|(_, cost)| *cost).collect::<Vec<_>>()
                };
                prop_assert_eq!(costs(&pushed), costs(&taken));
            }
        }
    }
}
