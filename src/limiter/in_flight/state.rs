//! Puts the messages of a table together, and takes in their replies.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::mem;
use std::sync::Arc;
use std::time::Duration;

use smallvec::SmallVec;

use super::held_key::{GATHERED, HeldKey};
use super::message::{HINTS, Message, Reply, answer_to_caller, late, no_reply, superseded};
use super::table::{HeldSlots, PermitTable, SlotCheck, State};
use crate::clock::certain_part;
use crate::decision::{Answers, HoldingNote};
use crate::error::Error;
use crate::key::Fingerprint;
use crate::limiter::line::{LINES, LineKey, Want};
use crate::store::StoreFuture;

/// How many permits of a limiter the wait that a refusal suggests is the median of.
const REMEMBERED_TIMES: usize = 33;

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
        for (_, id, _) in question.in_flight() {
            if let Some(key) = self.keys.get_mut(&id) {
                key.questions += 1;
                is_busy |= key.is_busy;
            }
        }
        self.may_ask |= !is_busy;
        if let Some(caller) = &question.caller {
            self.questions.insert(caller.ticket, question);
        }
    }

    /// Returns the messages that are due, about keys of which none is under way. Questions that have keys in common are one
    /// message, in the order in which the calls arrived. They want no more than the limit: the others come with the next
    /// message, or wait in line meanwhile.
    pub(super) fn due(&mut self, holder: [u8; 16], now: u64) -> Vec<Message> {
        let mut messages: Vec<(Vec<SlotCheck>, Vec<Fingerprint>)> = Vec::new();
        // The message of each key, and the slots that it wants.
        let mut asked: HashMap<Fingerprint, (usize, u32)> = HashMap::new();
        // No question overtakes another one of the same key.
        let mut blocked = HashSet::new();
        let questions = match mem::take(&mut self.may_ask) {
            true => mem::take(&mut self.questions),
            false => BTreeMap::new(),
        };
        for (ticket, question) in questions {
            let caller = question.caller.as_ref();
            let is_gone = caller.is_none_or(|caller| caller.answer.is_closed());
            let is_blocked = |id| self.is_busy(id) || blocked.contains(&id);
            let mut message = None;
            let mut may_ask = !question.in_flight().any(|(_, id, _)| is_blocked(id));
            let is_behind = may_ask
                && caller.is_some_and(|caller| {
                    LINES.is_behind(ticket, &question.wants, caller.wait.is_some())
                });
            for (_, id, slots) in question.in_flight() {
                if let Some((of_key, sum)) = asked.get(&id) {
                    let limit = self.keys.get(&id).map_or(0, HeldKey::limit);
                    may_ask &= *message.get_or_insert(*of_key) == *of_key
                        && sum.saturating_add(slots) <= limit;
                }
            }
            if !(may_ask || is_gone || is_behind) {
                blocked.extend(question.in_flight().map(|(_, id, _)| id));
                self.questions.insert(ticket, question);
                continue;
            }
            for (_, id, _) in question.in_flight() {
                if let Some(key) = self.key(id) {
                    key.questions = key.questions.saturating_sub(1);
                }
            }
            if is_behind {
                let refused = question.refused_in_line();
                self.answer(question, refused, None, None);
            } else if !is_gone {
                let message = message.unwrap_or(messages.len());
                if message == messages.len() {
                    messages.push(Default::default());
                }
                let Some((parts, ids)) = messages.get_mut(message) else {
                    continue;
                };
                for (_, id, slots) in question.in_flight() {
                    let (_, sum) = asked.entry(id).or_insert_with(|| {
                        ids.push(id);
                        (message, 0)
                    });
                    *sum = sum.saturating_add(slots);
                }
                parts.push(question);
            }
        }
        let due = self.timers.iter().take_while(|(at, _)| *at <= now);
        let due = due.map(|(_, id)| *id).filter(|id| !asked.contains_key(id));
        // Before the questions: another share may ask for what these have given back.
        let mut all: Vec<_> = due.map(|id| (Vec::new(), vec![id])).collect();
        all.append(&mut messages);
        let begin = |(parts, ids)| self.begin(holder, parts, ids, now);
        all.into_iter().map(begin).collect()
    }

    fn is_busy(&self, id: Fingerprint) -> bool {
        self.keys.get(&id).is_some_and(|key| key.is_busy)
    }

    /// Begins a message about keys, which only states what is held if it has no parts.
    fn begin(
        &mut self,
        holder: [u8; 16],
        mut parts: Vec<SlotCheck>,
        ids: Vec<Fingerprint>,
        now: u64,
    ) -> Message {
        self.sequence += 1;
        let (sequence, wants) = (self.sequence, !parts.is_empty());
        let (mut keys, mut holdings) = (Vec::new(), HashMap::new());
        for id in ids {
            if let Some(key) = self.key(id) {
                let holding = key.begin_message(holder, sequence, wants, now);
                keys.push((id, mem::take(&mut key.listeners)));
                holdings.insert(id, holding);
                parts.extend((!wants).then(|| key.statement(holding)));
            }
        }
        for part in parts.iter_mut().filter(|_| wants) {
            for (level, id, slots) in part.in_flight().collect::<SmallVec<[_; 1]>>() {
                let holding = holdings.get(&id).map(|holding| holding.wants(slots));
                if let (Some(check), Some(holding)) = (part.checks.get_mut(level), holding) {
                    check.set_holding(holding);
                }
            }
        }
        Message {
            sent_at: now,
            parts,
            keys,
        }
    }

    /// Fails the questions that no message has.
    pub(super) fn fail_questions(&mut self, error: &Error) {
        for (_, question) in mem::take(&mut self.questions) {
            for (_, id, _) in question.in_flight() {
                if let Some(key) = self.key(id) {
                    key.questions = 0;
                }
            }
            let failed = question.caller.map(|caller| caller.answer);
            let failed = failed.map(|answer| (answer, Err(error.clone())));
            self.outbox.answers.extend(failed);
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
        let Message {
            sent_at,
            parts,
            keys,
        } = message;
        let mut is_late = false;
        for (id, _) in &keys {
            if let Some(key) = self.key(*id) {
                // Lost is final: no reply revives a permit.
                key.settle_end(now);
                key.is_busy = false;
                is_late |= now >= sent_at.saturating_add(certain_part(key.sent_lease));
            }
        }
        let (mut failure, mut has_lost_data) = (None, false);
        let replies = replies.into_iter().map(Some);
        let replies = replies.chain(std::iter::repeat_with(|| None));
        for (part, reply) in parts.into_iter().zip(replies) {
            let reply = reply.unwrap_or_else(|| Err(no_reply()));
            let reply = reply.and_then(|mut answers| {
                let keys = part.in_flight().filter_map(|(_, id, _)| self.keys.get(&id));
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
                    let caller = part.caller.map(|caller| caller.answer);
                    let caller = caller.map(|answer| (answer, Err(error.clone())));
                    self.outbox.answers.extend(caller);
                    failure = Some(error);
                }
            }
        }
        if has_lost_data {
            self.keys.values_mut().for_each(|key| key.is_known = false);
        }
        for (id, listeners) in keys {
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
        let is_gone = question
            .caller
            .as_ref()
            .is_none_or(|caller| caller.answer.is_closed());
        let mut of_keys = SmallVec::new();
        for (level, id, slots) in question.in_flight() {
            let Some(key) = self.key(id) else { continue };
            let is_nearly_full = question
                .slot_answers(level, &mut answers)
                .any(|(quota, answer)| answer.used().saturating_add(1) >= quota.limit());
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
            of_keys.extend(question.wants.get(level).map(|want| (*want, epoch)));
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
    fn answer(
        &mut self,
        question: SlotCheck,
        mut answers: Answers,
        by: Option<DecidedBy>,
        held: Option<HeldSlots>,
    ) {
        self.suggest_waits(&question, &mut answers);
        question.remember(&answers);
        let left = question.room_left(&answers, |want| {
            let key = want.slots_of.and_then(|id| self.keys.get(&id));
            let returned = key.map_or(0, |key| key.returned);
            // The counts of this process know them.
            match by {
                Some(DecidedBy::Store) => returned,
                _ => 0,
            }
        });
        let left = left.map(|(want, left, is_refused)| (want, by.map(|_| left), is_refused));
        let left: SmallVec<[_; 2]> = left.collect();
        if let Some(caller) = question.caller {
            let woken = LINES.take_in(caller.ticket, &left, caller.wait.as_ref());
            self.outbox.woken.push(woken);
            let taken = Ok((answers, held));
            self.outbox.answers.push((caller.answer, taken));
        }
    }

    /// Makes these the answers for the caller: without notes, and with a suggested wait for slots.
    fn suggest_waits(&self, question: &SlotCheck, answers: &mut Answers) {
        for (level, id, _) in question.in_flight() {
            let key = self.keys.get(&id);
            let times = key.and_then(|key| self.held_for.get(&key.limiter.fingerprint()));
            for (_, answer) in question.slot_answers(level, answers) {
                *answer = answer_to_caller(answer, || median(times));
            }
        }
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

    /// Gives slots of a key back. Returns whether a call of this process asks for them now: it tells the store what was given
    /// back.
    pub(super) fn give_back(
        &mut self,
        want: &Want,
        epoch: u64,
        held_for: u64,
        is_shared: bool,
    ) -> bool {
        let (line, slots) = (want.line, want.needs.slots);
        let Some(key) = want.slots_of.and_then(|id| self.key(id)) else {
            return false;
        };
        key.release(slots, epoch);
        key.meter
            .record_release(slots, Duration::from_micros(held_for));
        let (limiter, others) = (key.limiter.fingerprint(), key.other_shares());
        let times = self.held_for.entry(limiter).or_default();
        times.push_back(held_for);
        if times.len() > REMEMBERED_TIMES {
            times.pop_front();
        }
        let (is_asked, woken) = LINES.returned_slots(line, slots, is_shared);
        self.outbox.woken.push(woken);
        for (share, _) in others {
            let (_, woken) = LINES.returned_slots(LineKey { share, ..line }, slots, false);
            self.outbox.woken.push(woken);
        }
        is_asked
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

    /// Returns whether this process holds slots.
    pub(super) fn holds_any(&self) -> bool {
        self.keys.values().any(|key| key.stated() > 0)
    }
}

fn median(times: Option<&VecDeque<u64>>) -> u64 {
    let mut times: Vec<u64> = times.into_iter().flatten().copied().collect();
    times.sort_unstable();
    let median = times.get(times.len() / 2).copied().unwrap_or_default();
    median.clamp(*HINTS.start(), *HINTS.end())
}
