//! The slots or units that this process holds of a key, and when it has something to say about them.

use std::time::Duration;

use super::held_of_key::HeldOfKey;
use crate::clock::{certain_part, micros};
use crate::decision::{Holding, holder_for};
use crate::key::{Fingerprint, Key};
use crate::limiter::line::{Room, Want};
#[cfg(tollgate_simulation)]
use crate::planted::is_planted;
use crate::quota::{Quota, Quotas, ShareId};
use crate::random::jittered;
use crate::store::{OutcomeSender, ProtectedStore, StoreFuture, Subject};
use crate::telemetry::PermitMeter;

/// How long releases are gathered for one message, in microseconds.
pub(super) const GATHERED: u64 = 2_000;

/// The parts of a lease after which a key is renewed, and after which a failed renewal is repeated.
const RENEWALS: u64 = 3;
const RETRIES: u64 = 12;

/// The longest time between attempts, in microseconds: of the longest lease that can be set.
const MAX_RETRY: u64 = 50_000_000;

/// The lease of slots in the memory of this process, which cannot be lost without its permits: a century, without renewals.
const LEASE_IN_PROCESS: u64 = 36_525 * 86_400 * 1_000_000;

/// Waits until the store knows what was given back.
pub(super) type Listener = OutcomeSender<()>;

/// The slots that this process holds of a key, or the units, and what it has spent of them.
pub(super) struct HeldKey {
    pub(super) limiter: Key,
    key: Key,
    /// The quotas in flight, as they were last asked; of units, all quotas.
    pub(super) quotas: Quotas,
    /// The share that holds the slots.
    pub(super) share: Option<ShareId>,
    pub(super) store: ProtectedStore,
    /// The request of a check that only states the slots: it asks for none.
    pub(super) statement: Want,
    pub(super) meter: PermitMeter,
    /// The lease of the quotas, as they were last asked, in microseconds.
    lease: u64,
    /// The lease that the last message has stated: that of the holder's entry.
    pub(super) sent_lease: u64,
    /// The slots or units of permits.
    held: u32,
    /// The number of permits. One that has used all of its units may use more.
    permits: usize,
    /// The slots or units of permits that are lost and were not dropped yet. They are stated, too: their work goes on.
    lost: u32,
    /// The units that this process has ever used of the key.
    pub(super) spent: u64,
    /// The part of it that the last message has stated, and the part that the store has acknowledged.
    sent_spent: u64,
    acknowledged: u64,
    /// Permits of an earlier epoch are lost.
    pub(super) epoch: u64,
    /// The time at which the permits are lost. `None` until the store has acknowledged any.
    pub(super) valid_until: Option<u64>,
    /// Whether the store has acknowledged the key since it last lost data.
    pub(super) is_known: bool,
    /// Whether a message is under way.
    pub(super) is_busy: bool,
    /// Whether the store may have another count: slots were given back since the last message, or it had no reply.
    pub(super) is_changed: bool,
    /// Until when the store may hold slots of this process.
    held_until: u64,
    /// The lease of the slots that the last message wanted or stated. 0 if there were none.
    slots_lease: u64,
    /// How long releases are gathered for one message, in microseconds. Not at all if the limit is nearly reached.
    pub(super) gathered: u64,
    /// The slots that were given back since the last message.
    pub(super) returned: u32,
    /// The slots that the counts of this process have granted since the last message.
    untold: u32,
    /// The number of questions that no message has.
    pub(super) questions: usize,
    /// When the key is stated even if no check asks.
    pub(super) states_at: Option<u64>,
    pub(super) timer: Option<u64>,
    /// Those who wait until the store knows what was given back.
    pub(super) listeners: Vec<Listener>,
}

impl HeldKey {
    pub(super) fn new(
        subject: Subject<'_>,
        store: &ProtectedStore,
        meter: &PermitMeter,
        want: Want,
        spent_before: u64,
    ) -> Self {
        // Registers the metrics at the recorder of this thread. That of the table may have another one.
        meter.record_grant(0);
        Self {
            limiter: subject.limiter.clone(),
            key: subject.key.clone(),
            quotas: Quotas::from(Vec::new()),
            share: subject.quotas.known_slot_share(subject.share),
            store: store.clone(),
            statement: Want {
                needs: Room::default(),
                ..want
            },
            meter: meter.clone(),
            lease: 0,
            sent_lease: 0,
            held: 0,
            permits: 0,
            lost: 0,
            spent: spent_before,
            sent_spent: spent_before,
            acknowledged: spent_before,
            epoch: 0,
            valid_until: None,
            is_known: false,
            is_busy: false,
            is_changed: false,
            held_until: 0,
            slots_lease: 0,
            gathered: GATHERED,
            returned: 0,
            untold: 0,
            questions: 0,
            states_at: None,
            timer: None,
            listeners: Vec::new(),
        }
    }

