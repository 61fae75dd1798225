//! Slots in flight: an entry of absolute counts for each process that holds some.

use std::time::Duration;

use super::algorithm_state::AlgorithmState;
use super::arithmetic::saturate;
use super::bytes::{Bytes, impl_bytes};
use super::quota_check::{Changes, Charge, QuotaCheck, QuotaOutcome};
use super::share_room::share_room;
use crate::decision::{Holding, HoldingNote, Receipt, Wait, holder_for};
use crate::quota::ShareId;

/// The holders of the slots of a key.
#[derive(Clone, Debug, Default)]
pub(crate) struct InFlight {
    holders: Vec<Holder>,
}

#[derive(Clone, Debug)]
struct Holder {
    id: [u8; 16],
    sequence: u64,
    slots: u32,
    /// In microseconds, as `ends_at`.
    lease: u64,
    ends_at: u64,
}

impl_bytes!(InFlight { holders });
impl_bytes!(Holder {
    id,
    sequence,
    slots,
    lease,
    ends_at
});

impl Holder {
    /// At the latest one lease from now, also after a step back of the clock.
    fn end(&self, now: u64) -> u64 {
        self.ends_at.min(now.saturating_add(self.lease))
    }
}

impl InFlight {
    /// Removes entries whose lease has ended, and shortens those that would end too late.
    #[must_use]
    pub(crate) fn expire(&mut self, now: u64) -> Changes {
        let mut is_changed = false;
        self.holders.retain_mut(|holder| {
            let ends_at = holder.end(now);
            is_changed |= ends_at != holder.ends_at || ends_at <= now;
            holder.ends_at = ends_at;
            ends_at > now
        });
        Changes::RENEWED.only_if(is_changed)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.holders.is_empty()
    }

    /// Decides whether the slots that a check wants are there. Without a holding, it wants none, and is admitted.
    pub(crate) fn decide(&self, check: &QuotaCheck<'_>, holding: Option<&Holding>) -> QuotaOutcome {
        let now = check.now;
        let own_id = holding.map(|holding| holding.holder);
        let mut live = self.holders.iter().filter(|holder| holder.end(now) > now);
        let others = live.clone().filter(|holder| Some(holder.id) != own_id);
        let own = live.find(|holder| Some(holder.id) == own_id);
        let before = before_check(own, holding);
        let used = slots(others.clone()).saturating_add(before.slots);
        let room = share_room(check, used, |share| {
            let used = slots(others.clone().filter(|holder| has_share(holder.id, share)));
            if own_id.is_some_and(|id| has_share(id, share)) {
                used.saturating_add(before.slots)
            } else {
                used
            }
        });
        let most = share_room(check, 0, |_| 0);
        let wanted = holding.map(|holding| i64::from(holding.wanted));
        let is_refused =
            before.note == HoldingNote::Superseded || wanted.is_some_and(|wanted| wanted > room);
        QuotaOutcome {
            used: saturate(i64::from(check.limit).abs_diff(room)),
            wait: if wanted.is_some_and(|wanted| wanted > most) {
                Wait::Never
            } else if is_refused {
                // Nobody knows when a slot is given back.
                Wait::Micros(1)
            } else {
                Wait::Zero
            },
            reset: 0,
            changes: Changes::NONE,
            receipt: Receipt::new(before.note.number(), 0),
        }
    }

    /// Writes the entry of a holder: with the slots that it wants if they are granted. Does nothing if it is superseded.
    #[must_use]
    pub(crate) fn write(&mut self, holding: &Holding, is_granted: bool, now: u64) -> Changes {
        let own = self
            .holders
            .iter()
            .position(|holder| holder.id == holding.holder)
            .map(|index| self.holders.remove(index));
        let live = own.as_ref().filter(|holder| holder.end(now) > now);
        let before = before_check(live, Some(holding));
        if before.note == HoldingNote::Superseded {
            self.holders.extend(own);
            return Changes::NONE;
        }
        let wanted = if is_granted { holding.wanted } else { 0 };
        let lease = holding.lease_micros();
        self.holders.push(Holder {
            id: holding.holder,
            sequence: holding.sequence,
            slots: u32::try_from(before.slots.saturating_add(wanted.into())).unwrap_or(u32::MAX),
            lease,
            ends_at: now.saturating_add(lease),
        });
        Changes::RENEWED
    }

