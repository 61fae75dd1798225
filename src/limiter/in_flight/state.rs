//! The keys of a table, and the questions about them that no message has.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::time::Duration;

use smallvec::SmallVec;
use tokio::sync::oneshot;

use super::held_key::{GATHERED, HeldKey, Refusal};
use super::held_slots::{HeldSlots, Slots, SlotsOfKey};
use super::message::{Listener, SlotCheck, Taken, Wanted, answer_to_caller, slot_answers};
use crate::decision::{Answers, Source, Wait};
use crate::error::Error;
use crate::key::{Fingerprint, HashFingerprint};
use crate::limiter::line::{LineKey, Ticket, Want, Wants, Woken, slots as lines};
use crate::quota::Quotas;
use crate::store::{Check, StoreFuture};

/// The bounds of the wait that a refusal suggests, and how many permits of a limiter it is the median of.
const HINT: std::ops::RangeInclusive<u64> = 1_000_000..=60_000_000;
const REMEMBERED_TIMES: usize = 33;

/// The longest time for which a refusal is repeated, in microseconds: other processes may give slots back.
const REPEATED: u64 = 20_000;

/// The state of a table, which its lock protects.
#[derive(Default)]
pub(super) struct State {
    pub(super) keys: HashMap<Fingerprint, HeldKey, HashFingerprint>,
    /// The questions that no message has, in the order in which the calls arrived.
    pub(super) questions: BTreeMap<Ticket, SlotCheck>,
    pub(super) sequence: u64,
    /// How often the store has lost data.
    pub(super) losses: u64,
    /// When keys have something to say, in order.
    timers: BTreeSet<(u64, Fingerprint)>,
    /// The keys whose last message has failed, by the part of the store that has them.
    failed: BTreeMap<usize, BTreeSet<Fingerprint>>,
    /// The last times for which permits of a limiter were held, by the fingerprint of its name.
    held_for: HashMap<Fingerprint, VecDeque<u64>, HashFingerprint>,
    /// The keys that may have a message to send now.
    pub(super) to_look: Vec<Fingerprint>,
    /// When the thread looks again. `None` without a thread.
    pub(super) looks_at: Option<u64>,
    pub(super) outbox: Outbox,
}

/// The answers that callers get when the table is unlocked: sending one may drop a permit.
#[derive(Default)]
pub(super) struct Outbox {
    pub(super) answers: Vec<(oneshot::Sender<Taken>, Taken)>,
    pub(super) told: Vec<(Listener, Result<(), Error>)>,
    pub(super) woken: Vec<Woken>,
    /// Whether a lease ends sooner than before.
    pub(super) ends_sooner: bool,
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

    /// Returns the questions of a message about a key, in order, and the slots that they want of each key. They want no more than
    /// the limit: the others come with the next message, or wait in line meanwhile.
    ///
    /// No question overtakes another one of the same key.
    pub(super) fn choose(
        &mut self,
        id: Fingerprint,
    ) -> (Vec<SlotCheck>, BTreeMap<Fingerprint, u32>) {
        let (mut chosen, mut wanted) = (Vec::new(), BTreeMap::<_, u32>::new());
        while let Some(ticket) = self.first(id) {
            let Some(question) = self.questions.get(&ticket) else {
                break;
            };
            let caller = question.caller.as_ref();
            let is_gone = caller.is_none_or(|caller| caller.answer.is_closed());
            let is_behind = !is_gone
                && caller.is_some_and(|caller| {
                    lines::is_behind(ticket, &caller.wants, caller.presence.is_some())
                });
            let may_ask = question.wanted.iter().all(|of_key| {
                let key = self.keys.get(&of_key.id).filter(|key| !key.is_busy);
                let sum = wanted.get(&of_key.id).map_or(0, |sum: &u32| *sum);
                let fits = |key: &HeldKey| {
                    let limit = key.quotas.min_slots(key.share).unwrap_or(u32::MAX);
                    sum == 0 || sum.saturating_add(of_key.slots) <= limit
                };
                key.is_some_and(|key| key.waiting.first() == Some(&ticket) && fits(key))
            });
            if !(may_ask || is_gone || is_behind) {
                break;
            }
            let Some(question) = self.take_question(ticket) else {
                break;
            };
            if is_gone || is_behind {
                // Others may have waited behind it.
                let others = question.wanted.iter().map(|wanted| wanted.id);
                self.to_look.extend(others.filter(|other| *other != id));
                if is_behind {
                    self.put_back(question);
                }
                continue;
            }
            for Wanted { id, slots, .. } in &question.wanted {
                let sum = wanted.entry(*id).or_default();
                *sum = sum.saturating_add(*slots);
            }
            chosen.push(question);
        }
        (chosen, wanted)
    }

