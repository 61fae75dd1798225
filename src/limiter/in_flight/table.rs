//! The permits of one store in this process: puts messages together, and takes in their replies.
//!
//! All changes are made under one lock. Nothing here waits or sends.

use std::collections::BTreeMap;
use std::hash::{BuildHasher, RandomState};
use std::mem;
use std::sync::{Arc, LazyLock, Mutex, PoisonError, Weak};

use tokio::sync::Notify;

use super::held_key::HeldKey;
use super::held_slots::HeldSlots;
use super::message::{Message, Reply, Wanted, late, no_reply, superseded};
use super::state::{Outbox, State};
use crate::clock::{Clock, certain_part};
use crate::decision::{Answers, Holding, HoldingNote, StoreId, holder_for};
use crate::error::Error;
use crate::key::Fingerprint;
use crate::store::{Check, ProtectedStore};

/// The tables of this process, by store.
static TABLES: LazyLock<Mutex<Tables>> = LazyLock::new(Mutex::default);

/// Wakes those who wait for the end of a lease that ends sooner now. A permit may be of several tables.
pub(super) static LEASE_SHORTENED: Notify = Notify::const_new();

type Tables = Vec<(StoreId, Weak<PermitTable>)>;

/// The permits of one store in this process.
pub(in crate::limiter) struct PermitTable {
    pub(super) holder: [u8; 16],
    pub(super) clock: Clock,
    state: Mutex<State>,
    /// Whether callers send the messages. Else, a thread does.
    pub(super) answers_at_once: bool,
    /// Wakes the thread.
    pub(super) woken: Arc<Notify>,
    /// Wakes those who wait until all slots are given back.
    pub(super) given_back: Notify,
}

impl PermitTable {
    /// Returns the table of a store in this process.
    pub(in crate::limiter) fn of(store: &ProtectedStore) -> Arc<Self> {
        let mut tables = TABLES.lock().unwrap_or_else(PoisonError::into_inner);
        tables.retain(|(_, table)| table.strong_count() > 0);
        let known = tables.iter().find(|(id, _)| *id == store.id());
        if let Some(table) = known.and_then(|(_, table)| table.upgrade()) {
            return table;
        }
        let table = Arc::new(Self::new(store));
        tables.push((store.id(), Arc::downgrade(&table)));
        table
    }

    fn new(store: &ProtectedStore) -> Self {
        // Each `RandomState` has a random key, so the hash of a constant is a random number.
        let random = || RandomState::new().hash_one(0).to_be_bytes();
        let (first, second) = (random(), random());
        let mut bytes = first.into_iter().chain(second);
        Self {
            holder: holder_for(
                std::array::from_fn(|_| bytes.next().unwrap_or_default()),
                None,
            ),
            clock: Clock::monotonic(),
            answers_at_once: store.answers_at_once(),
            state: Mutex::default(),
            woken: Arc::default(),
            given_back: Notify::new(),
        }
    }

    /// Changes the state under its lock, and then answers those who wait for that. Poisoning is ignored: the state is consistent
    /// between any two steps.
    pub(super) fn with<T>(&self, change: impl FnOnce(&mut State, u64) -> T) -> T {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let outcome = change(&mut state, self.clock.now());
        let outbox = mem::take(&mut state.outbox);
        drop(state);
        outbox.send();
        outcome
    }

    /// Returns a message that is due, about a key of which none is under way.
    pub(super) fn next_message(&self, state: &mut State, now: u64) -> Option<Message> {
        loop {
            let id = state.next_due(now)?;
            let message = self.message_about(state, id, now);
            state.update_timer(id, now);
            if message.is_some() {
                return message;
            }
        }
    }

    fn message_about(&self, state: &mut State, id: Fingerprint, now: u64) -> Option<Message> {
        state.keys.get(&id).filter(|key| key.is_due(now))?;
        let (mut parts, wanted) = state.choose(id);
        let is_statement = parts.is_empty();
        if is_statement && !state.keys.get(&id).is_some_and(|key| key.states(now)) {
            return None;
        }
        state.sequence += 1;
        let (sequence, mut keys, mut holdings) = (state.sequence, Vec::new(), BTreeMap::new());
        let stated = is_statement.then_some(id);
        for id in wanted.into_keys().chain(stated) {
            if let Some(key) = state.keys.get_mut(&id) {
                let holding = key.begin_message(self.holder, sequence, !is_statement, now);
                parts.extend(is_statement.then(|| key.statement(id, holding)));
                keys.push((id, mem::take(&mut key.listeners)));
                holdings.insert(id, holding);
                state.update_timer(id, now);
            }
        }
        for part in parts.iter_mut().filter(|_| !is_statement) {
            for Wanted { level, id, slots } in &part.wanted {
                let holding = holdings.get(id).map(|holding| holding.wants(*slots));
                if let (Some(level), Some(holding)) = (part.checks.get_mut(*level), holding) {
                    level.set_holding(holding);
                }
            }
        }
        let sent_at = now;
        Some(Message {
            sent_at,
            parts,
            keys,
        })
    }

