//! The keys of a table, the checks that wait, and the permits.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};
use std::time::Duration;

use smallvec::SmallVec;
use tokio::runtime::{Handle, Id};

use super::held_key::{AFTER_RELEASE, GATHERED, HeldKey, POLL, Refusal, jittered};
use super::message::{Caller, SlotCheck, Wanted, answer_to_caller};
use crate::decision::{Answer, Answers, QuotaAnswer, Source, Wait};
use crate::error::Error;
use crate::key::{Fingerprint, HashFingerprint};
use crate::quota::{Quota, Quotas};
use crate::store::Check;

/// The bounds of the wait that a refusal suggests, and how many permits of a limiter it is the median of.
const HINT: std::ops::RangeInclusive<u64> = 1_000_000..=60_000_000;
const REMEMBERED_TIMES: usize = 33;

/// The longest time for which a refusal is repeated, in microseconds: other processes may give slots back.
const REPEATED: u64 = 20_000;

/// The state of a table, which its lock protects.
#[derive(Default)]
pub(super) struct State {
    pub(super) keys: HashMap<Fingerprint, HeldKey, HashFingerprint>,
    /// The checks that no message has, by ticket: in the order of their arrival.
    pub(super) line: BTreeMap<u64, SlotCheck>,
    /// The tickets of checks that a message has. Those of callers that have gone are missing.
    pub(super) sent: HashSet<u64>,
    /// The permits, by ticket.
    pub(super) permits: HashMap<u64, HeldSlots>,
    /// The decisions of this process in place of the store, until the caller takes them.
    pub(super) decided_here: HashMap<u64, Answers>,
    pub(super) latest_ticket: u64,
    pub(super) sequence: u64,
    /// How often the store has lost data.
    pub(super) losses: u64,
    /// When keys have something to say, in order.
    timers: BTreeSet<(u64, Fingerprint)>,
    /// The keys whose last message has failed, by the part of the store that has them.
    failed: BTreeMap<usize, BTreeSet<Fingerprint>>,
    /// The last times for which permits of a limiter were held, by the fingerprint of its name.
    held_for: HashMap<Fingerprint, VecDeque<u64>, HashFingerprint>,
    /// The runtimes on which checks were made. Messages are sent on one of them if there is no current one.
    runtimes: Vec<Handle>,
    /// The timer that a task waits for, at the latest. `None` without such a task.
    pub(super) waits_for: Option<u64>,
}

/// The slots of a permit.
pub(super) struct HeldSlots {
    pub(super) since: u64,
    /// The key, the number, and the epoch.
    pub(super) slots: SmallVec<[(Fingerprint, u32, u64); 1]>,
}

impl State {
    /// Visits the keys of which slots are wanted.
    pub(super) fn each<'a>(
        &mut self,
        wanted: &'a [Wanted],
        mut visit: impl FnMut(&mut HeldKey, &'a Wanted),
    ) {
        for wanted in wanted {
            if let Some(key) = self.keys.get_mut(&wanted.id) {
                visit(key, wanted);
            }
        }
    }

    /// Returns the checks that a message about these keys asks, in order, and the slots that they want of each key.
    ///
    /// No check overtakes another one of the same key.
    pub(super) fn choose(
        &mut self,
        due: &[Fingerprint],
        now: u64,
    ) -> (Vec<u64>, BTreeMap<Fingerprint, u32>) {
        let (tickets, around) = self.around(due);
        let (mut chosen, mut wanted) = (Vec::new(), BTreeMap::<_, u32>::new());
        let (mut blocked, mut behind) = (BTreeSet::new(), BTreeSet::new());
        for ticket in tickets {
            let Some(check) = self.line.get(&ticket) else {
                continue;
            };
            let ids = check.wanted.iter().map(|wanted| wanted.id);
            let is_busy = |id: &Fingerprint| self.keys.get(id).is_some_and(|key| key.is_busy);
            let yields = |id: &Fingerprint| {
                let key = self.keys.get(id);
                key.is_some_and(|key| key.yields_until > now)
            };
            let waits = check.waits_until().is_some_and(|until| now < until);
            if check.asks_at(now) > now || waits && ids.clone().any(|id| yields(&id)) {
                // A rate refuses it until then, so that others need not wait. Or other processes may get a slot.
            } else if ids.clone().any(|id| blocked.contains(&id) || is_busy(&id)) {
                blocked.extend(ids);
            } else if self.is_hopeless(check, &wanted, now) {
                behind.extend(ids);
            } else {
                for Wanted { id, slots, .. } in &check.wanted {
                    let sum = wanted.entry(*id).or_default();
                    *sum = sum.saturating_add(*slots);
                }
                chosen.push(ticket);
            }
        }
        for id in around {
            let Some(key) = self.keys.get_mut(&id) else {
                continue;
            };
            if blocked.contains(&id) {
                // The busy key asks for it.
                (key.asks_again, key.asks_at) = (true, None);
            } else if behind.contains(&id) && !wanted.contains_key(&id) {
                // Its checks ask with those of the other key.
                key.asks_at = None;
            } else if !key.is_busy && !wanted.contains_key(&id) {
                key.asks_at = None;
                self.ask_later(id, now);
            }
            self.update_timer(id, now);
        }
        (chosen, wanted)
    }

