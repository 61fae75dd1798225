//! The permits of this process and the checks that wait for some: what is held of each key, and what its next message says.
//!
//! All changes are made under one lock. Nothing here waits, sends or reads a clock.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use smallvec::SmallVec;
use tokio::runtime::Handle;
use tokio::sync::{Notify, oneshot};

use crate::clock::{Clock, certain_part};
use crate::decision::{Answers, Holding, HoldingNote, QuotaAnswer, StoreId, Wait};
use crate::error::{Error, ErrorKind};
use crate::key::{Fingerprint, HashFingerprint, Key};
use crate::quota::{Quota, Quotas};
use crate::store::{Check, CountedKey, OwnedChecks, ProtectedStore};

/// How long releases are gathered for one message, in microseconds, unless the limit is nearly reached.
const GATHERED: u64 = 2_000;

/// The mean time between two attempts of a check that waits, in microseconds. Each is between half of it and half more.
const POLL: u64 = 25_000;

/// The parts of a lease after which a key is renewed, and after which a failed renewal is repeated.
const RENEWALS: u64 = 3;
const RETRIES: u64 = 12;

/// The lease of slots in the memory of this process, which cannot be lost without its permits: a month.
const LEASE_IN_PROCESS: u64 = 30 * 86_400 * 1_000_000;

/// The bounds of the wait that a refusal suggests, and how many permits of a limiter it is the median of.
const HINT: std::ops::RangeInclusive<u64> = 1_000_000..=60_000_000;
const REMEMBERED_TIMES: usize = 33;

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

/// What the lock protects.
#[derive(Default)]
pub(super) struct State {
    keys: HashMap<Fingerprint, HeldKey, HashFingerprint>,
    /// The checks that no message has, by ticket: in the order of their arrival.
    waiting: BTreeMap<u64, Waiter>,
    /// The checks that have not ended, and the permits.
    tickets: HashMap<u64, Stage>,
    latest_ticket: u64,
    sequence: u64,
    /// When keys have something to say, in order.
    timers: BTreeSet<(u64, Fingerprint)>,
    /// The last times for which permits of a limiter were held, by the fingerprint of its name.
    held_for: HashMap<Fingerprint, VecDeque<u64>, HashFingerprint>,
    /// The runtimes on which checks were made. Messages are sent on one of them if there is no current one.
    pub(super) runtimes: Vec<Handle>,
    /// The timer that a task waits for, at the latest. `None` without such a task.
    pub(super) waits_for: Option<u64>,
}

/// The slots that this process holds of a key.
#[expect(
    clippy::struct_excessive_bools,
    reason = "each one is a fact of its own"
)]
struct HeldKey {
    limiter: Key,
    key: Key,
    /// The quotas in flight, as they were last asked.
    quotas: Quotas,
    store: ProtectedStore,
    /// The lease of the holder's entry, in microseconds.
    lease: u64,
    /// The slots of permits.
    held: u32,
    /// The slots of permits that are lost and were not dropped yet. They are stated, too: their work goes on.
    lost: u32,
    /// Permits of an earlier epoch are lost.
    epoch: u64,
    /// The time at which the permits are lost. `None` until the store has acknowledged any.
    valid_until: Option<u64>,
    /// Whether a message is under way.
    is_busy: bool,
    /// Whether slots were given back since the last message.
    is_changed: bool,
    /// Whether the last message may have been executed without a reply.
    is_unsure: bool,
    /// The used slots, over all processes, and the limit, as the store last answered.
    used: u32,
    limit: u32,
    /// The checks that no message has.
    waiting: BTreeSet<u64>,
    /// When they ask.
    asks_at: Option<u64>,
    /// Whether some of them could not ask, because they or earlier ones need another key that was busy.
    has_blocked: bool,
    /// Whether the last message has brought slots.
    has_granted: bool,
    /// When the key is stated even if no check asks.
    states_at: Option<u64>,
    timer: Option<u64>,
    /// Those who wait until the store knows what was given back.
    listeners: Vec<Listener>,
}

/// A check that wants slots.
pub(super) struct Waiter {
    pub(super) store: ProtectedStore,
    pub(super) checks: OwnedChecks,
    pub(super) slots: Slots,
    /// Until when the check is repeated after a refusal. `None` if it is not.
    pub(super) waits_until: Option<u64>,
    pub(super) answer: oneshot::Sender<Reply>,
}

/// The slots that a check wants: the index of its level, the key, and the number.
pub(super) type Slots = SmallVec<[(usize, Fingerprint, u32); 1]>;

/// The slots of a permit: the key, the number, and the epoch.
type Granted = SmallVec<[(Fingerprint, u32, u64); 1]>;