    /// Fails the questions that no message has.
    pub(super) fn fail_questions(&mut self, error: &Error) {
        while let Some((ticket, _)) = self.questions.first_key_value() {
            let question = self.take_question(*ticket);
            let caller = question.and_then(|question| question.caller);
            let failed = caller.map(|caller| (caller.answer, Err(error.clone())));
            self.outbox.answers.extend(failed);
        }
    }

    fn first(&self, id: Fingerprint) -> Option<Ticket> {
        self.keys.get(&id)?.waiting.first().copied()
    }

    fn take_question(&mut self, ticket: Ticket) -> Option<SlotCheck> {
        let question = self.questions.remove(&ticket)?;
        self.each(&question.wanted, |key, _| {
            key.waiting.remove(&ticket);
        });
        Some(question)
    }

    /// Takes in the answers of the store to a question, and answers the caller.
    pub(super) fn decided(
        &mut self,
        question: SlotCheck,
        mut answers: Answers,
        hold: impl Fn(Slots) -> HeldSlots,
        (sent_at, now): (u64, u64),
    ) {
        let is_admitted = answers.are_admitted();
        self.each(&question.wanted, |key, wanted| {
            let (quotas, answer) = (question.quotas(wanted.level), answers.get_mut(wanted.level));
            let slots = quotas.zip(answer).into_iter();
            let mut slots = slots.flat_map(|(quotas, answer)| slot_answers(quotas, answer));
            let is_nearly_full =
                slots.any(|(quota, answer)| answer.used().saturating_add(1) >= quota.limit());
            key.gathered = if is_nearly_full { 0 } else { GATHERED };
        });
        let Some(caller) = &question.caller else {
            return;
        };
        if caller.answer.is_closed() {
            if is_admitted {
                self.each(&question.wanted, |key, _| key.is_changed = true);
            }
            return;
        }
        self.prepare(
            &question.wanted,
            |level| question.quotas(level),
            &mut answers,
        );
        let held = is_admitted.then(|| self.grant(&question.wanted, &caller.wants, true, now));
        if !is_admitted {
            self.remember(&question, &answers, sent_at);
        }
        self.answer(question, answers, true, held.map(hold));
    }

    /// Answers a question that an earlier call waits before: its caller stands in line.
    fn put_back(&mut self, question: SlotCheck) {
        let mut answers = question.refused_in_line();
        self.prepare(
            &question.wanted,
            |level| question.quotas(level),
            &mut answers,
        );
        self.answer(question, answers, false, None);
    }

    fn answer(
        &mut self,
        question: SlotCheck,
        answers: Answers,
        is_of_store: bool,
        held: Option<HeldSlots>,
    ) {
        let Some(caller) = &question.caller else {
            return;
        };
        let returned = |level| {
            let mut of_level = question
                .wanted
                .iter()
                .filter(|wanted| wanted.level == level);
            let key = of_level.next().and_then(|wanted| self.keys.get(&wanted.id));
            key.map_or(0, |key| key.returned)
        };
        let left = question.room_left(&caller.wants, &answers, returned);
        let left =
            left.map(|(want, left, is_refused)| (want, is_of_store.then_some(left), is_refused));
        let left: SmallVec<[_; 2]> = left.collect();
        let woken = lines::take_in(caller.ticket, &left, caller.presence.as_ref());
        self.outbox.woken.push(woken);
        if let Some(caller) = question.caller {
            let taken = Ok((answers, held));
            self.outbox.answers.push((caller.answer, taken));
        }
    }

