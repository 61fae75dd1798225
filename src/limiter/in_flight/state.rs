//! Puts the messages of a table together, and takes in their replies.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::mem;
use std::sync::Arc;
use std::time::Duration;

use smallvec::SmallVec;

use super::held_key::{GATHERED, HeldKey};
use super::message::{HINTS, Message, Reply, late, no_reply, superseded};
use super::table::{HeldSlots, PermitTable, SlotCheck, SlotLevel, State};
use crate::clock::certain_part;
use crate::decision::{Answers, HoldingNote, QuotaAnswer, Wait};
use crate::error::Error;
use crate::key::Fingerprint;
use crate::limiter::line::{LINES, LineKey, Want};
#[cfg(tollgate_simulation)]
use crate::planted::is_planted;
use crate::store::StoreFuture;

/// How many permits of a limiter the wait that a refusal suggests is the median of.
const REMEMBERED_TIMES: usize = 33;

/// The longest time for which a refusal is repeated: other processes may give slots back.
const REPEATED: Duration = Duration::from_millis(20);

/// Decides a question of a caller.
#[derive(Clone, Copy)]
pub(super) enum DecidedBy {
    Store,
    /// The counts of this process, while the store fails.
    Process,
}

impl State {
    /// Adds a question for the next message about its keys.
    pub(super) fn ask(&mut self, question: SlotCheck) {
        let mut is_busy = false;
        for (id, _) in question.in_flight() {
            if let Some(key) = self.keys.get_mut(&id) {
                key.questions += 1;
                is_busy |= key.is_busy;
            }
        }
        self.may_ask |= !is_busy;
        self.questions.insert(question.caller.ticket, question);
    }

    /// Returns the messages that are due, about keys of which none is under way. Questions that have keys in common are one
    /// message, in the order in which the calls arrived. They want no more than the limit: the others come with the next
    /// message, or wait in line meanwhile.
    pub(super) fn due(&mut self, holder: [u8; 16], now: u64) -> Vec<Message> {
        let mut messages: Vec<Message> = Vec::new();
        // The message of each key, and the slots that it wants.
        let mut asked: HashMap<Fingerprint, (usize, u32)> = HashMap::new();
        // No question overtakes another one of the same key.
        let mut blocked = HashSet::new();
        let questions = match mem::take(&mut self.may_ask) {
            true => mem::take(&mut self.questions),
            false => BTreeMap::new(),
        };
        for (ticket, question) in questions {
            let is_gone = question.caller.answer.is_closed();
            let is_busy = |id| self.keys.get(&id).is_some_and(|key| key.is_busy);
            #[cfg(tollgate_simulation)]
            let is_busy = |id| is_busy(id) && !is_planted("NoSingleFlight");
            let is_blocked = |id| is_busy(id) || blocked.contains(&id);
            let mut message = None;
            let mut may_ask = !question.in_flight().any(|(id, _)| is_blocked(id));
            let is_behind = may_ask && LINES.is_behind(ticket, question.wants());
            for (id, slots) in question.in_flight() {
                if let Some((of_key, sum)) = asked.get(&id) {
                    let limit = self.keys.get(&id).map_or(0, HeldKey::limit);
                    may_ask &= *message.get_or_insert(*of_key) == *of_key
                        && sum.saturating_add(slots) <= limit;
                }
            }
            if !(may_ask || is_gone || is_behind) {
                blocked.extend(question.in_flight().map(|(id, _)| id));
                self.questions.insert(ticket, question);
                continue;
            }
            for (id, _) in question.in_flight() {
                if let Some(key) = self.key(id) {
                    key.questions = key.questions.saturating_sub(1);
                }
            }
            if is_behind {
                let refused = question.refused_in_line();
                self.answer(question, refused, None, None);
            } else if !is_gone {
                LINES.ask(ticket, question.wants());
                let index = message.unwrap_or(messages.len());
                if index == messages.len() {
                    messages.push(Message::default());
                }
                let Some(message) = messages.get_mut(index) else {
                    continue;
                };
                for (id, slots) in question.in_flight() {
                    let (_, sum) = asked.entry(id).or_insert_with(|| {
                        message.keys.push((id, Vec::new()));
                        (index, 0)
                    });
                    *sum = sum.saturating_add(slots);
                }
                message.parts.push(question);
            }
        }
        let due = self.timers.iter().take_while(|(at, _)| *at <= now);
        let only_stated = due.map(|(_, id)| *id).filter(|id| !asked.contains_key(id));
        // Before the questions: another share may ask for what these have given back.
        let mut all: Vec<_> = only_stated
            .map(|id| Message {
                keys: vec![(id, Vec::new())],
                ..Message::default()
            })
            .collect();
        all.append(&mut messages);
        for message in &mut all {
            message.sent_at = now;
            self.begin(message, holder);
        }
        all
    }

