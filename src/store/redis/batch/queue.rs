//! The checks that wait for the next call. Identical checks of one key coalesce into one entry.

use std::collections::VecDeque;
use std::iter::repeat;

use hashbrown::HashTable;
use tokio::time::Instant;

use super::waiters::{Waiter, Waiters};
use crate::error::Error;
use crate::key::Fingerprint;
use crate::quota::{Algorithm, Quota};
use crate::store::redis::protocol::{BatchEntry, MAX_ENTRY_UNITS};
use crate::store::requests::{Check, OwnedCheck, Subject};

/// The limit on the work in one call, in tenths of a microsecond of the server. A short call leaves
/// the server to other clients, and its first answers do not wait long for its last.
const MAX_WORK: u64 = 3_000;

/// The work of an entry for each stored count, and of each of its checks: about what the benches
/// measure. A bucket of a window takes a tenth of a microsecond more, and a unit `work_per_unit` of its
/// algorithm.
const WORK_PER_COUNT: u64 = 28;
const WORK_PER_CHECK: u64 = 8;

/// The most entries that fit into one call: with one count and one check each.
const MAX_ENTRIES: usize = 84;

/// A queue of entries in order of arrival. A check joins the last entry of its key if both are
/// identical.
#[derive(Debug, Default)]
pub(super) struct Queue {
    entries: VecDeque<QueueEntry>,
    /// The number of entries that have left. The place of an entry in `entries` is its number less
    /// these.
    left: usize,
    /// The number of the last entry of each queued key.
    last_of_key: HashTable<usize>,
}

/// One check, and all that wait for its answer.
#[derive(Debug)]
pub(super) struct QueueEntry {
    check: OwnedCheck,
    waiters: Waiters,
    fingerprint: Fingerprint,
    /// Whether another entry of the key was queued already, which the same call may take.
    may_repeat: bool,
}

impl Queue {
    /// Adds a check.
    pub(super) fn push(&mut self, check: Check<'_>, waiter: Waiter) {
        let fingerprint = check.subject.fingerprint();
        let last = self.last_of_key(fingerprint);
        let place = last.map(|number| number - self.left);
        if let Some(last) = place.and_then(|place| self.entries.get_mut(place))
            && is_identical(last.check.check(), check)
        {
            last.waiters.push(waiter);
            return;
        }
        let number = self.left + self.entries.len();
        self.entries.push_back(QueueEntry {
            check: OwnedCheck::from(check),
            waiters: Waiters::new(waiter),
            fingerprint,
            may_repeat: last.is_some(),
        });
        self.set_last_of_key(fingerprint, last, number);
    }

    /// Adds an entry that was taken from another queue.
    pub(super) fn push_entry(&mut self, mut entry: QueueEntry) {
        let (fingerprint, number) = (entry.fingerprint, self.left + self.entries.len());
        let last = self.last_of_key(fingerprint);
        entry.may_repeat = last.is_some();
        self.entries.push_back(entry);
        self.set_last_of_key(fingerprint, last, number);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Takes the entries that fit into one call, at least one check. Fails the waiters past their
    /// deadline, and drops entries without waiters.
    pub(super) fn take(&mut self, timeout_error: &impl Fn() -> Error) -> Vec<QueueEntry> {
        let now = Instant::now();
        let capacity = self.entries.len().min(MAX_ENTRIES);
        let (mut taken, mut work) = (Vec::with_capacity(capacity), 0);
        while let Some(front) = self.entries.front_mut() {
            front.waiters.retain_waiting(now, timeout_error);
            let waiting = front.waiters.len();
            let left = MAX_WORK.saturating_sub(work);
            // One check is sent however much work it is.
            let fit = checks_within(front.check.check(), left).max(usize::from(taken.is_empty()));
            if waiting > 0 && fit == 0 {
                break;
            }
            if fit < waiting {
                let first = front.split_off_first(fit);
                work += first.work();
                taken.push(first);
                continue;
            }
            self.left += 1;
            if waiting > 0 {
                work += front.work();
                taken.extend(self.entries.pop_front());
            } else {
                self.entries.pop_front();
            }
        }
        self.forget_taken();
        taken
    }

    /// Removes the numbers of entries that have left.
    fn forget_taken(&mut self) {
        if self.entries.is_empty() {
            self.last_of_key.clear();
        } else {
            self.last_of_key.retain(|number| *number >= self.left);
        }
    }

    /// Fails the waiters past their deadline. They keep their places.
    pub(super) fn expire(&mut self, now: Instant, timeout_error: &impl Fn() -> Error) {
        for entry in &mut self.entries {
            entry.waiters.expire(now, timeout_error);
        }
    }

    /// Fails all waiters.
    pub(super) fn fail(self, error: &Error) {
        for mut entry in self.entries {
            entry.waiters.answer(repeat(Err(error.clone())));
        }
    }

    /// Returns the earliest deadline of those that still wait.
    pub(super) fn next_deadline(&self) -> Option<Instant> {
        let entries = self.entries.iter();
        entries
            .filter_map(|entry| entry.waiters.next_deadline())
            .min()
    }

    fn last_of_key(&self, fingerprint: Fingerprint) -> Option<usize> {
        let is_of_key = |number: &usize| {
            let entry = self.entries.get(number - self.left);
            entry.is_some_and(|entry| entry.fingerprint == fingerprint)
        };
        self.last_of_key
            .find(fingerprint.hash(), is_of_key)
            .copied()
    }

    fn set_last_of_key(
        &mut self,
        fingerprint: Fingerprint,
        previous: Option<usize>,
        number: usize,
    ) {
        let hash = fingerprint.hash();
        let known = previous
            .and_then(|previous| self.last_of_key.find_mut(hash, |known| *known == previous));
        if let Some(known) = known {
            *known = number;
            return;
        }
        let (entries, left) = (&self.entries, self.left);
        let rehash = |number: &usize| {
            let entry = entries.get(number - left);
            entry.map_or(0, |entry| entry.fingerprint.hash())
        };
        self.last_of_key.insert_unique(hash, number, rehash);
    }
}

impl QueueEntry {
    pub(super) fn subject(&self) -> Subject<'_> {
        self.check.check().subject
    }

