//! Puts the messages of a table together, and takes in their replies.

use std::collections::{HashMap, HashSet, VecDeque};
use std::mem;
use std::sync::Arc;
use std::time::Duration;

use smallvec::SmallVec;

use super::held_key::{GATHERED, HeldKey};
use super::held_of_key::{HeldOfKey, Rest};
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
pub(in crate::limiter) const REPEATED: Duration = Duration::from_millis(20);

/// Decides a question of a caller.
#[derive(Clone, Copy)]
pub(super) enum DecidedBy {
    Store,
    /// The counts of this process, while the store fails.
    Process,
}

/// The questions that are sent now, in messages about the keys that they have in common.
#[derive(Default)]
struct QuestionBatch {
    messages: Vec<Message>,
    asked: HashMap<Fingerprint, AskedKey>,
    /// The keys of questions that wait for a later message: no question overtakes another one of the same key.
    blocked: HashSet<Fingerprint>,
}

/// A key that questions of a batch ask for.
struct AskedKey {
    /// The index of its message.
    message: usize,
    /// The slots that its message wants.
    slots: u32,
}

/// The step of a question when the next messages are made.
enum QuestionStep {
    /// It is sent with the message of this index, or else with a new one.
    Send(Option<usize>),
    /// It waits for a later message about its keys.
    Wait,
    /// An earlier call waits in line for its keys.
    Refuse,
    /// Its caller has gone.
    Drop,
}

