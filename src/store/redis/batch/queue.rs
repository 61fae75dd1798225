//! The checks that wait for the next call. Identical checks of one key coalesce into one entry.

use std::collections::{HashMap, HashSet, VecDeque};
use std::iter::repeat;
use std::mem;

use smallvec::SmallVec;

use super::waiters::{Waiter, Waiters};
use crate::error::Error;
use crate::key::{Fingerprint, HashFingerprint};
use crate::store::redis::protocol::{BatchEntry, EntryAnswers, MAX_ENTRY_UNITS};
use crate::store::redis::real_time::{Moment, RunningTime};
use crate::store::requests::{Check, OwnedCheck};

/// The limit on the work in one call, in tenths of a microsecond of the server. A short call leaves
/// the server to other clients, and its first answers do not wait long for its last.
const MAX_WORK: u64 = 3_000;

/// The work of an entry for each quota, and of each of its checks: about what the benches measure. A unit takes
/// `work_per_unit` of its algorithm more.
const WORK_PER_COUNT: u64 = 28;
const WORK_PER_CHECK: u64 = 8;

/// A queue of entries in order of arrival. A check joins the last entry of all its keys if both are
/// identical.
#[derive(Debug, Default)]
pub(super) struct Queue {
    entries: VecDeque<QueueEntry>,
    /// The number of entries that have left. The place of an entry in `entries` is its number less
    /// these.
    left: usize,
    /// The number of the last entry of each queued limiter and key.
    last_of_key: HashMap<Fingerprint, usize, HashFingerprint>,
}

/// The levels of a check: one, or several that are decided together.
type OwnedLevels = SmallVec<[OwnedCheck; 1]>;

