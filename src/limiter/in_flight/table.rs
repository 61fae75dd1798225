//! The permits of one store in this process: puts messages together, and takes in their replies.
//!
//! All changes are made under one lock. Nothing here waits or sends.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use smallvec::SmallVec;
use tokio::sync::Notify;

use super::held_key::HeldKey;
use super::message::{Message, Part, Reply, Slots, late, no_reply, superseded};
use super::state::{Stage, State, Waiter};
use crate::clock::Clock;
use crate::decision::{Holding, HoldingNote, StoreId};
use crate::error::Error;
use crate::key::Fingerprint;
use crate::store::{Check, OwnedCheck, ProtectedStore, soften};
use crate::telemetry::{PermitMeter, PermitWait};

/// The tables of this process, by store.
static TABLES: LazyLock<Mutex<Tables>> = LazyLock::new(Mutex::default);

type Tables = Vec<(StoreId, Weak<PermitTable>)>;

/// The permits of one store in this process.
pub(in crate::limiter) struct PermitTable {
    pub(super) holder: [u8; 16],
    pub(super) clock: Clock,
    state: Mutex<State>,
    /// Wakes the task that waits for timers.
    pub(super) timers_changed: Notify,
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
            holder: std::array::from_fn(|_| bytes.next().unwrap_or_default()),
            clock,
            state: Mutex::default(),
            timers_changed: Notify::new(),
        }
    }

    /// Locks the state. Poisoning is ignored: the state is consistent between any two steps.
    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn holding(&self, key: &HeldKey, sequence: u64, wanted: u32, is_stated: bool) -> Holding {
        let lease = match key.store.is_in_process() && wanted == 0 && key.stated() == 0 {
            // No earlier message can come late there, so that the entry can go.
            true => Duration::from_millis(1),
            false => Duration::from_micros(key.lease),
        };
        let holding = Holding::new(self.holder, sequence, key.stated(), wanted, lease);
        if is_stated { holding.stated() } else { holding }
    }

    /// Adds a check. Returns its ticket.
    pub(super) fn add(
        &self,
        state: &mut State,
        waiter: Waiter,
        meters: &[PermitMeter],
        line: Option<usize>,
        now: u64,
    ) -> u64 {
        state.latest_ticket += 1;
        let ticket = state.latest_ticket;
        let mut waiter = waiter;
        for (level, id, _) in &waiter.slots {
            let (Some(check), Some(meter)) = (waiter.checks.get(*level), meters.get(*level)) else {
                continue;
            };
            let key = state
                .keys
                .entry(*id)
                .or_insert_with(|| HeldKey::new(check.check().counted_key(), &waiter.store, meter));
            key.ask(check.check().quotas, &waiter.store);
            if line.is_some_and(|line| key.waiting.len() >= line) {
                waiter.waits_until = None;
            }
            key.waiting.insert(ticket);
            key.asks_at = Some(now);
        }
        if waiter.waits_until.is_some() {
            let levels = waiter.slots.iter().map(|(level, _, _)| *level);
            let limiters = levels.filter_map(|level| meters.get(level).cloned());
            waiter.wait = Some((PermitWait::begin(limiters), now));
        }
        state.waiting.insert(ticket, waiter);
        state.tickets.insert(ticket, Stage::Waiting);
        ticket
    }

    /// Returns the holding of each check that wants slots, for counts of this process.
    pub(super) fn holdings(
        &self,
        state: &mut State,
        store: &ProtectedStore,
        checks: &[Check<'_>],
        slots: &Slots,
        meters: &[PermitMeter],
        now: u64,
    ) -> Vec<Option<Holding>> {
        state.sequence += 1;
        let mut holdings = vec![None; checks.len()];
        for (level, id, wanted) in slots {
            let (Some(check), Some(holding)) = (checks.get(*level), holdings.get_mut(*level))
            else {
                continue;
            };
            let Some(meter) = meters.get(*level) else {
                continue;
            };
            let key = state
                .keys
                .entry(*id)
                .or_insert_with(|| HeldKey::new(check.counted_key(), store, meter));
            key.ask(check.quotas, store);
            key.settle_end(now);
            *holding = Some(self.holding(key, state.sequence, *wanted, true));
        }
        holdings
    }

    /// Returns the next message about these keys, if one is due and none is under way.
    pub(super) fn next_message(
        &self,
        state: &mut State,
        ids: impl IntoIterator<Item = Fingerprint>,
        now: u64,
    ) -> Option<Message> {
        let ids: Vec<_> = ids.into_iter().collect();
        let is_due = |id: &Fingerprint| state.keys.get(id).is_some_and(|key| key.is_due(now));
        let due: Vec<_> = ids.iter().copied().filter(is_due).collect();
        let tickets = state.tickets_around(&due);
        let (mut chosen, mut blocked, mut behind) = (Vec::new(), BTreeSet::new(), Vec::new());
        let mut wanted: BTreeMap<Fingerprint, u32> = BTreeMap::new();
        let mut keys: BTreeSet<Fingerprint> = due.into_iter().collect();
        for ticket in tickets {
            let Some(waiter) = state.waiting.get(&ticket) else {
                continue;
            };
            let mut ids = waiter.slots.iter().map(|(_, id, _)| id);
            let is_busy = |id: &Fingerprint| state.keys.get(id).is_some_and(|key| key.is_busy);
            if ids.clone().any(|id| blocked.contains(id) || is_busy(id)) {
                // Nobody overtakes it.
                blocked.extend(ids.copied());
                continue;
            }
            let is_hopeless = |(_, id, slots): &(usize, Fingerprint, u32)| {
                let before = wanted.get(id).copied().unwrap_or_default();
                let limit = state.keys.get(id).and_then(|key| key.quotas.min_slots());
                before > 0 && before.saturating_add(*slots) > limit.unwrap_or(u32::MAX)
            };
            // Those before it take all slots. It asks when some of them have got theirs.
            if waiter.waits_until.is_some() && waiter.slots.iter().any(is_hopeless) {
                behind.extend(ids.copied());
                continue;
            }
            for (_, id, slots) in &waiter.slots {
                let wanted = wanted.entry(*id).or_default();
                *wanted = wanted.saturating_add(*slots);
            }
            keys.extend(&mut ids);
            chosen.push(ticket);
        }
        for id in blocked {
            if let Some(key) = state.keys.get_mut(&id) {
                (key.has_blocked, key.asks_at) = (true, None);
            }
        }
        let states = |id: &Fingerprint| state.keys.get(id).is_some_and(|key| key.states(now));
        keys.retain(|id| {
            let asks = chosen.iter().filter_map(|ticket| state.waiting.get(ticket));
            states(id)
                || asks
                    .flat_map(|waiter| &waiter.slots)
                    .any(|(_, other, _)| other == id)
        });
        for id in behind {
            if let Some(key) = state.keys.get_mut(&id).filter(|_| !keys.contains(&id)) {
                // Its checks ask with those of the other key.
                key.asks_at = None;
            }
        }
        for id in &ids {
            if !keys.contains(id) {
                state.update_timer(*id);
            }
        }
        if keys.is_empty() {
            return None;
        }
        Some(self.compose(state, &chosen, &keys, now))
    }

    /// Makes a message of these checks and of what is held of these keys.
    fn compose(
        &self,
        state: &mut State,
        chosen: &[u64],
        keys: &BTreeSet<Fingerprint>,
        now: u64,
    ) -> Message {
        state.sequence += 1;
        let sequence = state.sequence;
        let mut message = Message {
            sent_at: now,
            parts: Vec::with_capacity(chosen.len() + 1),
            keys: Vec::with_capacity(keys.len()),
        };
        let mut must_state: BTreeMap<Fingerprint, bool> = BTreeMap::new();
        for id in keys {
            let Some(key) = state.keys.get_mut(id) else {
                continue;
            };
            key.settle_end(now);
            must_state.insert(*id, key.stated() > 0 || key.is_changed || key.is_unsure);
            key.is_busy = true;
            key.is_changed = false;
            (key.asks_at, key.states_at) = (None, None);
            message.keys.push((*id, std::mem::take(&mut key.listeners)));
        }
        for ticket in chosen {
            let Some(mut waiter) = state.waiting.remove(ticket) else {
                continue;
            };
            state.tickets.insert(*ticket, Stage::Sent);
            for (level, id, wanted) in &waiter.slots {
                let Some(key) = state.keys.get_mut(id) else {
                    continue;
                };
                key.waiting.remove(ticket);
                let is_stated = must_state.get(id).copied().unwrap_or_default();
                if let Some(check) = waiter.checks.get_mut(*level) {
                    check.set_holding(self.holding(key, sequence, *wanted, is_stated));
                }
            }
            message.parts.push(Part {
                store: waiter.store,
                checks: waiter.checks,
                slots: waiter.slots,
                waiter: Some((*ticket, waiter.waits_until, waiter.answer, waiter.wait)),
            });
        }
        for id in keys {
            let is_asked = message
                .parts
                .iter()
                .any(|part| part.slots.iter().any(|(_, other, _)| other == id));
            if let (false, Some(key)) = (is_asked, state.keys.get(id)) {
                let holding = self.holding(key, sequence, 0, true);
                key.meter.record_renewal();
                message.parts.push(Part {
                    store: key.store.clone(),
                    checks: key.statement(holding),
                    slots: Slots::from_iter([(0, *id, 0)]),
                    waiter: None,
                });
            }
            state.update_timer(*id);
        }
        message
    }

    /// Takes in the replies to a message, in the order of its parts. Returns its keys.
    pub(super) fn complete(
        &self,
        state: &mut State,
        message: Message,
        replies: Vec<Reply>,
        now: u64,
    ) -> Vec<Fingerprint> {
        let ids: Vec<_> = message.keys.iter().map(|(id, _)| *id).collect();
        for id in &ids {
            if let Some(key) = state.keys.get_mut(id) {
                // Lost is final: no reply revives a permit.
                key.settle_end(now);
                key.is_busy = false;
                key.unblock(now);
            }
        }
        let mut failed: BTreeMap<Fingerprint, Error> = BTreeMap::new();
        let mut is_missing = false;
        let replies = replies
            .into_iter()
            .map(Some)
            .chain(std::iter::repeat_with(|| None));
        for (part, reply) in message.parts.into_iter().zip(replies) {
            let reply = reply
                .unwrap_or_else(|| Err(no_reply()))
                .and_then(|answers| {
                    let notes = part.notes(&answers);
                    is_missing |= notes.contains(&HoldingNote::Missing);
                    if notes.contains(&HoldingNote::Superseded) {
                        return Err(superseded());
                    }
                    if part
                        .slots
                        .iter()
                        .any(|(_, id, _)| state.is_late(*id, message.sent_at, now))
                    {
                        return Err(late());
                    }
                    Ok(answers)
                });
            match reply {
                Err(error) => {
                    for (_, id, _) in &part.slots {
                        failed.insert(*id, error.clone());
                    }
                    if let Some((ticket, _, answer, _)) = part.waiter {
                        state.tickets.remove(&ticket);
                        let _ = answer.send(Err(error));
                    }
                }
                Ok(mut answers) => {
                    soften(part.checks.iter().map(OwnedCheck::check), &mut answers);
                    state.answered(part, answers, now);
                }
            }
        }
        for (id, listeners) in message.keys {
            let failure = failed.get(&id);
            if let Some(key) = state.keys.get_mut(&id) {
                key.end_message(message.sent_at, failure.is_some(), now);
            }
            for listener in listeners {
                let _ = listener.send(failure.map_or(Ok(()), |error| Err(error.clone())));
            }
        }
        if is_missing {
            state.state_all(now);
        }
        for id in &ids {
            if let Some(key) = state.keys.get_mut(id) {
                key.ask_again(now);
            }
            state.update_timer(*id);
        }
        ids
    }

    /// Ends a ticket: takes its check out of the line, or gives its slots back. Returns the keys that have something to say.
    pub(super) fn end(
        &self,
        state: &mut State,
        ticket: u64,
        now: u64,
    ) -> SmallVec<[Fingerprint; 1]> {
        let mut ids = SmallVec::new();
        match state.tickets.remove(&ticket) {
            Some(Stage::Waiting) => {
                let waiter = state.waiting.remove(&ticket);
                for (_, id, _) in waiter.iter().flat_map(|waiter| &waiter.slots) {
                    if let Some(key) = state.keys.get_mut(id) {
                        key.waiting.remove(&ticket);
                        key.unblock(now);
                    }
                    ids.push(*id);
                }
            }
            Some(Stage::Granted(granted, since)) => {
                for (id, slots, epoch) in granted {
                    if let Some(key) = state.keys.get_mut(&id) {
                        let limiter = key.limiter.fingerprint();
                        let micros = now.saturating_sub(since);
                        key.release(slots, epoch, now);
                        key.meter
                            .record_release(slots, Duration::from_micros(micros));
                        state.remember_time(limiter, micros);
                    }
                    ids.push(id);
                }
            }
            // A grant that comes is given back.
            Some(Stage::Sent) | None => {}
        }
        for id in &ids {
            state.update_timer(*id);
        }
        ids
    }

    /// Returns whether a permit is lost or, if it is not, when it will be unless its lease is renewed.
    pub(super) fn lost_at(&self, ticket: u64) -> LostAt {
        let mut state = self.lock();
        let now = self.clock.now();
        let State { tickets, keys, .. } = &mut *state;
        let Some(Stage::Granted(granted, _)) = tickets.get(&ticket) else {
            return LostAt::Never;
        };
        let mut earliest = LostAt::Never;
        for (id, _, epoch) in granted {
            let Some(key) = keys.get_mut(id) else {
                continue;
            };
            key.settle_end(now);
            if key.epoch != *epoch {
                return LostAt::Lost;
            }
            if let Some(until) = key.valid_until {
                let left = until.saturating_sub(now).max(1);
                earliest = match earliest {
                    LostAt::In(other) => LostAt::In(other.min(left)),
                    _ => LostAt::In(left),
                };
            }
        }
        earliest
    }
}

/// When a permit is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LostAt {
    Lost,
    /// In so many microseconds, unless the lease is renewed until then.
    In(u64),
    Never,
}