    /// Begins a message, which only states what is held of its keys if it has no parts.
    fn begin(&mut self, message: &mut Message, holder: [u8; 16]) {
        #[cfg(tollgate_simulation)]
        if is_planted("SequenceRestarts") && self.keys.values().all(|key| key.stated() == 0) {
            self.sequence = 0;
        }
        self.sequence += 1;
        let (sequence, wants) = (self.sequence, !message.parts.is_empty());
        let mut holdings = HashMap::new();
        for (id, listeners) in &mut message.keys {
            if let Some(key) = self.key(*id) {
                let holding = key.begin_message(holder, sequence, wants, message.sent_at);
                *listeners = mem::take(&mut key.listeners);
                holdings.insert(*id, holding);
                let statement = (!wants).then(|| key.statement(holding));
                message.parts.extend(statement);
            }
        }
        for part in message.parts.iter_mut().filter(|_| wants) {
            for SlotLevel { check, want } in &mut part.levels {
                if let Some(holding) = want.slots_of.and_then(|id| holdings.get(&id)) {
                    check.set_holding(holding.wants(want.needs.slots));
                }
            }
        }
    }

    /// Fails the questions that no message has.
    pub(super) fn fail_questions(&mut self, error: &Error) {
        for (_, question) in mem::take(&mut self.questions) {
            for (id, _) in question.in_flight() {
                if let Some(key) = self.key(id) {
                    key.questions = 0;
                }
            }
            let answer = question.caller.answer;
            self.outbox.answers.push((answer, Err(error.clone())));
        }
    }

    /// Takes in the replies to a message, in the order of its parts.
    pub(super) fn complete(
        &mut self,
        table: &Arc<PermitTable>,
        message: Message,
        replies: Vec<Reply>,
        now: u64,
    ) {
        let sent_at = message.sent_at;
        let mut is_late = false;
        for (id, _) in &message.keys {
            if let Some(key) = self.key(*id) {
                // Lost is final: no reply revives a permit.
                key.settle_end(now);
                key.is_busy = false;
                is_late |= now >= sent_at.saturating_add(certain_part(key.sent_lease));
            }
        }
        #[cfg(tollgate_simulation)]
        let is_late = is_late && !is_planted("LateReplyGrants");
        let (mut failure, mut has_lost_data) = (None, false);
        let mut replies = replies.into_iter();
        for part in message.parts {
            let reply = replies.next().unwrap_or_else(|| Err(no_reply()));
            let reply = reply.and_then(|mut answers| {
                let keys = part.in_flight().filter_map(|(id, _)| self.keys.get(&id));
                has_lost_data |= keys.into_iter().any(|key| key.is_known)
                    && part.has_note(&mut answers, HoldingNote::Missing);
                match part.has_note(&mut answers, HoldingNote::Superseded) {
                    true => Err(superseded()),
                    false if is_late => Err(late()),
                    false => Ok(answers),
                }
            });
            match reply {
                Ok(answers) => self.decided(table, part, answers, DecidedBy::Store, now),
                Err(error) => {
                    let answer = part.caller.answer;
                    self.outbox.answers.push((answer, Err(error.clone())));
                    failure = Some(error);
                }
            }
        }
        if has_lost_data {
            self.keys.values_mut().for_each(|key| key.is_known = false);
        }
        for (id, listeners) in message.keys {
            self.end_message(id, sent_at, failure.as_ref(), now);
            let outcome = || failure.clone().map_or(Ok(()), Err);
            let acknowledged = listeners.into_iter().map(|listener| (listener, outcome()));
            self.outbox.acknowledged.extend(acknowledged);
        }
        if has_lost_data {
            self.state_all(|key| !key.is_known, now);
        }
        self.may_ask |= !self.questions.is_empty();
    }

    /// Takes in the answers to a question, of the store or of this process, and answers the caller.
    pub(super) fn decided(
        &mut self,
        table: &Arc<PermitTable>,
        question: SlotCheck,
        mut answers: Answers,
        by: DecidedBy,
        now: u64,
    ) {
        let is_admitted = answers.are_admitted();
        let is_gone = question.caller.answer.is_closed();
        let mut of_keys = SmallVec::new();
        for (index, level) in question.levels.iter().enumerate() {
            let Some(key) = level.want.slots_of.and_then(|id| self.key(id)) else {
                continue;
            };
            let slots = level.want.needs.slots;
            let is_nearly_full = answers.get_mut(index).is_some_and(|answer| {
                let mut answers = level.slot_answers(answer);
                answers.any(|(quota, answer)| answer.used().saturating_add(1) >= quota.limit())
            });
            key.gathered = if is_nearly_full { 0 } else { GATHERED };
            if !is_admitted {
                continue;
            }
            if is_gone {
                key.is_changed |= slots > 0;
                continue;
            }
            let epoch = match by {
                DecidedBy::Process => key.grant_untold(slots, now),
                DecidedBy::Store => key.grant(slots),
            };
            of_keys.push((level.want, epoch));
        }
        if is_gone {
            return;
        }
        let held = is_admitted.then(|| HeldSlots {
            table: Arc::clone(table),
            since: now,
            of_keys,
        });
        self.answer(question, answers, Some(by), held);
    }