    fn split_off_first(&mut self, count: usize) -> Self {
        let first = Self {
            check: self.check.clone(),
            waiters: self.waiters.split_off_first(count),
            fingerprint: self.fingerprint,
            may_repeat: self.may_repeat,
        };
        // The same call may take the rest.
        self.may_repeat = true;
        first
    }

    /// Returns the entry of the call, and those that wait for its answer.
    pub(super) fn parts_mut(&mut self) -> (BatchEntry<'_>, &mut Waiters) {
        let count = u32::try_from(self.waiters.len()).unwrap_or(u32::MAX);
        let entry = BatchEntry {
            check: self.check.check(),
            count,
            may_repeat: self.may_repeat,
        };
        (entry, &mut self.waiters)
    }

    fn work(&self) -> u64 {
        let check = self.check.check();
        work_of_entry(check) + self.waiters.len() as u64 * work_of_check(check)
    }
}

/// Whether two checks of one key have the same cost and quotas.
fn is_identical(one: Check<'_>, other: Check<'_>) -> bool {
    one.cost() == other.cost() && one.quotas() == other.quotas()
}

fn work_of_entry(check: Check<'_>) -> u64 {
    let work = |quota: &Quota| WORK_PER_COUNT + quota.counted_by().parts();
    check.quotas().strictest().map(work).sum()
}

fn work_of_check(check: Check<'_>) -> u64 {
    let work_of_units = |algorithm: Algorithm| {
        let per_unit = algorithm.facts().work_per_unit;
        // Each check adds up the buckets.
        u64::from(check.cost()) * per_unit + algorithm.parts() / 4
    };
    let quotas = check.quotas().strictest();
    quotas
        .map(|quota| WORK_PER_CHECK + work_of_units(quota.counted_by()))
        .sum()
}

/// Returns how many such checks fit into this much work, as one entry.
fn checks_within(check: Check<'_>, work: u64) -> usize {
    let left = work.saturating_sub(work_of_entry(check));
    let within_work = left / work_of_check(check).max(1);
    let within_units = (MAX_ENTRY_UNITS / u64::from(check.cost().max(1))).max(1);
    usize::try_from(within_work.min(within_units)).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;
    use tokio::sync::oneshot;

    use super::*;
    use crate::decision::Answer;
    use crate::error::ErrorKind;
    use crate::key::Key;
    use crate::quota::{Algorithm, Quota, Quotas};

    type Receiver = oneshot::Receiver<Result<Answer, Error>>;

    fn timeout_error() -> Error {
        Error::new(ErrorKind::Timeout, "late")
    }

    /// Queues a check, and returns the receiver of its answer.
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

    /// Returns the key, the cost and the number of checks of each entry of the next call.
    fn take(queue: &mut Queue) -> Vec<(String, u32, usize)> {
        let taken = queue.take(&timeout_error);
        let entry = |entry: QueueEntry| {
            let check = entry.check.check();
            (
                check.key().as_str().to_owned(),
                check.cost(),
                entry.waiters.len(),
            )
        };
        taken.into_iter().map(entry).collect()
    }

    fn entry(key: &str, cost: u32, count: usize) -> (String, u32, usize) {
        (key.to_owned(), cost, count)
    }

    #[test]
    fn a_check_joins_the_last_entry_of_its_key_if_both_are_identical() {
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
        // A check beyond the limit has a call to itself.
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
    fn the_parts_of_a_divided_entry_repeat_its_key() {
        let quota = Quota::per_minute(u32::MAX).algorithm(Algorithm::Gcra);
        let (mut queue, quotas) = (Queue::default(), Quotas::from(quota));
        let waiting = [60_000, 60_000].map(|cost| push(&mut queue, "a", &quotas, cost));
        let taken = queue.take(&timeout_error);
        let repeats = taken.iter().map(|entry| entry.may_repeat);
        assert_eq!(repeats.collect::<Vec<_>>(), [false, true]);
        drop(waiting);
    }

    #[test]
    fn a_cancelled_check_is_not_sent() {
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
            for key in keys {
                let costs = |all: &[(String, u32)]| {
                    let of_key = all.iter().filter(|(pushed, _)| pushed == key);
                    of_key.map(|(_, cost)| *cost).collect::<Vec<_>>()
                };
                prop_assert_eq!(costs(&pushed), costs(&taken));
            }
        }
    }
}