    pub(super) fn ask(&mut self, quotas: &Quotas) {
        if quotas.has_held() {
            if self.quotas == *quotas {
                return;
            }
            self.quotas = quotas.clone();
        } else {
            if self.quotas.iter().eq(quotas.slots()) {
                return;
            }
            self.quotas = quotas.slots().cloned().collect();
        }
        self.lease = if self.store.ends_with_process() {
            // The memory of this process ends with the permits in it.
            LEASE_IN_PROCESS
        } else {
            let leases = quotas.slots().chain(quotas.held());
            leases.map(Quota::window_micros).max().unwrap_or(0)
        };
    }

    /// The other shares with their ids in the table: they may get slots that this one gives back.
    pub(super) fn other_shares(&self) -> Vec<(Option<ShareId>, Fingerprint)> {
        let key = self.subject().fingerprint();
        self.quotas
            .shares_and_none()
            .filter(|share| *share != self.share)
            .map(|share| (share, Want::table_id(key, share)))
            .collect()
    }

    pub(super) fn limit(&self) -> u32 {
        if self.quotas.has_held() {
            return self.quotas.max_admissible_cost(None);
        }
        self.quotas.min_slots(self.share).unwrap_or(u32::MAX)
    }

    /// The slots that a message states: those of lost permits, too.
    pub(super) fn stated(&self) -> u32 {
        #[cfg(tollgate_simulation)]
        if is_planted("LostNotStated") {
            return self.held;
        }
        self.held.saturating_add(self.lost)
    }

    pub(super) fn begin_message(
        &mut self,
        holder: [u8; 16],
        sequence: u64,
        wants: bool,
        now: u64,
    ) -> Holding {
        let holding = self.holding(holder, sequence, now);
        let has_slots = wants || self.stated() > 0;
        self.slots_lease = if has_slots { self.lease } else { 0 };
        self.is_busy = true;
        self.sent_lease = self.lease;
        self.sent_spent = self.spent;
        self.states_at = None;
        self.returned = 0;
        self.untold = 0;
        let has_news = std::mem::take(&mut self.is_changed) || self.stated() > 0;
        if has_news { holding.stated() } else { holding }
    }

    /// States what is held, and wants nothing.
    pub(super) fn holding(&mut self, holder: [u8; 16], sequence: u64, now: u64) -> Holding {
        self.settle_end(now);
        let lease = Duration::from_micros(self.lease);
        let holder = holder_for(holder, self.share);
        Holding::new(holder, sequence, self.stated(), 0, lease)
            .with_spent(self.spent, self.acknowledged)
    }

    pub(super) fn holds_units(&self) -> bool {
        self.quotas.has_held()
    }

    /// Moves units that were used from those that are held. The next message charges them: a store in this process at once.
    pub(super) fn spend(&mut self, of_key: &mut HeldOfKey, units: u32, now: u64) {
        let within = units.min(of_key.left);
        of_key.left -= within;
        of_key.used = of_key.used.saturating_add(units);
        self.take(within, of_key.epoch);
        self.meter.record_spent(within);
        #[cfg(tollgate_simulation)]
        let units = if is_planted("UnitBeforeSum")
            || is_planted("LostUseNotCounted") && of_key.epoch != self.epoch
        {
            0
        } else {
            units
        };
        self.spent = self.spent.saturating_add(units.into());
        if self.store.ends_with_process() {
            self.is_changed = true;
            self.state_at(now);
        }
    }

    fn take(&mut self, units: u32, epoch: u64) {
        if epoch == self.epoch {
            self.held = self.held.saturating_sub(units);
        } else {
            self.lost = self.lost.saturating_sub(units);
        }
    }

    /// A number for the server that has the key now. Servers fail one by one.
    pub(super) fn server(&self) -> usize {
        self.store.server(self.subject())
    }