    /// Returns the tickets that wait for these keys, and for others that these tickets wait for. And all of these keys.
    fn around(&self, ids: &[Fingerprint]) -> (BTreeSet<u64>, BTreeSet<Fingerprint>) {
        let (mut tickets, mut seen) = (BTreeSet::new(), BTreeSet::new());
        let mut next = ids.to_vec();
        while let Some(id) = next.pop() {
            let Some(key) = self.keys.get(&id).filter(|_| seen.insert(id)) else {
                continue;
            };
            let new = key.waiting.iter().filter(|ticket| tickets.insert(**ticket));
            let checks = new.filter_map(|ticket| self.line.get(ticket));
            next.extend(checks.flat_map(|check| check.wanted.iter().map(|wanted| wanted.id)));
        }
        (tickets, seen)
    }

    /// Returns whether the checks before this one take all slots, so that it asks when they have got theirs.
    fn is_hopeless(
        &self,
        check: &SlotCheck,
        before: &BTreeMap<Fingerprint, u32>,
        now: u64,
    ) -> bool {
        check.waits_until().is_some_and(|until| now < until)
            && check.wanted.iter().any(|wanted| {
                let before = before.get(&wanted.id).copied().unwrap_or_default();
                let key = self.keys.get(&wanted.id);
                let limit = key.and_then(|key| key.quotas.min_slots(key.share));
                before > 0 && before.saturating_add(wanted.slots) > limit.unwrap_or(u32::MAX)
            })
    }

    /// Sets when the checks ask that wait for a key: at once if others got slots.
    pub(super) fn ask_later(&mut self, id: Fingerprint, now: u64) {
        let Some(key) = self.keys.get_mut(&id) else {
            return;
        };
        let next = match std::mem::take(&mut key.asks_again) {
            true => now.max(key.yields_until),
            false => now + jittered(POLL),
        };
        let checks = key
            .waiting
            .iter()
            .filter_map(|ticket| self.line.get(ticket));
        if let Some(at) = checks.map(|check| check.asks_at(next)).min() {
            key.ask_at(at);
        }
    }

    /// Takes in the decision about a check, by the store or by this process.
    ///
    /// Returns the caller and its answers, unless it has gone or waits on.
    pub(super) fn decided(
        &mut self,
        mut check: SlotCheck,
        mut answers: Answers,
        sent_at: u64,
        now: u64,
    ) -> Option<(Caller, Answers)> {
        let is_admitted = answers.are_admitted();
        let by_store = answers
            .iter()
            .all(|answer| answer.source() != Source::Fallback);
        self.each(&check.wanted, |key, wanted| {
            let (quotas, answer) = (check.quotas(wanted.level), answers.get_mut(wanted.level));
            let slots = quotas.zip(answer).into_iter();
            let mut slots = slots.flat_map(|(quotas, answer)| slot_answers(quotas, answer));
            let is_nearly_full =
                slots.any(|(quota, answer)| answer.used().saturating_add(1) >= quota.limit());
            key.gathered = if is_nearly_full { 0 } else { GATHERED };
        });
        let ticket = check.caller.as_ref()?.ticket;
        if !self.sent.remove(&ticket) {
            if is_admitted && by_store {
                self.each(&check.wanted, |key, _| {
                    (key.is_changed, key.asks_again) = (true, true);
                });
            }
            return None;
        }
        if !is_admitted && check.is_repeated(&answers, now) {
            self.each(&check.wanted, |key, _| {
                key.waiting.insert(ticket);
            });
            self.line.insert(ticket, check);
            return None;
        }
        self.prepare(&check.wanted, |level| check.quotas(level), &mut answers);
        if is_admitted {
            self.grant(ticket, &check.wanted, by_store, now);
        } else if by_store {
            self.remember(&check, &answers, sent_at);
        }
        let mut caller = check.caller?;
        if let Some(wait) = caller.wait.take().filter(|_| is_admitted) {
            let waited = now.saturating_sub(wait.since);
            wait.meter.succeed(Duration::from_micros(waited));
        }
        Some((caller, answers))
    }

