//! The permits of one store in this process.
//!
//! All changes are made under one lock. Nothing here waits or sends.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::mem;
use std::sync::{Arc, Weak};

use smallvec::SmallVec;
use tokio::sync::{Notify, oneshot};

use super::held_key::{HeldKey, Listener};
use super::held_of_key::HeldOfKey;
use crate::clock::Clock;
use crate::decision::{Answers, StoreId, holder_for};
use crate::error::Error;
use crate::key::{Fingerprint, HashFingerprint};
use crate::limiter::line::{SlotWait, Ticket, Want, Woken};
use crate::lock::Mutex;
use crate::random::random_bits;
use crate::store::{OwnedCheck, ProtectedStore, SendMarks};

/// The tables of this process, by store.
static TABLES: Mutex<Vec<(StoreId, Weak<PermitTable>)>> = Mutex::new(Vec::new());

/// Wakes those who wait for the end of a lease that ends sooner now. A permit may be of several tables.
pub(super) static LEASE_SHORTENED: Notify = Notify::const_new();

/// The permits of one store in this process.
pub(in crate::limiter) struct PermitTable {
    pub(in crate::limiter) holder: [u8; 16],
    pub(super) clock: Clock,
    state: Mutex<State>,
    /// Whether the counts end with this process: then callers send the messages. Else, a thread does.
    pub(super) ends_with_process: bool,
    /// Wakes the thread.
    pub(super) woken: Arc<Notify>,
    /// Wakes those who wait until all slots are given back.
    pub(super) given_back: Notify,
}

/// The state of a table, which its lock protects.
#[derive(Default)]
pub(super) struct State {
    pub(super) keys: HashMap<Fingerprint, HeldKey, HashFingerprint>,
    /// The questions that no message has, in the order in which the calls arrived.
    pub(super) questions: BTreeMap<Ticket, SlotCheck>,
    /// Whether a question may be sent now.
    pub(super) may_ask: bool,
    pub(super) sequence: u64,
    /// The most that was spent of any key that is not here any more. What is spent of a new one is counted from there, so that a
    /// late message about an earlier use of the key has spent less.
    pub(super) spent_before: u64,
    /// When keys have something to say, in order.
    pub(super) timers: BTreeSet<(u64, Fingerprint)>,
    /// The keys that have changed: their timers are set before the next look.
    pub(super) changed: Vec<Fingerprint>,
    /// The parts of the store whose last message has failed.
    pub(super) failed: BTreeSet<usize>,
    /// The last times for which permits of a limiter were held, by the fingerprint of its name.
    pub(super) held_for: HashMap<Fingerprint, VecDeque<u64>, HashFingerprint>,
    /// When the thread looks again. `None` without a thread.
    pub(super) looks_at: Option<u64>,
    pub(super) outbox: Outbox,
}

/// The answers that are sent when the table is unlocked: to send one may drop a permit.
#[derive(Default)]
pub(super) struct Outbox {
    pub(super) answers: Vec<(oneshot::Sender<Taken>, Taken)>,
    pub(super) acknowledged: Vec<(Listener, Result<(), Error>)>,
    pub(super) woken: Woken,
    /// Whether a lease ends sooner than before.
    pub(super) ends_sooner: bool,
}

/// A check that wants slots, or that only states what is held.
pub(super) struct SlotCheck {
    pub(super) store: ProtectedStore,
    pub(super) levels: SmallVec<[SlotLevel; 1]>,
    /// The marks of a message that is sent, for the refusal cache.
    pub(super) sent: SendMarks,
    pub(super) caller: Caller,
}

/// A level of a check, and the units and slots that it asks.
pub(super) struct SlotLevel {
    pub(super) check: OwnedCheck,
    pub(super) want: Want,
}

/// The caller of a check. It has gone if nobody takes the answer.
pub(super) struct Caller {
    pub(super) ticket: Ticket,
    /// `None` if the call does not wait after a refusal.
    pub(super) wait: Option<SlotWait>,
    pub(super) answer: oneshot::Sender<Taken>,
}

/// The answers that a caller takes, and its slots if it is admitted.
pub(super) type Taken = Result<(Answers, Option<HeldSlots>), Error>;

/// The slots or units of one check, held until this is dropped. That takes the lock of the table.
pub(crate) struct HeldSlots {
    pub(super) table: Arc<PermitTable>,
    pub(super) since: u64,
    pub(super) of_keys: SmallVec<[HeldOfKey; 1]>,
}

impl PermitTable {
    pub(in crate::limiter) fn of(store: &ProtectedStore) -> Arc<Self> {
        let mut tables = TABLES.lock();
        tables.retain(|(_, table)| table.strong_count() > 0);
        let known = tables.iter().find(|(id, _)| *id == store.id());
        if let Some(table) = known.and_then(|(_, table)| table.upgrade()) {
            return table;
        }
        let high = u128::from(random_bits()) << 64;
        let bytes = (high | u128::from(random_bits())).to_be_bytes();
        let table = Arc::new(Self {
            holder: holder_for(bytes, None),
            clock: Clock::monotonic(),
            ends_with_process: store.ends_with_process(),
            state: Mutex::default(),
            woken: Arc::default(),
            given_back: Notify::new(),
        });
        tables.push((store.id(), Arc::downgrade(&table)));
        table
    }

    /// Changes the state under its lock, and then answers those who wait for that.
    pub(super) fn with<T>(&self, change: impl FnOnce(&mut State, u64) -> T) -> T {
        let mut state = self.state.lock();
        let outcome = change(&mut state, self.clock.now());
        state.set_timers();
        let outbox = mem::take(&mut state.outbox);
        drop(state);
        outbox.send();
        outcome
    }
}

impl State {
    pub(super) fn key(&mut self, id: Fingerprint) -> Option<&mut HeldKey> {
        self.changed.push(id);
        self.keys.get_mut(&id)
    }

    pub(super) fn next_look(&mut self) -> Option<u64> {
        self.set_timers();
        let at_once = self.may_ask.then_some(0);
        at_once.or_else(|| self.timers.first().map(|(at, _)| *at))
    }

    /// Sets the timers of keys that have changed, and removes those about which nothing is left to say.
    pub(super) fn set_timers(&mut self) {
        while let Some(id) = self.changed.pop() {
            let Some(key) = self.keys.get_mut(&id) else {
                continue;
            };
            let timer = key.states_at.filter(|_| !key.is_busy);
            if timer != key.timer {
                let before = mem::replace(&mut key.timer, timer);
                self.timers.extend(timer.map(|timer| (timer, id)));
                if let Some(before) = before {
                    self.timers.remove(&(before, id));
                }
            }
            if key.is_over() {
                self.spent_before = self.spent_before.max(key.spent);
                self.keys.remove(&id);
            }
        }
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
        for (listener, outcome) in self.acknowledged {
            listener.send(outcome);
        }
        drop(self.woken);
    }
}
