//! The permits of one store in this process: puts messages together, and takes in their replies.
//!
//! All changes are made under one lock. Nothing here waits or sends.

use std::collections::BTreeMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError, Weak};

use tokio::sync::Notify;

use super::held_key::HeldKey;
use super::message::{
    AllWanted, Caller, Message, Reply, SlotCheck, Wanted, late, no_reply, superseded,
};
use super::state::State;
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
    /// Wakes the task that waits for timers.
    pub(super) timers_changed: Notify,
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
        let table = Arc::new(Self::new(Clock::monotonic()));
        tables.push((store.id(), Arc::downgrade(&table)));
        table
    }

    pub(super) fn new(clock: Clock) -> Self {
        // Each `RandomState` has a random key, so the hash of a constant is a random number.
        let random = || RandomState::new().hash_one(0).to_be_bytes();
        let (first, second) = (random(), random());
        let mut bytes = first.into_iter().chain(second);
        Self {
            holder: holder_for(
                std::array::from_fn(|_| bytes.next().unwrap_or_default()),
                None,
            ),
            clock,
            state: Mutex::default(),
            timers_changed: Notify::new(),
            given_back: Notify::new(),
        }
    }

    /// Locks the state. Poisoning is ignored: the state is consistent between any two steps.
    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the next message about these keys, if one is due and none is under way.
    pub(super) fn next_message(
        &self,
        state: &mut State,
        ids: &[Fingerprint],
        now: u64,
    ) -> Option<Message> {
        let is_due = |id: &Fingerprint| state.keys.get(id).is_some_and(|key| key.is_due(now));
        let due: Vec<_> = ids.iter().copied().filter(is_due).collect();
        let (chosen, wanted) = state.choose(&due, now);
        let states = |id: &Fingerprint| state.keys.get(id).is_some_and(|key| key.states(now));
        let stated: Vec<_> = due.into_iter().filter(states).collect();
        for id in ids {
            state.update_timer(*id, now);
        }
        if chosen.is_empty() && stated.is_empty() {
            return None;
        }
        state.sequence += 1;
        let mut message = Message {
            sent_at: now,
            parts: Vec::with_capacity(chosen.len() + 1),
            keys: Vec::with_capacity(wanted.len() + 1),
        };
        let mut holdings = BTreeMap::new();
        for id in wanted.keys().chain(&stated) {
            if let Some(key) = state.keys.get_mut(id).filter(|key| !key.is_busy) {
                let (sequence, wants) = (state.sequence, wanted.contains_key(id));
                holdings.insert(*id, key.begin_message(self.holder, sequence, wants, now));
                let listeners = std::mem::take(&mut key.listeners);
                message.keys.push((*id, listeners));
                state.update_timer(*id, now);
            }
        }
        for ticket in chosen {
            let Some(mut check) = state.line.remove(&ticket) else {
                continue;
            };
            state.sent.insert(ticket);
            for Wanted { level, id, slots } in &check.wanted {
                if let Some(key) = state.keys.get_mut(id) {
                    key.waiting.remove(&ticket);
                }
                let holding = holdings.get(id).map(|holding| holding.wants(*slots));
                if let (Some(level), Some(holding)) = (check.checks.get_mut(*level), holding) {
                    level.set_holding(holding);
                }
            }
            message.parts.push(check);
        }
        for (id, holding) in holdings {
            if let (false, Some(key)) = (wanted.contains_key(&id), state.keys.get(&id)) {
                let (store, checks) = key.statement(holding);
                let (level, slots) = (0, 0);
                message.parts.push(SlotCheck {
                    store,
                    checks,
                    wanted: AllWanted::from_iter([Wanted { level, id, slots }]),
                    caller: None,
                });
            }
        }
        Some(message)
    }

    /// Takes in the replies to a message, in the order of its parts. Returns its keys.
    pub(super) fn complete(
        &self,
        state: &mut State,
        message: Message,
        replies: Vec<Reply>,
        now: u64,
    ) -> Vec<Fingerprint> {
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
                    if let Some((caller, answers)) = state.decided(part, answers, sent_at, now) {
                        caller.answer.answer(Ok(answers));
                    }
                }
                Err(error) => {
                    let ids = part.wanted.iter().map(|wanted| wanted.id);
                    failed.extend(ids.map(|id| (id, error.clone())));
                    self.decide_here(state, part, error, now);
                }
            }
        }
        state.losses += u64::from(has_lost_data);
        let (ids, listeners): (Vec<_>, Vec<_>) = keys.into_iter().unzip();
        for (id, listeners) in ids.iter().zip(listeners) {
            let failure = failed.get(id);
            if state.end_message(*id, sent_at, failure, now) {
                LEASE_SHORTENED.notify_waiters();
            }
            for listener in listeners {
                listener.answer(failure.map_or(Ok(()), |error| Err(error.clone())));
            }
        }
        if has_lost_data {
            let all: Vec<_> = state.keys.keys().copied().collect();
            let untold = all.into_iter().filter(|id| !state.is_up_to_date(*id));
            state.state_now(untold.collect::<Vec<_>>(), now);
        }
        for id in &ids {
            state.ask_later(*id, now);
            state.update_timer(*id, now);
        }
        ids
    }

    /// Decides a check that the store has not answered, if its limiters fall back. The caller gets the error, and then takes
    /// the decision of this process.
    fn decide_here(&self, state: &mut State, check: SlotCheck, error: Error, now: u64) {
        let Some(Caller { ticket, shares, .. }) = &check.caller else {
            return;
        };
        let ticket = *ticket;
        let falls_back = error.is_store_failure() && state.sent.contains(&ticket);
        let answers = shares.as_ref().filter(|_| falls_back).and_then(|shares| {
            let checks = check.checks.iter().zip(shares);
            let checks = checks.map(|(check, quotas)| {
                let mut check = check.check();
                check.subject.quotas = quotas;
                check
            });
            let decide = |checks: &[Check<'_>]| check.store.check_fallback(checks);
            self.ask_here(state, checks.collect(), &check.wanted, decide, now)
        });
        let caller = match answers {
            None => {
                state.sent.remove(&ticket);
                check.caller
            }
            Some(answers) => {
                let decided = state.decided(check, answers, now, now);
                decided.map(|(caller, answers)| {
                    state.decided_here.insert(ticket, answers);
                    caller
                })
            }
        };
        if let Some(caller) = caller {
            caller.answer.answer(Err(error));
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

    /// Returns the time until a permit is lost, in microseconds, unless its lease is renewed until then: 0 if it is lost. `None`
    /// if it has no lease that ends.
    pub(super) fn lost_in(&self, ticket: u64) -> Option<u64> {
        let mut state = self.lock();
        let now = self.clock.now();
        let State { permits, keys, .. } = &mut *state;
        let slots = permits.get(&ticket)?.slots.iter();
        let ends = slots.filter_map(|(id, _, epoch)| {
            let key = keys.get_mut(id)?;
            key.settle_end(now);
            if key.epoch != *epoch {
                return Some(0);
            }
            key.valid_until.map(|until| until.saturating_sub(now))
        });
        ends.min()
    }
}