    /// Makes a permit.
    pub(super) fn grant(&mut self, ticket: u64, wanted: &[Wanted], by_store: bool, now: u64) {
        let mut slots = SmallVec::new();
        self.each(wanted, |key, Wanted { id, slots: new, .. }| {
            let epoch = match by_store {
                true => key.grant(*new),
                false => key.grant_untold(*new, now),
            };
            slots.push((*id, *new, epoch));
        });
        self.permits.insert(ticket, HeldSlots { since: now, slots });
    }

    /// Makes these the answers for the caller: without notes, and with a suggested wait for slots.
    pub(super) fn prepare<'a>(
        &self,
        wanted: &[Wanted],
        quotas: impl Fn(usize) -> Option<&'a Quotas>,
        answers: &mut Answers,
    ) {
        for Wanted { level, id, .. } in wanted {
            let (Some(key), Some(quotas)) = (self.keys.get(id), quotas(*level)) else {
                continue;
            };
            let hint = || median(self.held_for.get(&key.limiter.fingerprint()));
            let of_level = answers.get_mut(*level).into_iter();
            for (_, answer) in of_level.flat_map(|answer| slot_answers(quotas, answer)) {
                *answer = answer_to_caller(answer, hint);
            }
        }
    }

    /// Remembers a refusal by slots, unless some of them were given back since.
    fn remember(&mut self, check: &SlotCheck, answers: &Answers, sent_at: u64) {
        let until = sent_at.saturating_add(REPEATED.min(check.store.max_refusal_age()));
        for wanted in &check.wanted {
            let (Some(level), Some(answer), Some(key)) = (
                check.checks.get(wanted.level),
                answers.get(wanted.level),
                self.keys.get_mut(&wanted.id),
            ) else {
                continue;
            };
            let mut answer = answer.clone();
            let is_full = slot_answers(level.check().quotas, &mut answer)
                .any(|(_, answer)| answer.wait() != Wait::Zero);
            if is_full && !key.is_changed {
                answer.set_source(Source::RefusalCache);
                key.refusal = Some(Refusal {
                    wanted: wanted.slots,
                    check: level.clone(),
                    answer,
                    until,
                });
            }
        }
    }

    /// Returns the remembered refusals of checks, if there is one. Levels without one were not asked.
    pub(super) fn remembered(
        &self,
        checks: &[Check<'_>],
        wanted: &[Wanted],
        now: u64,
    ) -> Option<Answers> {
        let mut answers = Answers::empty(checks.len());
        let mut is_refused = false;
        for Wanted { level, id, slots } in wanted {
            let refusal = self.keys.get(id).and_then(|key| key.refusal.as_ref());
            if let (Some(refusal), Some(check), Some(answer)) =
                (refusal, checks.get(*level), answers.get_mut(*level))
                && (now < refusal.until && refusal.wanted <= *slots)
                && refusal.check.check().asks_like(*check)
            {
                *answer = refusal.answer.clone();
                is_refused = true;
            }
        }
        is_refused.then_some(answers)
    }

    /// Takes in the end of a message about a key. Returns whether its permits may be lost sooner than before: the message had a
    /// shorter lease. After a failure, the first reply states all keys whose messages have failed.
    pub(super) fn end_message(
        &mut self,
        id: Fingerprint,
        sent_at: u64,
        failure: Option<&Error>,
        now: u64,
    ) -> bool {
        let Some(key) = self.keys.get_mut(&id) else {
            return false;
        };
        let valid_until = key.valid_until;
        key.end_message(sent_at, failure.is_some(), now);
        let ends_sooner = key.valid_until.is_some() && key.valid_until < valid_until;
        if failure.is_none() {
            key.losses = Some(self.losses);
        }
        if key.is_changed && failure.is_some_and(Error::is_outage) {
            let of_server = self.failed.entry(key.server()).or_default();
            of_server.insert(id);
        } else if failure.is_none() && !self.failed.is_empty() {
            let of_server = self.failed.remove(&key.server());
            self.state_now(of_server.into_iter().flatten(), now);
        }
        ends_sooner
    }

    /// Returns whether the store has acknowledged a key since it last lost data.
    pub(super) fn is_up_to_date(&self, id: Fingerprint) -> bool {
        let key = self.keys.get(&id);
        key.is_some_and(|key| key.losses == Some(self.losses))
    }

    /// Returns the keys of which the store may not know what is held.
    pub(super) fn untold(&self) -> SmallVec<[Fingerprint; 1]> {
        let keys = self.keys.iter();
        let untold = keys.filter(|(_, key)| key.is_changed || key.is_busy);
        untold.map(|(id, _)| *id).collect()
    }

    /// States what is held of these keys.
    pub(super) fn state_now(&mut self, ids: impl IntoIterator<Item = Fingerprint>, now: u64) {
        for id in ids {
            if let Some(key) = self.keys.get_mut(&id)
                && (key.stated() > 0 || key.is_changed)
            {
                key.state_at(now);
                self.update_timer(id, now);
            }
        }
    }

    /// Sets the timer of a key, or removes the key if nothing is left to say about it.
    pub(super) fn update_timer(&mut self, id: Fingerprint, now: u64) {
        let Some(key) = self.keys.get_mut(&id) else {
            return;
        };
        key.refusal.take_if(|refusal| refusal.until <= now);
        let timer = key.next_timer();
        if timer != key.timer {
            let before = std::mem::replace(&mut key.timer, timer);
            self.timers.extend(timer.map(|timer| (timer, id)));
            if let Some(before) = before {
                self.timers.remove(&(before, id));
            }
        }
        if key.is_over() {
            if !self.failed.is_empty()
                && let Some(failed) = self.failed.get_mut(&key.server())
            {
                failed.remove(&id);
            }
            self.keys.remove(&id);
        }
    }

    /// Returns the keys whose timers are due. Their timers are set anew with their next messages.
    pub(super) fn due(&self, now: u64) -> Vec<Fingerprint> {
        let due = self.timers.iter().take_while(|(at, _)| *at <= now);
        due.map(|(_, id)| *id).collect()
    }

    pub(super) fn next_timer(&self) -> Option<u64> {
        self.timers.first().map(|(at, _)| *at)
    }

    /// Returns the current runtime, or another one on which checks were made, but not one that has ended.
    pub(super) fn runtime(&mut self, ended: Option<Id>) -> Option<Handle> {
        let current = Handle::try_current().ok();
        let is_known = |current: &Handle| {
            let mut runtimes = self.runtimes.iter();
            runtimes.any(|known| known.id() == current.id())
        };
        let new = current.clone().filter(|current| !is_known(current));
        self.runtimes.extend(new);
        self.runtimes.retain(|runtime| Some(runtime.id()) != ended);
        let current = current.filter(|current| Some(current.id()) != ended);
        current.or_else(|| self.runtimes.last().cloned())
    }

    /// Gives the slots of a permit back, or takes a check out of the line. Returns the keys that have something to say.
    pub(super) fn end(&mut self, ticket: u64, now: u64) -> SmallVec<[Fingerprint; 1]> {
        let (mut ids, mut others) = (SmallVec::new(), Vec::new());
        self.sent.remove(&ticket);
        self.decided_here.remove(&ticket);
        if let Some(check) = self.line.remove(&ticket) {
            for Wanted { id, .. } in check.wanted {
                if let Some(key) = self.keys.get_mut(&id) {
                    key.waiting.remove(&ticket);
                    // Others may have waited behind it.
                    if key.asks_again {
                        key.ask_at(now);
                    }
                }
                ids.push(id);
            }
        }
        let permit = self.permits.remove(&ticket).into_iter();
        for (since, (id, slots, epoch)) in permit.flat_map(|permit| {
            permit
                .slots
                .into_iter()
                .map(move |slots| (permit.since, slots))
        }) {
            if let Some(key) = self.keys.get_mut(&id) {
                key.release(slots, epoch, now);
                others.extend(key.other_shares().into_iter().map(|(_, id)| id));
                let micros = now.saturating_sub(since);
                key.meter
                    .record_release(slots, Duration::from_micros(micros));
                let times = self.held_for.entry(key.limiter.fingerprint()).or_default();
                times.push_back(micros);
                if times.len() > REMEMBERED_TIMES {
                    times.pop_front();
                }
            }
            ids.push(id);
        }
        for id in &others {
            if let Some(key) = self.keys.get_mut(id) {
                key.refusal = None;
                key.ask_at(now + AFTER_RELEASE);
            }
        }
        for id in ids.iter().chain(&others) {
            self.update_timer(*id, now);
        }
        ids
    }
}

/// Returns the quotas in flight of a level, with their answers.
fn slot_answers<'a>(
    quotas: &'a Quotas,
    answer: &'a mut Answer,
) -> impl Iterator<Item = (&'a Quota, &'a mut QuotaAnswer)> {
    let answers = quotas.iter().zip(answer.quotas_mut());
    answers.filter(|(quota, _)| quota.is_in_flight())
}

fn median(times: Option<&VecDeque<u64>>) -> u64 {
    let mut times: Vec<u64> = times.into_iter().flatten().copied().collect();
    times.sort_unstable();
    let median = times.get(times.len() / 2).copied().unwrap_or_default();
    median.clamp(*HINT.start(), *HINT.end())
}
