//! The keys of a table, the checks that wait, and the permits.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use smallvec::SmallVec;
use tokio::runtime::Handle;
use tokio::sync::oneshot;

use super::held_key::HeldKey;
use super::message::{Part, Reply, Slots, next_attempt, told_to_caller};
use crate::clock::certain_part;
use crate::decision::Answers;
use crate::error::Error;
use crate::key::{Fingerprint, HashFingerprint};
use crate::store::{Check, OwnedChecks, ProtectedStore};
use crate::telemetry::{PermitMeter, PermitWait};

/// The bounds of the wait that a refusal suggests, and how many permits of a limiter it is the median of.
const HINT: std::ops::RangeInclusive<u64> = 1_000_000..=60_000_000;
const REMEMBERED_TIMES: usize = 33;

/// The state of a table, which its lock protects.
#[derive(Default)]
pub(super) struct State {
    pub(super) keys: HashMap<Fingerprint, HeldKey, HashFingerprint>,
    /// The checks that no message has, by ticket: in the order of their arrival.
    pub(super) waiting: BTreeMap<u64, Waiter>,
    /// The checks that have not ended, and the permits.
    pub(super) tickets: HashMap<u64, Stage>,
    pub(super) latest_ticket: u64,
    pub(super) sequence: u64,
    /// When keys have something to say, in order.
    pub(super) timers: BTreeSet<(u64, Fingerprint)>,
    /// The last times for which permits of a limiter were held, by the fingerprint of its name.
    pub(super) held_for: HashMap<Fingerprint, VecDeque<u64>, HashFingerprint>,
    /// The metrics of limiters, by the fingerprints of their names.
    pub(super) meters: HashMap<Fingerprint, PermitMeter, HashFingerprint>,
    /// The runtimes on which checks were made. Messages are sent on one of them if there is no current one.
    pub(super) runtimes: Vec<Handle>,
    /// The timer that a task waits for, at the latest. `None` without such a task.
    pub(super) waits_for: Option<u64>,
}

/// A check that wants slots.
pub(super) struct Waiter {
    pub(super) store: ProtectedStore,
    pub(super) checks: OwnedChecks,
    pub(super) slots: Slots,
    /// Until when the check is repeated after a refusal. `None` if it is not.
    pub(super) waits_until: Option<u64>,
    /// Since when the check waits, for the metrics. `None` if it is not repeated.
    pub(super) wait: Option<(PermitWait, u64)>,
    pub(super) answer: oneshot::Sender<Reply>,
}

/// The slots of a permit: the key, the number, and the epoch.
pub(super) type Granted = SmallVec<[(Fingerprint, u32, u64); 1]>;

pub(super) enum Stage {
    /// No message has the check.
    Waiting,
    /// A message with the check is under way.
    Sent,
    /// The permit exists since then.
    Granted(Granted, u64),
}

impl State {
    /// Returns the tickets that wait for these keys, and for others that these tickets wait for.
    pub(super) fn tickets_around(&self, ids: &[Fingerprint]) -> BTreeSet<u64> {
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
            key.meter.record_grant(*slots);
            // The store is told again and again. Until it answers, the lease is that of the first permit.
            let (lease, retry_after) = (key.lease, key.retry_after());
            key.valid_until
                .get_or_insert_with(|| now + certain_part(lease));
            key.is_changed = true;
            key.states_at.get_or_insert(now + retry_after);
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
    pub(super) fn answered(&mut self, part: Part, mut answers: Answers, now: u64) {
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
        let Some((ticket, waits_until, sender, wait)) = part.waiter.take() else {
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
                    key.meter.record_grant(*slots);
                    granted.push((*id, *slots, key.epoch));
                } else {
                    // The caller has gone.
                    key.is_changed = true;
                }
            }
            if is_wanted {
                if let Some((wait, since)) = wait {
                    wait.succeed(Duration::from_micros(now.saturating_sub(since)));
                }
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
                    wait,
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
    pub(super) fn is_late(&self, id: Fingerprint, sent_at: u64, now: u64) -> bool {
        let lease = self.keys.get(&id).map_or(0, |key| key.lease);
        now >= sent_at.saturating_add(certain_part(lease))
    }

    /// Makes all keys due for a statement: the store has lost data.
    pub(super) fn state_all(&mut self, now: u64) {
        let ids: Vec<_> = self.keys.keys().copied().collect();
        for id in ids {
            if let Some(key) = self.keys.get_mut(&id).filter(|key| key.stated() > 0) {
                key.states_at = Some(now);
            }
            self.update_timer(id);
        }
    }

    /// Sets the timer of a key, or removes the key if nothing is left to say about it.
    pub(super) fn update_timer(&mut self, id: Fingerprint) {
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

    /// Returns the keys whose timers are due. Their timers are set anew with their next messages.
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

    /// Returns the metrics of the limiter of each check.
    pub(super) fn meters(&mut self, checks: &[Check<'_>], names: &[Arc<str>]) -> Vec<PermitMeter> {
        let meters = checks.iter().zip(names).map(|(check, name)| {
            let limiter = check.counted_key().limiter.fingerprint();
            let meter = self.meters.entry(limiter);
            meter.or_insert_with(|| PermitMeter::new(name)).clone()
        });
        meters.collect()
    }

    pub(super) fn remember_time(&mut self, limiter: Fingerprint, micros: u64) {
        let times = self.held_for.entry(limiter).or_default();
        times.push_back(micros);
        if times.len() > REMEMBERED_TIMES {
            times.pop_front();
        }
    }
}

fn median(times: Option<&VecDeque<u64>>) -> u64 {
    let mut times: Vec<u64> = times.into_iter().flatten().copied().collect();
    times.sort_unstable();
    let median = times.get(times.len() / 2).copied().unwrap_or_default();
    median.clamp(*HINT.start(), *HINT.end())
}
