//! The slots that this process holds of a key, and when it has something to say about them.

use std::collections::BTreeSet;
use std::hash::{BuildHasher, RandomState};

use tokio::sync::oneshot;

use crate::clock::certain_part;
use crate::decision::Holding;
use crate::error::Error;
use crate::key::Key;
use crate::quota::{Quota, Quotas};
use crate::store::{Check, CountedKey, OwnedChecks, ProtectedStore};
use crate::telemetry::PermitMeter;

/// How long releases are gathered for one message, in microseconds, unless the limit is nearly reached.
const GATHERED: u64 = 2_000;

/// The mean time between two attempts of a check that waits, in microseconds. Each is between half of it and half more.
pub(super) const POLL: u64 = 25_000;

/// The parts of a lease after which a key is renewed, and after which a failed renewal is repeated.
const RENEWALS: u64 = 3;
const RETRIES: u64 = 12;

/// The longest time between attempts, in microseconds: of the longest lease that can be set.
const MAX_RETRY: u64 = 50_000_000;

/// The lease of slots in the memory of this process, which cannot be lost without its permits: a month.
const LEASE_IN_PROCESS: u64 = 30 * 86_400 * 1_000_000;

/// Waits until the store knows what was given back.
pub(super) type Listener = oneshot::Sender<Result<(), Error>>;

/// The slots that this process holds of a key.
#[expect(
    clippy::struct_excessive_bools,
    reason = "each one is a fact of its own"
)]
pub(super) struct HeldKey {
    pub(super) limiter: Key,
    pub(super) key: Key,
    /// The quotas in flight, as they were last asked.
    pub(super) quotas: Quotas,
    pub(super) store: ProtectedStore,
    pub(super) meter: PermitMeter,
    /// The lease of the holder's entry, in microseconds.
    pub(super) lease: u64,
    /// The slots of permits.
    pub(super) held: u32,
    /// The slots of permits that are lost and were not dropped yet. They are stated, too: their work goes on.
    pub(super) lost: u32,
    /// Permits of an earlier epoch are lost.
    pub(super) epoch: u64,
    /// The time at which the permits are lost. `None` until the store has acknowledged any.
    pub(super) valid_until: Option<u64>,
    /// Whether a message is under way.
    pub(super) is_busy: bool,
    /// Whether slots were given back since the last message.
    pub(super) is_changed: bool,
    /// Whether the last message may have been executed without a reply.
    pub(super) is_unsure: bool,
    /// The used slots, over all processes, and the limit, as the store last answered.
    pub(super) used: u32,
    pub(super) limit: u32,
    /// The checks that no message has.
    pub(super) waiting: BTreeSet<u64>,
    /// When they ask.
    pub(super) asks_at: Option<u64>,
    /// Whether some of them could not ask, because they or earlier ones need another key that was busy.
    pub(super) has_blocked: bool,
    /// Whether the last message has brought slots.
    pub(super) has_granted: bool,
    /// When the key is stated even if no check asks.
    pub(super) states_at: Option<u64>,
    pub(super) timer: Option<u64>,
    /// Those who wait until the store knows what was given back.
    pub(super) listeners: Vec<Listener>,
}

impl HeldKey {
    pub(super) fn new(
        counted_key: CountedKey<'_>,
        store: &ProtectedStore,
        meter: &PermitMeter,
    ) -> Self {
        Self {
            limiter: counted_key.limiter.clone(),
            key: counted_key.key.clone(),
            quotas: Quotas::from(Vec::new()),
            store: store.clone(),
            meter: meter.clone(),
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
    pub(super) fn ask(&mut self, quotas: &Quotas, store: &ProtectedStore) {
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
    pub(super) fn stated(&self) -> u32 {
        self.held.saturating_add(self.lost)
    }

    /// Returns the check that only states what is held.
    pub(super) fn statement(&self, holding: Holding) -> OwnedChecks {
        let check = Check::new(&self.limiter, &self.key, &self.quotas, 0);
        OwnedChecks::from_iter([check.with_holding(&holding).into()])
    }

    /// Makes the permits lost if the lease has ended.
    pub(super) fn settle_end(&mut self, now: u64) {
        if self.valid_until.is_some_and(|until| now >= until) {
            self.valid_until = None;
            if self.held > 0 {
                self.meter.record_lost(self.held);
                self.lost = self.lost.saturating_add(self.held);
                self.held = 0;
                self.epoch += 1;
            }
        }
    }

    /// Lets those ask that another check has kept from it.
    pub(super) fn unblock(&mut self, now: u64) {
        if std::mem::take(&mut self.has_blocked) {
            self.asks_at = Some(now);
        }
    }

    /// Sets when those ask who were left out of a message: at once if others got slots.
    pub(super) fn ask_again(&mut self, now: u64) {
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

    pub(super) fn release(&mut self, slots: u32, epoch: u64, now: u64) {
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
    pub(super) fn end_message(&mut self, sent_at: u64, has_failed: bool, now: u64) {
        self.is_unsure = has_failed;
        if has_failed {
            self.is_changed = true;
            self.states_at = Some(now + self.retry_after());
            return;
        }
        let until = sent_at.saturating_add(certain_part(self.lease));
        if self.stated() > 0 {
            self.valid_until = Some(self.valid_until.map_or(until, |known| known.max(until)));
            // At the latest then, so that the jitter only shortens the time.
            let third = self.lease / RENEWALS;
            self.states_at = Some(sent_at + third - jittered(third / 4));
        } else {
            self.valid_until = None;
        }
        if self.is_changed {
            self.set_flush(now);
        }
    }

    /// Returns the time until a failed message is repeated.
    pub(super) fn retry_after(&self) -> u64 {
        jittered((self.lease / RETRIES).min(MAX_RETRY))
    }

    pub(super) fn due_at(&self) -> Option<u64> {
        let asks_at = self.asks_at.filter(|_| !self.waiting.is_empty());
        [asks_at, self.states_at].into_iter().flatten().min()
    }

    pub(super) fn is_due(&self, now: u64) -> bool {
        !self.is_busy && self.due_at().is_some_and(|at| at <= now)
    }

    pub(super) fn states(&self, now: u64) -> bool {
        !self.is_busy && self.states_at.is_some_and(|at| at <= now)
    }

    pub(super) fn is_over(&self) -> bool {
        !self.is_busy
            && self.stated() == 0
            && self.waiting.is_empty()
            && self.states_at.is_none()
            && !self.is_changed
    }
}

/// Returns a random time between half of this and half more, so that processes do not ask together.
pub(super) fn jittered(micros: u64) -> u64 {
    let random = RandomState::new().hash_one(0) % 1_024;
    micros / 2 + micros * random / 1_024
}