impl State {
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
        let mut batch = QuestionBatch::default();
        if mem::take(&mut self.may_ask) {
            for question in mem::take(&mut self.questions).into_values() {
                self.take_question(question, &mut batch);
            }
        }
        // Before the questions: another share may ask for what these have given back.
        let mut messages: Vec<_> = self
            .timers
            .iter()
            .take_while(|(at, _)| *at <= now)
            .filter(|(_, id)| !batch.asked.contains_key(id))
            .map(|(_, id)| Message {
                keys: vec![(*id, Vec::new())],
                ..Message::default()
            })
            .collect();
        messages.append(&mut batch.messages);
        for message in &mut messages {
            message.sent_at = now;
            self.begin(message, holder);
        }
        messages
    }

    fn take_question(&mut self, question: SlotCheck, batch: &mut QuestionBatch) {
        let ticket = question.caller.ticket;
        let step = self.question_step(&question, batch);
        if let QuestionStep::Wait = step {
            let ids = question.in_flight().map(|(id, _)| id);
            batch.blocked.extend(ids);
            self.questions.insert(ticket, question);
            return;
        }
        for (id, _) in question.in_flight() {
            if let Some(key) = self.key(id) {
                key.questions = key.questions.saturating_sub(1);
            }
        }
        match step {
            QuestionStep::Send(message) => {
                LINES.ask(ticket, question.wants());
                batch.add(question, message);
            }
            QuestionStep::Refuse => {
                let refused = question.refused_in_line();
                self.answer(question, refused, None, None);
            }
            QuestionStep::Wait | QuestionStep::Drop => {}
        }
    }

    fn question_step(&self, question: &SlotCheck, batch: &QuestionBatch) -> QuestionStep {
        let is_blocked = question
            .in_flight()
            .any(|(id, _)| self.is_busy(id) || batch.blocked.contains(&id));
        if !is_blocked && LINES.is_behind(question.caller.ticket, question.wants()) {
            return QuestionStep::Refuse;
        }
        if question.caller.answer.is_closed() {
            return QuestionStep::Drop;
        }
        if is_blocked {
            return QuestionStep::Wait;
        }
        let mut message = None;
        for (id, slots) in question.in_flight() {
            if let Some(asked) = batch.asked.get(&id) {
                let limit = self.keys.get(&id).map_or(0, HeldKey::limit);
                let is_same_message = *message.get_or_insert(asked.message) == asked.message;
                if !is_same_message || asked.slots.saturating_add(slots) > limit {
                    return QuestionStep::Wait;
                }
            }
        }
        QuestionStep::Send(message)
    }

    fn is_busy(&self, id: Fingerprint) -> bool {
        #[cfg(tollgate_simulation)]
        if is_planted("NoSingleFlight") {
            return false;
        }
        self.keys.get(&id).is_some_and(|key| key.is_busy)
    }

    /// Begins a message, which only states what is held of its keys if it has no parts.
    fn begin(&mut self, message: &mut Message, holder: [u8; 16]) {
        #[cfg(tollgate_simulation)]
        if is_planted("SequenceRestarts") && self.keys.values().all(|key| key.stated() == 0) {
            self.sequence = 0;
        }
        self.sequence += 1;
        let sequence = self.sequence;
        let wants = !message.parts.is_empty();
        let mut holdings = HashMap::new();
        for (id, listeners) in &mut message.keys {
            if let Some(key) = self.key(*id) {
                let holding = key.begin_message(holder, sequence, wants, message.sent_at);
                *listeners = mem::take(&mut key.listeners);
                holdings.insert(*id, holding);
                let statement = (!wants).then(|| SlotCheck::statement(key, holding));
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
        let mut failure = None;
        let mut has_lost_data = false;
        let mut replies = replies.into_iter();
        for part in message.parts {
            let mut reply = replies.next().unwrap_or_else(|| Err(no_reply()));
            if let Ok(answers) = &mut reply {
                has_lost_data |= self.has_lost_data(&part, answers);
                let is_superseded = part.has_note(answers, HoldingNote::Superseded);
                if is_superseded || answers.are_admitted() && self.has_granted_instead(&part) {
                    reply = Err(superseded());
                } else if is_late {
                    reply = Err(late());
                }
            }
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
            for listener in listeners {
                let outcome = failure.clone().map_or(Ok(()), Err);
                self.outbox.acknowledged.push((listener, outcome));
            }
        }
        if has_lost_data {
            self.state_all(|key| !key.is_known, now);
        }
        self.may_ask |= !self.questions.is_empty();
    }

    /// Returns whether the store misses the slots of a key that it has acknowledged before.
    fn has_lost_data(&self, part: &SlotCheck, answers: &mut Answers) -> bool {
        let is_known = part
            .in_flight()
            .filter_map(|(id, _)| self.keys.get(&id))
            .any(|key| key.is_known);
        is_known && part.has_note(answers, HoldingNote::Missing)
    }

    fn has_granted_instead(&self, part: &SlotCheck) -> bool {
        part.in_flight().any(|(id, slots)| {
            let key = self.keys.get(&id);
            key.is_some_and(|key| key.has_granted_instead(slots))
        })
    }

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
                level
                    .bounding_answers(answer)
                    .any(|(quota, answer)| answer.used().saturating_add(1) >= quota.limit())
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
            of_keys.push(HeldOfKey {
                want: level.want,
                epoch,
                left: slots,
                used: 0,
                rest: Rest::Returns,
            });
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
        question
            .store
            .remember(&question.checks(), &question.sent, &answers, REPEATED);
        let left: SmallVec<[_; 2]> = question
            .room_left(&answers)
            .map(|(want, mut left, refused)| {
                if let Some(DecidedBy::Store) = by {
                    // The counts of this process know what was given back after the message.
                    let key = want.slots_of.and_then(|id| self.keys.get(&id));
                    let returned = key.map_or(0, |key| key.returned);
                    left.slots = left.slots.saturating_add(returned);
                }
                (want, by.map(|_| left), refused)
            })
            .collect();
        let caller = question.caller;
        let woken = &mut self.outbox.woken;
        LINES.take_in(caller.ticket, &left, caller.wait.as_ref(), woken);
        let taken = Ok((answers, held));
        self.outbox.answers.push((caller.answer, taken));
    }

    /// The caller gets no notes of the store, but a suggested wait for slots.
    fn suggest_waits(&self, question: &SlotCheck, answers: &mut Answers) {
        for (level, answer) in question.levels.iter().zip(answers.iter_mut()) {
            let key = level.want.slots_of.and_then(|id| self.keys.get(&id));
            let times = key.and_then(|key| self.held_for.get(&key.limiter.fingerprint()));
            for (_, answer) in level.holder_answers(answer) {
                let wait = match answer.wait() {
                    Wait::Micros(_) => Wait::Micros(median(times)),
                    wait => wait,
                };
                *answer = QuotaAnswer::from_micros(answer.used(), wait, 0);
            }
            if !answer.is_admitted() {
                let check = level.check.check();
                let wait = Duration::from_micros(median(times));
                answer.estimate_waits(check.quotas, check.cost, wait);
            }
        }
    }

    /// The wait that a refusal by the slots of a limiter suggests, in microseconds.
    pub(super) fn suggested_wait(&self, limiter: Fingerprint) -> u64 {
        median(self.held_for.get(&limiter))
    }

    /// After a failure, the first reply states all keys of the server whose messages have failed.
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

    fn state_all(&mut self, is_such: impl Fn(&HeldKey) -> bool, now: u64) {
        for (id, key) in &mut self.keys {
            if (key.stated() > 0 || key.is_changed) && is_such(key) {
                key.state_at(now);
                self.changed.push(*id);
            }
        }
    }

    pub(super) fn give_back(
        &mut self,
        mut of_key: HeldOfKey,
        held_for: u64,
        now: u64,
    ) -> Option<&mut HeldKey> {
        let Want { line, slots_of, .. } = of_key.want;
        let id = slots_of?;
        let key = self.keys.get_mut(&id)?;
        self.changed.push(id);
        #[cfg(tollgate_simulation)]
        if is_planted("DroppedIsFree") {
            of_key.rest = Rest::Returns;
        }
        if key.holds_units() && of_key.rest == Rest::IsCharged {
            let rest = of_key.left;
            key.spend(&mut of_key, rest, now);
        }
        #[cfg(tollgate_simulation)]
        if is_planted("UnitBeforeSum") {
            key.spent += u64::from(of_key.used);
        }
        let slots = of_key.left;
        key.release(slots, of_key.epoch);
        key.meter
            .record_release(slots, Duration::from_micros(held_for));
        let times = self.held_for.entry(key.limiter.fingerprint()).or_default();
        times.push_back(held_for);
        if times.len() > REMEMBERED_TIMES {
            times.pop_front();
        }
        let woken = &mut self.outbox.woken;
        let is_shared = !key.store.ends_with_process();
        let is_asked = LINES.returned_slots(line, slots, is_shared, woken);
        for (share, _) in key.other_shares() {
            LINES.returned_slots(LineKey { share, ..line }, slots, false, woken);
        }
        key.flush(is_asked, now);
        Some(key)
    }

    /// Tells the store what is held of each key of which it may not know. Returns what waits until it does.
    pub(super) fn tell(&mut self, now: u64) -> Vec<StoreFuture<()>> {
        self.keys
            .iter_mut()
            .filter(|(_, key)| key.is_changed || key.is_busy)
            .map(|(id, key)| {
                self.changed.push(*id);
                key.tell(now)
            })
            .collect()
    }
}

impl QuestionBatch {
    /// Adds a question to the message of this index, or else to a new one.
    #[expect(
        clippy::indexing_slicing,
        reason = "an index is that of a message which was added here, and none is removed"
    )]
    fn add(&mut self, question: SlotCheck, index: Option<usize>) {
        let index = index.unwrap_or(self.messages.len());
        if index == self.messages.len() {
            self.messages.push(Message::default());
        }
        let message = &mut self.messages[index];
        for (id, slots) in question.in_flight() {
            let asked = self.asked.entry(id).or_insert_with(|| {
                message.keys.push((id, Vec::new()));
                AskedKey {
                    message: index,
                    slots: 0,
                }
            });
            asked.slots = asked.slots.saturating_add(slots);
        }
        message.parts.push(question);
    }
}

fn median(times: Option<&VecDeque<u64>>) -> u64 {
    let mut times: Vec<u64> = times.into_iter().flatten().copied().collect();
    times.sort_unstable();
    let median = times.get(times.len() / 2).copied().unwrap_or_default();
    median.clamp(*HINTS.start(), *HINTS.end())
}