    /// Takes in the replies to a message, in the order of its parts.
    pub(super) fn complete(
        self: &Arc<Self>,
        state: &mut State,
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
            if let Some(key) = state.keys.get_mut(id) {
                // Lost is final: no reply revives a permit.
                key.settle_end(now);
                key.is_busy = false;
                is_late |= now >= sent_at.saturating_add(certain_part(key.sent_lease));
            }
        }
        let mut failed: BTreeMap<Fingerprint, Error> = BTreeMap::new();
        let mut has_lost_data = false;
        let replies = replies.into_iter().map(Some);
        let replies = replies.chain(std::iter::repeat_with(|| None));
        for (part, reply) in parts.into_iter().zip(replies) {
            let reply = reply.unwrap_or_else(|| Err(no_reply()));
            let reply = reply.and_then(|answers| {
                has_lost_data |= part.has_note(&answers, HoldingNote::Missing)
                    && part
                        .wanted
                        .iter()
                        .any(|wanted| state.is_up_to_date(wanted.id));
                match part.has_note(&answers, HoldingNote::Superseded) {
                    true => Err(superseded()),
                    false if is_late => Err(late()),
                    false => Ok(answers),
                }
            });
            match reply {
                Ok(answers) => {
                    let hold = |slots| HeldSlots::new(Arc::<Self>::clone(self), slots);
                    state.decided(part, answers, hold, (sent_at, now));
                }
                Err(error) => {
                    let ids = part.wanted.iter().map(|wanted| wanted.id);
                    failed.extend(ids.map(|id| (id, error.clone())));
                    let caller = part.caller.map(|caller| (caller.answer, Err(error)));
                    state.outbox.answers.extend(caller);
                }
            }
        }
        state.losses += u64::from(has_lost_data);
        for (id, listeners) in keys {
            let failure = failed.get(&id);
            state.end_message(id, sent_at, failure, now);
            state.to_look.push(id);
            let outcome = failure.map_or(Ok(()), |error| Err(error.clone()));
            let told = listeners
                .into_iter()
                .map(|listener| (listener, outcome.clone()));
            state.outbox.told.extend(told);
        }
        if has_lost_data {
            let all: Vec<_> = state.keys.keys().copied().collect();
            let untold = all.into_iter().filter(|id| !state.is_up_to_date(*id));
            state.state_now(untold.collect::<Vec<_>>(), now);
        }
    }

    /// Decides checks by counts of this process, with what it holds: also for other shares, which are holders of their own.
    pub(super) fn ask_here(
        &self,
        state: &mut State,
        checks: Vec<Check<'_>>,
        wanted: &[Wanted],
        decide: impl Fn(&[Check<'_>]) -> Option<Answers>,
        now: u64,
    ) -> Option<Answers> {
        state.sequence += 1;
        let sequence = state.sequence;
        let mut holdings = vec![None; checks.len()];
        let mut others = Vec::new();
        state.each(wanted, |key, Wanted { level, slots, .. }| {
            let held = key.holding(self.holder, sequence, now);
            if let Some(holding) = holdings.get_mut(*level) {
                *holding = Some(held.wants(*slots).stated());
            }
            for (share, id) in key.other_shares() {
                let holder = holder_for(self.holder, share);
                others.push((*level, id, Holding { holder, ..held }));
            }
        });
        for (level, id, holding) in others {
            if let Some(check) = checks.get(level) {
                let held = state.keys.get(&id).map_or(0, HeldKey::stated);
                let holding = Holding { held, ..holding };
                decide(&[check.subject.check(0).with_holding(&holding)]);
            }
        }
        let checks = checks.into_iter().zip(&holdings);
        let checks = checks.map(|(check, holding)| {
            let holding = holding.as_ref();
            Check { holding, ..check }
        });
        decide(&checks.collect::<Vec<_>>())
    }
}

impl Drop for PermitTable {
    fn drop(&mut self) {
        self.woken.notify_one();
    }
}

impl Outbox {
    fn send(self) {
        if self.ends_sooner {
            LEASE_SHORTENED.notify_waiters();
        }
        for (caller, taken) in self.answers {
            // If the caller has gone, its slots are given back.
            drop(caller.send(taken));
        }
        for (listener, outcome) in self.told {
            listener.answer(outcome);
        }
        drop(self.woken);
    }
}