    /// Holds the slots of a new permit.
    pub(super) fn grant(
        &mut self,
        wanted: &[Wanted],
        wants: &Wants,
        by_store: bool,
        now: u64,
    ) -> Slots {
        let mut of_keys = SmallVec::new();
        self.each(wanted, |key, Wanted { level, id, slots }| {
            let epoch = match by_store {
                true => key.grant(*slots),
                false => key.grant_untold(*slots, now),
            };
            if let Some(Want { line, .. }) = wants.get(*level) {
                let (id, line, slots) = (*id, *line, *slots);
                of_keys.push(SlotsOfKey {
                    id,
                    line,
                    slots,
                    epoch,
                });
            }
        });
        let since = now;
        Slots { since, of_keys }
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

    /// Takes in the end of a message about a key. After a failure, the first reply states all keys whose messages have failed.
    pub(super) fn end_message(
        &mut self,
        id: Fingerprint,
        sent_at: u64,
        failure: Option<&Error>,
        now: u64,
    ) {
        let Some(key) = self.keys.get_mut(&id) else {
            return;
        };
        let valid_until = key.valid_until;
        key.end_message(sent_at, failure.is_some(), now);
        // The message had a shorter lease.
        self.outbox.ends_sooner |= key.valid_until.is_some() && key.valid_until < valid_until;
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
    }

    /// Returns whether the store has acknowledged a key since it last lost data.
    pub(super) fn is_up_to_date(&self, id: Fingerprint) -> bool {
        let key = self.keys.get(&id);
        key.is_some_and(|key| key.losses == Some(self.losses))
    }

    /// Returns the keys of which the store may not know what is held.
    pub(super) fn untold(&mut self) -> Vec<Fingerprint> {
        let keys = self.keys.iter();
        let untold = keys.filter(|(_, key)| key.is_changed || key.is_busy);
        untold.map(|(id, _)| *id).collect()
    }

    /// Sets when the store learns what was given back of a key: at once if that `is_awaited`, and with the next question if
    /// there `is_asked` one now. Returns what waits until the store knows.
    pub(super) fn flush(
        &mut self,
        id: Fingerprint,
        is_awaited: bool,
        is_asked: bool,
        now: u64,
    ) -> Option<StoreFuture<()>> {
        let key = self.keys.get_mut(&id)?;
        let told = is_awaited.then(|| key.tell(now));
        if key.is_changed {
            key.flush(is_asked, now);
        }
        self.update_timer(id, now);
        told
    }

    /// Returns whether this process holds slots.
    pub(super) fn holds_any(&self) -> bool {
        self.keys.values().any(|key| key.stated() > 0)
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

    /// Returns a key that may have a message to send now.
    pub(super) fn next_due(&mut self, now: u64) -> Option<Fingerprint> {
        let due = || self.timers.first().filter(|(at, _)| *at <= now);
        self.to_look.pop().or_else(|| due().map(|(_, id)| *id))
    }

    /// Returns when a key may have a message to send.
    pub(super) fn next_look(&self) -> Option<u64> {
        let at_once = (!self.to_look.is_empty()).then_some(0);
        at_once.or_else(|| self.timers.first().map(|(at, _)| *at))
    }

    /// Gives slots back. Returns the lines of other shares that may get them.
    pub(super) fn give_back(&mut self, slots: &Slots, now: u64) -> Vec<SlotsOfKey> {
        let mut others = Vec::new();
        let micros = now.saturating_sub(slots.since);
        for of_key in &slots.of_keys {
            let Some(key) = self.keys.get_mut(&of_key.id) else {
                continue;
            };
            key.release(of_key.slots, of_key.epoch);
            let held_for = Duration::from_micros(micros);
            key.meter.record_release(of_key.slots, held_for);
            let times = self.held_for.entry(key.limiter.fingerprint()).or_default();
            times.push_back(micros);
            if times.len() > REMEMBERED_TIMES {
                times.pop_front();
            }
            for (share, id) in key.other_shares() {
                let line = LineKey {
                    share,
                    ..of_key.line
                };
                others.push(SlotsOfKey {
                    id,
                    line,
                    ..*of_key
                });
            }
        }
        for other in &others {
            if let Some(key) = self.keys.get_mut(&other.id) {
                key.refusal = None;
            }
        }
        others
    }
}

fn median(times: Option<&VecDeque<u64>>) -> u64 {
    let mut times: Vec<u64> = times.into_iter().flatten().copied().collect();
    times.sort_unstable();
    let median = times.get(times.len() / 2).copied().unwrap_or_default();
    median.clamp(*HINT.start(), *HINT.end())
}