    /// Takes the granted slots of a message back, since another check of the message was not decided.
    #[must_use]
    pub(crate) fn take_back(&mut self, holding: &Holding) -> Changes {
        let own = self
            .holders
            .iter_mut()
            .find(|own| own.id == holding.holder && own.sequence == holding.sequence);
        let Some(own) = own else {
            return Changes::NONE;
        };
        own.slots = own.slots.saturating_sub(holding.wanted);
        Changes::RENEWED
    }

    pub(crate) fn holds_none(&self, now: u64) -> bool {
        self.holders
            .iter()
            .filter(|holder| holder.end(now) > now)
            .all(|holder| holder.slots == 0)
    }

    pub(crate) fn held(&self, now: u64) -> Vec<Holding> {
        self.holders
            .iter()
            .filter(|holder| holder.slots > 0)
            .map(|holder| {
                let left = Duration::from_micros(holder.end(now).saturating_sub(now));
                Holding::new(holder.id, 0, holder.slots, 0, left)
            })
            .filter(|holding| !holding.lease.is_zero())
            .collect()
    }
}

/// Without a holder, a check changes nothing but entries whose lease has ended.
impl AlgorithmState for InFlight {
    fn evaluate(&mut self, check: &QuotaCheck<'_>) -> QuotaOutcome {
        let changes = self.expire(check.now);
        let outcome = self.decide(check, None);
        QuotaOutcome { changes, ..outcome }
    }

    fn check(&mut self, check: &QuotaCheck<'_>, _: u64) -> QuotaOutcome {
        self.evaluate(check)
    }

    fn charge(&mut self, _: &QuotaCheck<'_>, _: u64) -> Changes {
        Changes::NONE
    }

    fn refund(&mut self, _: &QuotaCheck<'_>, _: Charge, _: u32) -> Changes {
        Changes::NONE
    }

    fn credit(&mut self, _: &QuotaCheck<'_>, _: u32) -> Changes {
        Changes::NONE
    }

    fn is_idle(&self, check: &QuotaCheck<'_>) -> bool {
        self.holds_none(check.now)
    }

    fn longest_window(&self) -> Option<u64> {
        self.holders
            .iter()
            .map(|holder| holder.lease)
            .max()
            .or(Some(0))
    }
}

fn slots<'a>(holders: impl Iterator<Item = &'a Holder>) -> u64 {
    holders.map(|holder| u64::from(holder.slots)).sum()
}

fn has_share(id: [u8; 16], share: ShareId) -> bool {
    holder_for(id, Some(share)) == id
}

/// A holder before its check is decided.
struct HolderBefore {
    slots: u64,
    /// The store's note about the entry of the holder.
    note: HoldingNote,
}

impl HolderBefore {
    fn new(slots: u32, note: HoldingNote) -> Self {
        let slots = slots.into();
        Self { slots, note }
    }
}

fn before_check(own: Option<&Holder>, holding: Option<&Holding>) -> HolderBefore {
    let Some(holding) = holding else {
        return HolderBefore::new(0, HoldingNote::None);
    };
    match own {
        Some(own) if holding.sequence < own.sequence => {
            HolderBefore::new(own.slots, HoldingNote::Superseded)
        }
        // Another check of the same message came before.
        Some(own) if holding.sequence == own.sequence => {
            HolderBefore::new(own.slots, HoldingNote::None)
        }
        Some(_) => HolderBefore::new(holding.held, HoldingNote::None),
        None if holding.held > 0 => HolderBefore::new(holding.held, HoldingNote::Missing),
        None => HolderBefore::new(0, HoldingNote::None),
    }
}