    pub(super) fn subject(&self) -> Subject<'_> {
        Subject {
            share: self.share,
            ..Subject::new(&self.limiter, &self.key, &self.quotas)
        }
    }

    /// Makes the permits lost if the lease has ended.
    pub(super) fn settle_end(&mut self, now: u64) {
        #[cfg(tollgate_simulation)]
        if is_planted("LossNotFinal") {
            return;
        }
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

    /// Returns the epoch of the new permit.
    pub(super) fn grant(&mut self, slots: u32) -> u64 {
        self.held = self.held.saturating_add(slots);
        self.permits += 1;
        self.meter.record_grant(slots);
        self.epoch
    }

    /// Returns the epoch of the new permit, which the store does not know.
    pub(super) fn grant_untold(&mut self, slots: u32, now: u64) -> u64 {
        // The message is repeated until the store answers. Until then, the lease is that of the first permit.
        let until = now + certain_part(self.lease);
        self.valid_until.get_or_insert(until);
        self.is_changed = true;
        let retry_at = now + self.retry_after();
        self.states_at.get_or_insert(retry_at);
        self.untold = self.untold.saturating_add(slots);
        self.grant(slots)
    }

    /// Returns whether a grant of the store to the last message is beyond the limit, because the counts of this process have
    /// granted slots since then.
    pub(super) fn has_granted_instead(&self, slots: u32) -> bool {
        self.untold > 0 && self.stated().saturating_add(slots) > self.limit()
    }

    pub(super) fn release(&mut self, slots: u32, epoch: u64) {
        #[cfg(tollgate_simulation)]
        let epoch = if is_planted("LostReleasesHeld") {
            self.epoch
        } else {
            epoch
        };
        self.take(slots, epoch);
        self.permits = self.permits.saturating_sub(1);
        self.returned = self.returned.saturating_add(slots);
        self.is_changed = true;
        self.store.forget_refusals(self.subject());
    }

    /// States the key now. Returns what waits until the store knows what is held.
    pub(super) fn tell(&mut self, now: u64) -> StoreFuture<()> {
        let (listener, acknowledged) = StoreFuture::channel();
        self.listeners.push(listener);
        // Also after a message that is under way, which may state more.
        self.is_changed = true;
        self.state_at(now);
        acknowledged
    }

    /// Sets when the store learns what was given back: with the next question if there `is_asked` one now, and at once if another
    /// share may ask for it next.
    pub(super) fn flush(&mut self, is_asked: bool, now: u64) {
        let is_urgent = !self.listeners.is_empty()
            || self.quotas.have_shares()
            || self.store.ends_with_process();
        let at = if is_urgent {
            now
        } else if is_asked {
            now + GATHERED
        } else {
            now + self.gathered
        };
        self.state_at(at);
    }

    pub(super) fn state_at(&mut self, at: u64) {
        self.states_at = Some(self.states_at.map_or(at, |known| known.min(at)));
    }

    pub(super) fn end_message(&mut self, sent_at: u64, has_failed: bool, now: u64) {
        if self.slots_lease > 0 {
            let ends_at = now.saturating_add(self.slots_lease);
            // After a failure, the store may have the lease of this message, or that of an earlier one.
            let earlier = if has_failed { self.held_until } else { 0 };
            self.held_until = ends_at.max(earlier);
        }
        let valid_until = sent_at.saturating_add(certain_part(self.sent_lease));
        #[cfg(tollgate_simulation)]
        let has_failed = has_failed && !is_planted("ValidWithoutReply");
        #[cfg(tollgate_simulation)]
        let valid_until = if is_planted("WholeLease") {
            sent_at + self.sent_lease / 10 * 13
        } else if is_planted("ValidFromReply") {
            now + certain_part(self.sent_lease)
        } else {
            valid_until
        };
        if has_failed {
            self.end_failed_message(valid_until, now);
        } else {
            self.end_acknowledged_message(sent_at, valid_until, now);
        }
    }

    fn end_failed_message(&mut self, valid_until: u64, now: u64) {
        // The store may have taken the message in all the same, with a shorter lease than before; and another part of
        // it may have granted the first slots.
        if self.held > 0 {
            let known = self.valid_until.unwrap_or(valid_until);
            self.valid_until = Some(known.min(valid_until));
        }
        let is_awaited = !self.listeners.is_empty();
        // Without slots, there is nothing to say once the entry has ended: else each key of a long outage would stay. What was
        // spent is said in the end.
        let may_be_held = self.stated() > 0 || now < self.held_until;
        self.is_changed = may_be_held || is_awaited || self.has_unacknowledged();
        let retry_after = if is_awaited { 0 } else { self.retry_after() };
        self.states_at = self.is_changed.then_some(now + retry_after);
    }

    fn end_acknowledged_message(&mut self, sent_at: u64, valid_until: u64, now: u64) {
        self.acknowledged = self.sent_spent;
        #[cfg(tollgate_simulation)]
        if is_planted("ReplyAcknowledgesAll") {
            self.acknowledged = self.spent;
        }
        // The store keeps the lease of the newest message, even if an earlier one had a longer lease.
        self.valid_until = (self.stated() > 0).then_some(valid_until);
        if self.is_changed && self.states_at.is_none() {
            self.flush(false, now);
        }
        let is_in_use = self.stated() > 0 || self.permits > 0 && self.holds_units();
        if is_in_use && !self.store.ends_with_process() {
            // At the latest then, so that the jitter only shortens the time.
            let third = self.sent_lease / RENEWALS;
            self.state_at(sent_at + third - jittered_micros(third / 4));
        }
    }

    /// The time until a failed message is repeated, in microseconds.
    fn retry_after(&self) -> u64 {
        jittered_micros((self.lease / RETRIES).min(MAX_RETRY))
    }

    pub(super) fn is_over(&self) -> bool {
        !self.is_busy
            && self.stated() == 0
            && self.permits == 0
            && self.questions == 0
            && self.states_at.is_none()
            && !self.is_changed
            && !self.has_unacknowledged()
    }

    fn has_unacknowledged(&self) -> bool {
        #[cfg(tollgate_simulation)]
        if is_planted("ForgetsUnacknowledged") {
            return false;
        }
        self.spent > self.acknowledged
    }
}

fn jittered_micros(mean: u64) -> u64 {
    micros(jittered(Duration::from_micros(mean)))
}