#[inline]
fn owned(levels: &[Check<'_>]) -> OwnedLevels {
    match levels {
        // The usual case, without the steps of an iterator.
        [check] => OwnedLevels::from_buf([check.owned()]),
        levels => levels.iter().map(Check::owned).collect(),
    }
}

/// One check, of one level or several, and all that wait for its answer.
#[derive(Debug)]
pub(super) struct QueueEntry {
    levels: OwnedLevels,
    waiters: Waiters,
    /// Whether another entry of one of its keys was queued already, which the same call may take.
    may_repeat: bool,
}

impl Queue {
    #[inline]
    pub(super) fn push(&mut self, levels: &[Check<'_>], waiter: Waiter) {
        let mut last_entries = levels
            .iter()
            .map(|level| self.last_of_key.get(&level.fingerprint()).copied());
        let first = last_entries.next().flatten();
        let mut may_repeat = first.is_some();
        let mut is_last_of_all = true;
        for other in last_entries {
            may_repeat |= other.is_some();
            is_last_of_all &= other == first;
        }
        if let Some(number) = first.filter(|_| is_last_of_all)
            && let Some(entry) = self.entries.get_mut(number - self.left)
            && is_identical(&entry.levels, levels)
            && entry.has_room()
        {
            entry.waiters.push(waiter);
            return;
        }
        let number = self.next_number();
        for level in levels {
            self.last_of_key.insert(level.fingerprint(), number);
        }
        self.entries.push_back(QueueEntry {
            may_repeat,
            ..QueueEntry::new(levels, waiter)
        });
    }

    pub(super) fn push_entry(&mut self, mut entry: QueueEntry) {
        let number = self.next_number();
        for level in &entry.levels {
            let last = self.last_of_key.insert(level.check().fingerprint(), number);
            entry.may_repeat |= last.is_some();
        }
        self.entries.push_back(entry);
    }

    fn next_number(&self) -> usize {
        self.left + self.entries.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Takes the entries that fit into one call, at least one check. Fails the waiters whose deadline is at most
    /// `until`, and drops entries without waiters.
    pub(super) fn take(
        &mut self,
        until: RunningTime,
        late_error: &impl Fn(&mut Waiter) -> Option<Error>,
    ) -> Vec<QueueEntry> {
        let mut call = CallWork::default();
        let mut whole = 0;
        let mut part = 0;
        let mut some_gave_up = false;
        for entry in &mut self.entries {
            entry.waiters.retain_waiting(until, late_error);
            let waiting = entry.waiters.len();
            some_gave_up |= waiting == 0;
            let work = call.measure(&entry.levels);
            let fit = call.room_for(&work).min(waiting);
            call.add(&entry.levels, &work, fit);
            if fit < waiting {
                part = fit;
                break;
            }
            whole += 1;
        }
        let mut taken = self.take_first(whole);
        if some_gave_up {
            taken.retain(|entry| entry.waiters.len() > 0);
        }
        // The next entry does not fit as a whole: it is divided.
        if let Some(front) = self.entries.front_mut().filter(|_| part > 0) {
            taken.push(front.split_off_first(part));
        }
        self.forget_taken();
        taken
    }

    /// Takes the first `count` entries. All of them take no copies, which is the usual case.
    fn take_first(&mut self, count: usize) -> Vec<QueueEntry> {
        self.left += count;
        if count < self.entries.len() {
            return self.entries.drain(..count).collect();
        }
        let next = VecDeque::with_capacity(count);
        mem::replace(&mut self.entries, next).into()
    }

    /// Removes the numbers of entries that have left.
    fn forget_taken(&mut self) {
        if self.entries.is_empty() {
            self.last_of_key.clear();
        } else {
            self.last_of_key.retain(|_, number| *number >= self.left);
        }
    }

    /// Fails the waiters past their deadline. They keep their places. Returns the last error.
    pub(super) fn expire(
        &mut self,
        until: RunningTime,
        late_error: &impl Fn(&mut Waiter) -> Option<Error>,
    ) -> Option<Error> {
        self.entries
            .iter_mut()
            .filter_map(|entry| entry.waiters.expire(until, late_error))
            .last()
    }

    pub(super) fn fail(self, error: &Error) {
        for mut entry in self.entries {
            entry.fail(error);
        }
    }

    pub(super) fn next_deadline(&self) -> Option<RunningTime> {
        self.entries
            .iter()
            .filter_map(|entry| entry.waiters.next_deadline())
            .min()
    }
}

impl QueueEntry {
    pub(super) fn new(levels: &[Check<'_>], waiter: Waiter) -> Self {
        Self {
            levels: owned(levels),
            waiters: Waiters::new(waiter),
            may_repeat: false,
        }
    }

    /// Moves the entry to a queue with another clock.
    pub(super) fn move_to(&mut self, from: Moment, to: Moment) {
        self.waiters.move_to(from, to);
    }

    pub(super) fn levels(&self) -> &[OwnedCheck] {
        &self.levels
    }

    /// Whether one check more asks for no more units than an entry may have.
    fn has_room(&self) -> bool {
        let costs = self.levels.iter().map(|level| level.check().cost);
        let checks = self.waiters.len() as u64 + 1;
        checks * u64::from(costs.max().unwrap_or_default()) <= MAX_ENTRY_UNITS
    }

    pub(super) fn fail(&mut self, error: &Error) {
        self.answer(Err(error.clone()));
    }

    pub(super) fn answer(&mut self, reply: Result<EntryAnswers, Error>) {
        match reply {
            Ok(answers) => self.waiters.answer(answers.into_iter().map(Ok)),
            Err(error) => self.waiters.answer(repeat(Err(error))),
        }
    }

    fn split_off_first(&mut self, count: usize) -> Self {
        let first = Self {
            levels: self.levels.clone(),
            waiters: self.waiters.split_off_first(count),
            may_repeat: self.may_repeat,
        };
        // The same call may take the rest.
        self.may_repeat = true;
        first
    }

    pub(super) fn parts_mut(&mut self) -> (BatchEntry<'_>, &mut Waiters) {
        let count = u32::try_from(self.waiters.len()).unwrap_or(u32::MAX);
        let entry = BatchEntry {
            levels: &self.levels,
            count,
            may_repeat: self.may_repeat,
        };
        (entry, &mut self.waiters)
    }
}

/// The entries of a call, and their work.
#[derive(Debug, Default)]
struct CallWork {
    work: u64,
    checks: usize,
    /// The subjects of the checks of several levels. What they share is read and written once.
    subjects: HashSet<Fingerprint, HashFingerprint>,
}

impl CallWork {
    #[inline]
    fn measure(&self, levels: &[OwnedCheck]) -> EntryWork {
        let mut for_entry = 0;
        let mut per_check = 0;
        for level in levels {
            let check = level.check();
            let is_new = levels.len() == 1 || !self.subjects.contains(&check.fingerprint());
            let units = check.cost.saturating_add(check.extra_units);
            for quota in check.quotas.iter() {
                if is_new {
                    for_entry += WORK_PER_COUNT;
                }
                let per_unit = quota.algorithm().work_per_unit();
                per_check += WORK_PER_CHECK + u64::from(units) * per_unit;
            }
        }
        EntryWork {
            for_entry,
            per_check,
        }
    }

    /// Returns how many checks of an entry fit, as one entry. The first check is sent however much work it is.
    #[inline]
    fn room_for(&self, work: &EntryWork) -> usize {
        let left = MAX_WORK.saturating_sub(self.work + work.for_entry);
        let checks = usize::try_from(left / work.per_check.max(1)).unwrap_or(usize::MAX);
        checks.max(usize::from(self.checks == 0))
    }

    #[inline]
    fn add(&mut self, levels: &[OwnedCheck], work: &EntryWork, checks: usize) {
        if checks == 0 {
            return;
        }
        self.work += work.for_entry + checks as u64 * work.per_check;
        self.checks += checks;
        if levels.len() > 1 {
            let fingerprints = levels.iter().map(|level| level.check().fingerprint());
            self.subjects.extend(fingerprints);
        }
    }
}

/// Whether two checks have the same levels: keys, costs, quotas, shares and slots.
fn is_identical(known: &[OwnedCheck], levels: &[Check<'_>]) -> bool {
    known.len() == levels.len()
        && known.iter().zip(levels).all(|(known, level)| {
            let known = known.check();
            // The last entry has these keys, but may have them at other levels. Each check that asks for more than its cost
            // has an answer of its own.
            let has_same_key =
                levels.len() == 1 || (known.limiter, known.key) == (level.limiter, level.key);
            has_same_key
                && known.asks_like(*level)
                // What a message has spent is charged once.
                && known.unit_holding().is_none()
                && known.holding == level.holding
                && known.extra_units == 0
                && level.extra_units == 0
        })
}

/// The work of an entry.
struct EntryWork {
    /// However many checks it has.
    for_entry: u64,
    per_check: u64,
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;

    use super::*;
    use crate::decision::{Answers, Holding};
    use crate::error::ErrorKind;
    use crate::key::Key;
    use crate::quota::{Algorithm, Quota, Quotas};
    use crate::store::future::{OutcomeSender, StoreFuture};
    use crate::store::redis::real_time::RunningClock;
    use crate::store::requests::Subject;

    fn timeout_error(_: &mut Waiter) -> Option<Error> {
        Some(Error::new(ErrorKind::Timeout, "late"))
    }

    fn now() -> Moment {
        RunningClock::new(Duration::from_secs(60)).look()
    }

    fn waiter(answer: OutcomeSender<Answers>) -> Waiter {
        Waiter::new(answer, now(), Duration::from_secs(60))
    }

    fn take_entries(queue: &mut Queue) -> Vec<QueueEntry> {
        queue.take(now().running, &timeout_error)
    }

    #[test]
    fn a_check_that_is_given_another_deadline_is_given_one_only() {
        let (mut queue, limit) = (Queue::default(), Duration::from_secs(60));
        let _answer = push(&mut queue, "ada", &Quotas::from(Quota::per_hour(9)), 1);
        let at_deadline = now();
        let late_error = |waiter: &mut Waiter| match waiter.renew(at_deadline, limit) {
            true => None,
            false => timeout_error(waiter),
        };
        let until = at_deadline.running.after(limit);
        assert!(queue.expire(until, &late_error).is_none());
        assert!(queue.next_deadline().is_some_and(|next| next >= until));
        assert!(queue.expire(until, &late_error).is_some());
        assert!(queue.next_deadline().is_none());
    }

    fn push(queue: &mut Queue, key: &str, quotas: &Quotas, cost: u32) -> StoreFuture {
        let (limiter, key) = (Key::from("l"), Key::from(key));
        let (answer, receiver) = StoreFuture::channel();
        let subject = Subject::new(&limiter, &key, quotas);
        queue.push(&[subject.check(cost)], waiter(answer));
        receiver
    }

    /// Returns the key, the cost and the number of checks of each entry of the next call.
    fn take(queue: &mut Queue) -> Vec<(String, u32, usize)> {
        let taken = take_entries(queue);
        let entry = |entry: QueueEntry| {
            let check = entry.levels[0].check();
            (
                check.key.as_str().to_owned(),
                check.cost,
                entry.waiters.len(),
            )
        };
        taken.into_iter().map(entry).collect()
    }

    fn entry(key: &str, cost: u32, count: usize) -> (String, u32, usize) {
        (key.to_owned(), cost, count)
    }

    #[test]
    fn checks_of_one_message_of_a_holder_join_and_those_of_another_do_not() {
        let mut queue = Queue::default();
        let (key, quotas) = (Key::from("ada"), Quotas::from(Quota::in_flight(9)));
        let check = Subject::new(&key, &key, &quotas).check(1);
        let lease = Duration::from_secs(15);
        let holding = |sequence, wanted| Holding::new([1; 16], sequence, 0, wanted, lease);
        let one = holding(1, 1);
        let mut receivers = Vec::new();
        for holding in [
            one,
            one,
            holding(2, 1),
            holding(2, 2),
            holding(2, 2).stated(),
        ] {
            let (answer, receiver) = StoreFuture::channel();
            let levels = [check.with_holding(&holding)];
            queue.push(&levels, waiter(answer));
            receivers.push(receiver);
        }
        let taken = take(&mut queue);
        let counts: Vec<_> = taken.into_iter().map(|(.., count)| count).collect();
        assert_eq!(counts, [2, 1, 1, 1]);
    }

    #[test]
    fn checks_of_another_share_or_lease_do_not_join() {
        let (mut queue, key) = (Queue::default(), Key::from("ada"));
        let quotas: Quotas = "9/minute batch<=4".parse().unwrap();
        let subject = Subject::new(&key, &key, &quotas);
        let (batch, leased) = (
            subject.in_share("batch"),
            subject.with_lease(Duration::from_secs(1)),
        );
        let mut receivers = Vec::new();
        // The second share is of no quota.
        for subject in [subject, subject.in_share("other"), batch, batch, leased] {
            let (answer, receiver) = StoreFuture::channel();
            queue.push(&[subject.check(1)], waiter(answer));
            receivers.push(receiver);
        }
        let counts: Vec<_> = take(&mut queue)
            .into_iter()
            .map(|(.., count)| count)
            .collect();
        assert_eq!(counts, [2, 2, 1]);
    }

    #[test]
    fn a_check_of_the_same_keys_in_another_order_is_an_entry_of_its_own() {
        let (mut queue, quotas) = (Queue::default(), Quotas::from(Quota::per_minute(9)));
        let [limiter, ada, bob] = ["l", "ada", "bob"].map(Key::from);
        let subject = |key| Subject::new(&limiter, key, &quotas);
        let mut receivers = Vec::new();
        for [from, to] in [[&ada, &bob], [&bob, &ada], [&bob, &ada]] {
            let (answer, receiver) = StoreFuture::channel();
            let levels = [subject(from).check(2), subject(to).check(3)];
            queue.push(&levels, waiter(answer));
            receivers.push(receiver);
        }
        assert_eq!(take(&mut queue), [entry("ada", 2, 1), entry("bob", 2, 2)]);
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
        let set = Quotas::from(Quota::per_minute(9).with_algorithm(Algorithm::SortedSetLog));
        waiting.push(push(&mut queue, "b", &set, 100_000));
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

    /// The guide names the buckets of `tollgate_batch_checks`. A larger call would be beyond the last one.
    #[test]
    fn no_call_has_more_than_400_checks_and_the_cheapest_have_more_than_256() {
        let calls = Algorithm::ALL.iter().flat_map(|algorithm| {
            [0, 1].map(|cost| {
                let quota = Quota::per_minute(9).with_algorithm(*algorithm);
                let (mut queue, quotas) = (Queue::default(), Quotas::from(quota));
                let push = |_| push(&mut queue, "a", &quotas, cost);
                let _waiting: Vec<_> = (0..1_000).map(push).collect();
                let taken = take(&mut queue);
                taken.iter().map(|(.., count)| count).sum::<usize>()
            })
        });
        let most = calls.max().unwrap();
        assert!((257..=400).contains(&most), "{most}");
    }

    #[test]
    fn checks_of_one_entry_ask_for_no_more_units_than_the_script_takes() {
        let quota = Quota::per_minute(u32::MAX).with_algorithm(Algorithm::Gcra);
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

    /// Queues a check of several levels: keys and costs.
    fn push_levels(queue: &mut Queue, levels: &[(&str, u32)], quotas: &Quotas) -> StoreFuture {
        let limiter = Key::from("l");
        let keys: Vec<_> = levels.iter().map(|(key, _)| Key::from(*key)).collect();
        let checks = keys.iter().zip(levels);
        let checks: Vec<_> = checks
            .map(|(key, (_, cost))| Subject::new(&limiter, key, quotas).check(*cost))
            .collect();
        let (answer, receiver) = StoreFuture::channel();
        queue.push(&checks, waiter(answer));
        receiver
    }

    #[test]
    fn a_check_of_several_levels_joins_the_last_entry_of_all_its_keys_if_all_levels_are_identical()
    {
        let (mut queue, quotas) = (Queue::default(), Quotas::from(Quota::per_minute(9)));
        let mut push = |levels: &[(&str, u32)]| push_levels(&mut queue, levels, &quotas);
        let waiting = [
            push(&[("a", 1), ("t", 1)]),
            push(&[("a", 1), ("t", 1)]),
            // Another user, after which the first is not the last of the tenant.
            push(&[("b", 1), ("t", 1)]),
            push(&[("a", 1), ("t", 1)]),
            push(&[("a", 1), ("t", 1)]),
            // Another cost, order, and number of levels.
            push(&[("a", 1), ("t", 2)]),
            push(&[("t", 2), ("a", 1)]),
            push(&[("a", 1)]),
            push(&[("a", 1)]),
            push(&[("t", 2), ("a", 1)]),
            push(&[("c", 1), ("d", 1)]),
            push(&[("c", 1), ("d", 1)]),
        ];
        let taken = take_entries(&mut queue);
        let entries = taken.iter().map(|entry| {
            let keys = entry.levels.iter().map(|level| level.check().key.as_str());
            (
                keys.collect::<String>(),
                entry.waiters.len(),
                entry.may_repeat,
            )
        });
        let entries: Vec<_> = entries.collect();
        let expected = [
            ("at", 2, false),
            ("bt", 1, true),
            ("at", 2, true),
            ("at", 1, true),
            ("ta", 1, true),
            ("a", 2, true),
            ("ta", 1, true),
            ("cd", 2, false),
        ];
        assert_eq!(
            entries,
            expected.map(|(keys, count, repeats)| (keys.to_owned(), count, repeats))
        );
        assert!(queue.is_empty() && queue.last_of_key.is_empty());
        drop(waiting);
    }

    #[test]
    fn what_the_checks_of_a_call_share_is_work_once() {
        let (mut queue, quotas) = (Queue::default(), Quotas::from(Quota::per_minute(9)));
        let users: Vec<_> = (0..400).map(|user| user.to_string()).collect();
        let mut calls = [0, 0].map(|_| Vec::new());
        for (is_shared, calls) in [false, true].into_iter().zip(&mut calls) {
            let waiting: Vec<_> = users
                .iter()
                .map(|user| {
                    let others = ["t", "u", "v"].map(|level| match is_shared {
                        true => level.to_owned(),
                        false => format!("{level}{user}"),
                    });
                    let levels = std::iter::once(user).chain(&others);
                    let levels: Vec<_> = levels.map(|key| (key.as_str(), 1)).collect();
                    push_levels(&mut queue, &levels, &quotas)
                })
                .collect();
            while !queue.is_empty() {
                calls.push(take_entries(&mut queue).len());
            }
            drop(waiting);
        }
        let [alone, shared] = calls.map(|calls| calls[0]);
        assert_eq!((alone, shared), (20, 48));
    }

    #[test]
    fn an_entry_that_is_divided_repeats_its_keys_in_the_call() {
        let quota = Quota::per_minute(u32::MAX).with_algorithm(Algorithm::Gcra);
        let (mut queue, quotas) = (Queue::default(), Quotas::from(quota));
        let waiting = [60_000, 60_000].map(|cost| push(&mut queue, "a", &quotas, cost));
        let taken = take_entries(&mut queue);
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
            let checks = taken.into_iter().flat_map(|(key, cost, count)| {
                std::iter::repeat_n((key, cost), count)
            });
            let checks: Vec<_> = checks.collect();
            for key in keys {
                let costs = |all: &[(String, u32)]| {
                    let of_key = all.iter().filter(|(pushed, _)| pushed == key);
                    of_key.map(|(_, cost)| *cost).collect::<Vec<_>>()
                };
                prop_assert_eq!(costs(&pushed), costs(&checks));
            }
        }
    }
}