enum Stage {
    /// No message has the check.
    Waiting,
    /// A message with the check is under way.
    Sent,
    /// The permit exists since then.
    Granted(Granted, u64),
}

/// A message about some keys: all that was waiting for them, and what is held of them.
pub(super) struct Message {
    pub(super) sent_at: u64,
    pub(super) parts: Vec<Part>,
    keys: Vec<KeyOfMessage>,
}

/// A key of a message, and those who wait until the store knows what was given back of it.
type KeyOfMessage = (Fingerprint, Vec<Listener>);

type Listener = oneshot::Sender<Result<(), Error>>;

/// A check of a message, with the holdings of its levels.
pub(super) struct Part {
    pub(super) store: ProtectedStore,
    pub(super) checks: OwnedChecks,
    pub(super) slots: Slots,
    /// `None` if the part only states what is held.
    waiter: Option<WaiterOfPart>,
}

/// The ticket of a check, until when it is repeated, and where its answers go.
type WaiterOfPart = (u64, Option<u64>, oneshot::Sender<Reply>);

/// What the reply to a message is.
pub(super) type Reply = Result<Answers, Error>;

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
        line: Option<usize>,
        now: u64,
    ) -> u64 {
        state.latest_ticket += 1;
        let ticket = state.latest_ticket;
        let mut waiter = waiter;
        for (level, id, _) in &waiter.slots {
            let Some(check) = waiter.checks.get(*level) else {
                continue;
            };
            let key = state
                .keys
                .entry(*id)
                .or_insert_with(|| HeldKey::new(check.check().counted_key(), &waiter.store));
            key.ask(check.check().quotas, &waiter.store);
            if line.is_some_and(|line| key.waiting.len() >= line) {
                waiter.waits_until = None;
            }
            key.waiting.insert(ticket);
            key.asks_at = Some(now);
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
        now: u64,
    ) -> Vec<Option<Holding>> {
        state.sequence += 1;
        let mut holdings = vec![None; checks.len()];
        for (level, id, wanted) in slots {
            let (Some(check), Some(holding)) = (checks.get(*level), holdings.get_mut(*level))
            else {
                continue;
            };
            let key = state
                .keys
                .entry(*id)
                .or_insert_with(|| HeldKey::new(check.counted_key(), store));
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
        let (mut chosen, mut blocked) = (Vec::new(), BTreeSet::new());
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
                waiter: Some((*ticket, waiter.waits_until, waiter.answer)),
            });
        }
        for id in keys {
            let is_asked = message
                .parts
                .iter()
                .any(|part| part.slots.iter().any(|(_, other, _)| other == id));
            if let (false, Some(key)) = (is_asked, state.keys.get(id)) {
                let holding = self.holding(key, sequence, 0, true);
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
                    if let Some((ticket, _, answer)) = part.waiter {
                        state.tickets.remove(&ticket);
                        let _ = answer.send(Err(error));
                    }
                }
                Ok(answers) => state.answered(part, answers, now),
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
                        key.release(slots, epoch, now);
                        state.remember_time(limiter, now.saturating_sub(since));
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

impl State {
    /// Returns the tickets that wait for these keys, and for others that these tickets wait for.
    fn tickets_around(&self, ids: &[Fingerprint]) -> BTreeSet<u64> {
        let (mut tickets, mut seen) = (BTreeSet::new(), BTreeSet::new());
        let mut next: Vec<_> = ids.to_vec();
        while let Some(id) = next.pop() {
            let Some(key) = self.keys.get(&id).filter(|_| seen.insert(id)) else {
                continue;
            };
            for ticket in &key.waiting {
                if tickets.insert(*ticket) {
                    let waiter = self.waiting.get(ticket).into_iter();
                    next.extend(
                        waiter.flat_map(|waiter| waiter.slots.iter().map(|(_, id, _)| *id)),
                    );
                }
            }
        }
        tickets
    }

    /// Makes a permit that the store does not know. Returns its ticket.
    pub(super) fn grant_locally(&mut self, slots: &Slots, now: u64) -> u64 {
        self.latest_ticket += 1;
        let mut granted = Granted::new();
        for (_, id, slots) in slots {
            let Some(key) = self.keys.get_mut(id) else {
                continue;
            };
            key.held = key.held.saturating_add(*slots);
            // The store is told again and again. Until it answers, the lease is that of the first permit.
            let lease = key.lease;
            key.valid_until
                .get_or_insert_with(|| now + certain_part(lease));
            key.is_changed = true;
            key.states_at
                .get_or_insert_with(|| now + jittered(lease / RETRIES));
            granted.push((*id, *slots, key.epoch));
            self.update_timer(*id);
        }
        self.tickets
            .insert(self.latest_ticket, Stage::Granted(granted, now));
        self.latest_ticket
    }

    /// Writes the suggested waits to the answers of counts of this process.
    pub(super) fn suggest_waits(&self, slots: &Slots, checks: &[Check<'_>], answers: &mut Answers) {
        for (level, id, _) in slots {
            let (Some(key), Some(check)) = (self.keys.get(id), checks.get(*level)) else {
                continue;
            };
            let hint = median(self.held_for.get(&key.limiter.fingerprint()));
            let of_level = answers.get_mut(*level).into_iter();
            let answers = of_level.flat_map(|answer| answer.quotas_mut());
            for (quota, answer) in check.quotas.iter().zip(answers) {
                if quota.is_in_flight() {
                    *answer = told_to_caller(answer, hint);
                }
            }
        }
    }

    /// Takes in the answers to a part of a message.
    fn answered(&mut self, part: Part, mut answers: Answers, now: u64) {
        let is_admitted = answers.are_admitted();
        let mut hint = 0;
        for (level, id, _) in &part.slots {
            let (Some(key), Some(answer)) = (self.keys.get_mut(id), answers.get_mut(*level)) else {
                continue;
            };
            let check = part.checks.get(*level);
            let quotas = check
                .into_iter()
                .flat_map(|check| check.check().quotas.iter());
            for (quota, answer) in quotas.zip(answer.quotas_mut()) {
                if quota.is_in_flight() {
                    (key.used, key.limit) = (answer.used(), quota.limit());
                    if !is_admitted {
                        hint = hint.max(median(self.held_for.get(&key.limiter.fingerprint())));
                    }
                    *answer = told_to_caller(answer, hint);
                }
            }
        }
        let mut part = part;
        let Some((ticket, waits_until, sender)) = part.waiter.take() else {
            return;
        };
        let is_wanted = matches!(self.tickets.get(&ticket), Some(Stage::Sent));
        if is_admitted {
            let mut granted = Granted::new();
            for (_, id, slots) in &part.slots {
                let Some(key) = self.keys.get_mut(id) else {
                    continue;
                };
                key.has_granted = true;
                if is_wanted {
                    key.held = key.held.saturating_add(*slots);
                    granted.push((*id, *slots, key.epoch));
                } else {
                    // The caller has gone.
                    key.is_changed = true;
                }
            }
            if is_wanted {
                self.tickets.insert(ticket, Stage::Granted(granted, now));
                let _ = sender.send(Ok(answers));
            }
            return;
        }
        let next = waits_until.and_then(|until| next_attempt(&part, &answers, now, until));
        match next.filter(|_| is_wanted) {
            Some(next) => {
                self.tickets.insert(ticket, Stage::Waiting);
                for (_, id, _) in &part.slots {
                    if let Some(key) = self.keys.get_mut(id) {
                        key.waiting.insert(ticket);
                        key.asks_at = Some(key.asks_at.map_or(next, |at| at.min(next)));
                    }
                }
                let Part {
                    store,
                    checks,
                    slots,
                    ..
                } = part;
                let waiter = Waiter {
                    store,
                    checks,
                    slots,
                    waits_until,
                    answer: sender,
                };
                self.waiting.insert(ticket, waiter);
            }
            None => {
                self.tickets.remove(&ticket);
                let _ = sender.send(Ok(answers));
            }
        }
    }

    /// Returns whether a reply to a message comes after the end of the lease that it tells.
    fn is_late(&self, id: Fingerprint, sent_at: u64, now: u64) -> bool {
        let lease = self.keys.get(&id).map_or(0, |key| key.lease);
        now >= sent_at.saturating_add(certain_part(lease))
    }

    /// Has all keys stated: the store has lost data.
    fn state_all(&mut self, now: u64) {
        let ids: Vec<_> = self.keys.keys().copied().collect();
        for id in ids {
            if let Some(key) = self.keys.get_mut(&id).filter(|key| key.stated() > 0) {
                key.states_at = Some(now);
            }
            self.update_timer(id);
        }
    }

    /// Sets the timer of a key, or removes the key if nothing is left to say about it.
    fn update_timer(&mut self, id: Fingerprint) {
        let Some(key) = self.keys.get_mut(&id) else {
            return;
        };
        let timer = if key.is_busy { None } else { key.due_at() };
        if timer != key.timer {
            if let Some(timer) = key.timer {
                self.timers.remove(&(timer, id));
            }
            if let Some(timer) = timer {
                self.timers.insert((timer, id));
            }
            key.timer = timer;
        }
        if key.is_over() {
            self.keys.remove(&id);
        }
    }

    /// Removes the keys whose timers are due.
    pub(super) fn take_due(&mut self, now: u64) -> Vec<Fingerprint> {
        let due = self.timers.iter().take_while(|(at, _)| *at <= now);
        due.map(|(_, id)| *id).collect()
    }

    pub(super) fn knows(&self, runtime: &Handle) -> bool {
        let mut runtimes = self.runtimes.iter();
        runtimes.any(|known| known.id() == runtime.id())
    }

    pub(super) fn next_timer(&self) -> Option<u64> {
        self.timers.first().map(|(at, _)| *at)
    }

    /// Adds one who waits until the store knows what was given back of a key. `None` if there is nothing to tell.
    pub(super) fn listen(
        &mut self,
        id: Fingerprint,
        now: u64,
    ) -> Option<oneshot::Receiver<Result<(), Error>>> {
        let key = self.keys.get_mut(&id).filter(|key| key.is_changed)?;
        let (sender, receiver) = oneshot::channel();
        key.listeners.push(sender);
        key.states_at = Some(now);
        self.update_timer(id);
        Some(receiver)
    }

    fn remember_time(&mut self, limiter: Fingerprint, micros: u64) {
        let times = self.held_for.entry(limiter).or_default();
        times.push_back(micros);
        if times.len() > REMEMBERED_TIMES {
            times.pop_front();
        }
    }
}

impl HeldKey {
    fn new(counted_key: CountedKey<'_>, store: &ProtectedStore) -> Self {
        Self {
            limiter: counted_key.limiter.clone(),
            key: counted_key.key.clone(),
            quotas: Quotas::from(Vec::new()),
            store: store.clone(),
            lease: 0,
            held: 0,
            lost: 0,
            epoch: 0,
            valid_until: None,
            is_busy: false,
            is_changed: false,
            is_unsure: false,
            used: 0,
            limit: u32::MAX,
            waiting: BTreeSet::new(),
            asks_at: None,
            has_blocked: false,
            has_granted: false,
            states_at: None,
            timer: None,
            listeners: Vec::new(),
        }
    }

    /// Takes in the quotas that a check asks.
    fn ask(&mut self, quotas: &Quotas, store: &ProtectedStore) {
        let in_flight = || quotas.iter().filter(|quota| quota.is_in_flight());
        if !self.quotas.iter().eq(in_flight()) {
            self.quotas = in_flight().cloned().collect();
        }
        // The memory of this process ends with the permits in it.
        self.lease = match store.is_in_process() {
            true => LEASE_IN_PROCESS,
            false => self
                .quotas
                .iter()
                .map(Quota::window_micros)
                .max()
                .unwrap_or(0),
        };
    }

    /// Returns the slots that a message states: those of lost permits, too.
    fn stated(&self) -> u32 {
        self.held.saturating_add(self.lost)
    }

    /// Returns the check that only states what is held.
    fn statement(&self, holding: Holding) -> OwnedChecks {
        let check = Check::new(&self.limiter, &self.key, &self.quotas, 0);
        OwnedChecks::from_iter([check.with_holding(&holding).into()])
    }

    /// Makes the permits lost if the lease has ended.
    fn settle_end(&mut self, now: u64) {
        if self.valid_until.is_some_and(|until| now >= until) {
            self.valid_until = None;
            if self.held > 0 {
                self.lost = self.lost.saturating_add(self.held);
                self.held = 0;
                self.epoch += 1;
            }
        }
    }

    /// Lets those ask that another check has kept from it.
    fn unblock(&mut self, now: u64) {
        if std::mem::take(&mut self.has_blocked) {
            self.asks_at = Some(now);
        }
    }

    /// Sets when those ask who were left out of a message: at once if others got slots.
    fn ask_again(&mut self, now: u64) {
        let has_granted = std::mem::take(&mut self.has_granted);
        if !self.waiting.is_empty() {
            let next = if has_granted {
                now
            } else {
                now + jittered(POLL)
            };
            self.asks_at = Some(self.asks_at.map_or(next, |at| at.min(next)));
        }
    }

    fn release(&mut self, slots: u32, epoch: u64, now: u64) {
        let of = if epoch == self.epoch {
            &mut self.held
        } else {
            &mut self.lost
        };
        *of = of.saturating_sub(slots);
        self.is_changed = true;
        self.set_flush(now);
    }

    /// Sets when a change is told.
    fn set_flush(&mut self, now: u64) {
        let is_wanted = !self.waiting.is_empty();
        let is_nearly_full = self.used.saturating_add(1) >= self.limit;
        let at = if is_wanted || is_nearly_full {
            now
        } else {
            now + GATHERED
        };
        self.states_at = Some(self.states_at.map_or(at, |known| known.min(at)));
        if is_wanted {
            self.asks_at = Some(now);
        }
    }

    /// Takes in the end of a message.
    fn end_message(&mut self, sent_at: u64, has_failed: bool, now: u64) {
        self.is_unsure = has_failed;
        if has_failed {
            self.is_changed = true;
            self.states_at = Some(now + jittered(self.lease / RETRIES));
            return;
        }
        let until = sent_at.saturating_add(certain_part(self.lease));
        if self.stated() > 0 {
            self.valid_until = Some(self.valid_until.map_or(until, |known| known.max(until)));
            self.states_at = Some(sent_at + jittered(self.lease / RENEWALS));
        } else {
            self.valid_until = None;
        }
        if self.is_changed {
            self.set_flush(now);
        }
    }

    fn due_at(&self) -> Option<u64> {
        let asks_at = self.asks_at.filter(|_| !self.waiting.is_empty());
        [asks_at, self.states_at].into_iter().flatten().min()
    }

    fn is_due(&self, now: u64) -> bool {
        !self.is_busy && self.due_at().is_some_and(|at| at <= now)
    }

    fn states(&self, now: u64) -> bool {
        !self.is_busy && self.states_at.is_some_and(|at| at <= now)
    }

    fn is_over(&self) -> bool {
        !self.is_busy
            && self.stated() == 0
            && self.waiting.is_empty()
            && self.states_at.is_none()
            && !self.is_changed
    }
}

impl Part {
    /// Returns what the store has noted about the entries of this process.
    fn notes(&self, answers: &Answers) -> SmallVec<[HoldingNote; 2]> {
        let mut notes = SmallVec::new();
        for (level, _, _) in &self.slots {
            let (Some(check), Some(answer)) = (self.checks.get(*level), answers.get(*level)) else {
                continue;
            };
            let quotas = check.check().quotas.iter().zip(answer.quotas());
            let in_flight = quotas.filter(|(quota, _)| quota.is_in_flight());
            notes.extend(
                in_flight.map(|(_, answer)| HoldingNote::from_number(answer.receipt().generation)),
            );
        }
        notes
    }
}

/// Returns the answer about slots that the caller gets: with a suggested wait, and without the note.
fn told_to_caller(answer: &QuotaAnswer, hint: u64) -> QuotaAnswer {
    let wait = match answer.wait() {
        Wait::Micros(_) => Wait::Micros(hint),
        wait => wait,
    };
    QuotaAnswer::from_micros(answer.used(), wait, 0)
}

/// Returns when a refused check is repeated. `None` if that is too late, or never helps.
fn next_attempt(part: &Part, answers: &Answers, now: u64, until: u64) -> Option<u64> {
    let mut wait = 0;
    for (check, answer) in part.checks.iter().zip(answers.iter()) {
        for (quota, answer) in check.check().quotas.iter().zip(answer.quotas()) {
            wait = wait.max(match (answer.wait(), quota.is_in_flight()) {
                (Wait::Never, _) => return None,
                (Wait::Micros(_), true) => jittered(POLL),
                (Wait::Micros(micros), false) if now + micros > until => return None,
                // Units may be given back before.
                (Wait::Micros(micros), false) => micros.min(1_000_000),
                (Wait::Zero, _) => 0,
            });
        }
    }
    let next = (now + wait).min(until.max(now + 1));
    (now < until).then_some(next)
}

/// Returns a random time between half of this and half more, so that processes do not ask together.
fn jittered(micros: u64) -> u64 {
    let random = RandomState::new().hash_one(0) % 1_024;
    micros / 2 + micros * random / 1_024
}

fn median(times: Option<&VecDeque<u64>>) -> u64 {
    let mut times: Vec<u64> = times.into_iter().flatten().copied().collect();
    times.sort_unstable();
    let median = times.get(times.len() / 2).copied().unwrap_or_default();
    median.clamp(*HINT.start(), *HINT.end())
}

fn no_reply() -> Error {
    let text = "the message about slots was dropped (runtime shut down?): slots may be held until the next one";
    Error::new(ErrorKind::Unavailable, text)
}

fn late() -> Error {
    let text = "the reply about slots came after their lease had ended: check again";
    Error::new(ErrorKind::Timeout, text)
}

fn superseded() -> Error {
    let text = "a later message of this process about its slots was decided first: check again";
    Error::new(ErrorKind::Unavailable, text)
}