    /// Answers a question. If it was refused, its caller stands in line from now on. `by` is missing if an earlier call waits
    /// in line, so that nothing was asked.
    pub(super) fn answer(
        &mut self,
        question: SlotCheck,
        mut answers: Answers,
        by: Option<DecidedBy>,
        held: Option<HeldSlots>,
    ) {
        self.suggest_waits(&question, &mut answers);
        let (store, checks) = (&question.store, question.checks());
        store.remember(&checks, &question.sent, &answers, REPEATED);
        let left = question.room_left(&answers);
        let left = left.map(|(want, mut left, refused)| {
            if let Some(DecidedBy::Store) = by {
                // The counts of this process know what was given back after the message.
                let key = want.slots_of.and_then(|id| self.keys.get(&id));
                let returned = key.map_or(0, |key| key.returned);
                left.slots = left.slots.saturating_add(returned);
            }
            (want, by.map(|_| left), refused)
        });
        let left: SmallVec<[_; 2]> = left.collect();
        let (caller, woken) = (question.caller, &mut self.outbox.woken);
        LINES.take_in(caller.ticket, &left, caller.wait.as_ref(), woken);
        let taken = Ok((answers, held));
        self.outbox.answers.push((caller.answer, taken));
    }

    /// Makes these the answers for the caller: without notes, and with a suggested wait for slots.
    fn suggest_waits(&self, question: &SlotCheck, answers: &mut Answers) {
        for (level, answer) in question.levels.iter().zip(answers.iter_mut()) {
            let key = level.want.slots_of.and_then(|id| self.keys.get(&id));
            let times = key.and_then(|key| self.held_for.get(&key.limiter.fingerprint()));
            for (_, answer) in level.slot_answers(answer) {
                let wait = match answer.wait() {
                    Wait::Micros(_) => Wait::Micros(median(times)),
                    wait => wait,
                };
                *answer = QuotaAnswer::from_micros(answer.used(), wait, 0);
            }
        }
    }

    /// Returns the wait that a refusal by the slots of a limiter suggests.
    pub(super) fn suggested_wait(&self, limiter: Fingerprint) -> u64 {
        median(self.held_for.get(&limiter))
    }

    /// Takes in the end of a message about a key. After a failure, the first reply states all keys whose messages have failed.
    fn end_message(&mut self, id: Fingerprint, sent_at: u64, failure: Option<&Error>, now: u64) {
        let Some(key) = self.keys.get_mut(&id) else {
            return;
        };
        let valid_until = key.valid_until;
        key.end_message(sent_at, failure.is_some(), now);
        // The message had a shorter lease.
        self.outbox.ends_sooner |= key.valid_until.is_some() && key.valid_until < valid_until;
        key.is_known |= failure.is_none();
        if key.is_changed && failure.is_some_and(Error::is_outage) {
            self.failed.insert(key.server());
        } else if failure.is_none() && !self.failed.is_empty() {
            let server = key.server();
            if self.failed.remove(&server) {
                self.state_all(|key| key.is_changed && key.server() == server, now);
            }
        }
    }

    /// States what is held of such keys.
    fn state_all(&mut self, is_such: impl Fn(&HeldKey) -> bool, now: u64) {
        for (id, key) in &mut self.keys {
            if (key.stated() > 0 || key.is_changed) && is_such(key) {
                key.state_at(now);
                self.changed.push(*id);
            }
        }
    }

    /// Gives slots of a key back, and sets when the store learns it. Returns the key.
    pub(super) fn give_back(
        &mut self,
        want: &Want,
        epoch: u64,
        held_for: u64,
        now: u64,
    ) -> Option<&mut HeldKey> {
        let (line, slots, id) = (want.line, want.needs.slots, want.slots_of?);
        let key = self.keys.get_mut(&id)?;
        self.changed.push(id);
        key.release(slots, epoch);
        key.meter
            .record_release(slots, Duration::from_micros(held_for));
        let times = self.held_for.entry(key.limiter.fingerprint()).or_default();
        times.push_back(held_for);
        if times.len() > REMEMBERED_TIMES {
            times.pop_front();
        }
        let (woken, is_shared) = (&mut self.outbox.woken, !key.store.answers_at_once());
        let is_asked = LINES.returned_slots(line, slots, is_shared, woken);
        for (share, _) in key.other_shares() {
            LINES.returned_slots(LineKey { share, ..line }, slots, false, woken);
        }
        key.flush(is_asked, now);
        Some(key)
    }

    /// Tells the store what is held of each key of which it may not know. Returns what waits until it does.
    pub(super) fn tell(&mut self, now: u64) -> Vec<StoreFuture<()>> {
        let keys = self.keys.iter_mut();
        let unsent = keys.filter(|(_, key)| key.is_changed || key.is_busy);
        let acknowledged = unsent.map(|(id, key)| {
            self.changed.push(*id);
            key.tell(now)
        });
        acknowledged.collect()
    }
}

fn median(times: Option<&VecDeque<u64>>) -> u64 {
    let mut times: Vec<u64> = times.into_iter().flatten().copied().collect();
    times.sort_unstable();
    let median = times.get(times.len() / 2).copied().unwrap_or_default();
    median.clamp(*HINTS.start(), *HINTS.end())
}
