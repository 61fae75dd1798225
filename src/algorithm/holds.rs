//! Slots or units that processes hold of a key, and what each of them has spent: an entry of absolute numbers for each process.
//!
//! Slots are units that nobody spends.

use std::time::Duration;

use super::algorithm_state::AlgorithmState;
use super::arithmetic::saturate;
use super::bytes::{Bytes, impl_bytes};
use super::quota_check::{Changes, Charge, QuotaCheck, QuotaOutcome};
use super::share_room::share_room;
use crate::decision::{Holding, HoldingNote, Receipt, Wait, holder_for};
use crate::quota::ShareId;

/// The holders of slots or of units of a key.
#[derive(Clone, Debug, Default)]
pub(crate) struct Holds {
    holders: Vec<Holder>,
}

#[derive(Clone, Debug, Default)]
struct Holder {
    id: [u8; 16],
    sequence: u64,
    units: u32,
    /// In microseconds, as `ends_at`.
    lease: u64,
    /// The units that the holder has ever used of the key, as far as it has said.
    spent: u64,
    ends_at: u64,
}

impl_bytes!(Holds { holders });
// The spent units stand behind all holders: see `write_spent`.
impl_bytes!(Holder {
    id,
    sequence,
    units,
    lease,
    ends_at;
    Self::default()
});

/// The time for which an entry with something spent stays after its lease, without units, in microseconds: its sequence stops
/// late messages, and a process that stood still goes on from its `spent`.
const KEPT: u64 = 3_600_000_000;

/// The units that all processes hold, as of a message.
#[derive(Clone, Copy, Debug)]
pub(crate) struct UnitsBefore {
    pub(crate) units: u32,
    /// The store's note about the entry of the holder that asks.
    pub(crate) note: HoldingNote,
}

impl UnitsBefore {
    /// The outcome of the count of what is held. It refuses nothing but a message that comes after a later one.
    pub(crate) fn outcome(self) -> QuotaOutcome {
        let wait = if self.note == HoldingNote::Superseded {
            Wait::Micros(1)
        } else {
            Wait::Zero
        };
        outcome(self.units, wait, self.note)
    }
}

fn outcome(used: u32, wait: Wait, note: HoldingNote) -> QuotaOutcome {
    QuotaOutcome {
        used,
        wait,
        reset: 0,
        changes: Changes::NONE,
        receipt: Receipt::new(note.number(), 0),
    }
}

impl Holder {
    /// At the latest one lease from now, also after a step back of the clock.
    fn end(&self, now: u64) -> u64 {
        self.ends_at.min(now.saturating_add(self.lease))
    }

    fn kept(&self) -> u64 {
        if self.spent > 0 { KEPT } else { 0 }
    }
}

impl Holds {
    /// Takes the units of leases that have ended, shortens those that would end too late, and removes entries that stay no
    /// longer.
    #[must_use]
    pub(crate) fn expire(&mut self, now: u64) -> Changes {
        let mut is_changed = false;
        self.holders.retain_mut(|holder| {
            let ends_at = holder.end(now);
            let has_ended = ends_at <= now;
            is_changed |=
                ends_at != holder.ends_at || has_ended && (holder.units > 0 || holder.spent == 0);
            holder.ends_at = ends_at;
            if has_ended {
                holder.units = 0;
            }
            ends_at.saturating_add(holder.kept()) > now
        });
        Changes::RENEWED.only_if(is_changed)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.holders.is_empty()
    }

    pub(crate) fn holds_none(&self, now: u64) -> bool {
        self.holders
            .iter()
            .filter(|holder| holder.end(now) > now)
            .all(|holder| holder.units == 0)
    }

    /// Lists the leases of the holders that hold something.
    pub(crate) fn held(&self, now: u64) -> Vec<Holding> {
        self.holders
            .iter()
            .filter(|holder| holder.units > 0)
            .map(|holder| {
                let left = Duration::from_micros(holder.end(now).saturating_sub(now));
                Holding::new(holder.id, 0, holder.units, 0, left)
            })
            .filter(|holding| !holding.lease.is_zero())
            .collect()
    }

    /// Decides whether the slots that a check wants are there. Without a holding, it wants none, and is admitted.
    pub(crate) fn decide(&self, check: &QuotaCheck<'_>, holding: Option<&Holding>) -> QuotaOutcome {
        let (own, note) = self.own_before(holding, check.now);
        let used = units(self.others(holding)).saturating_add(own);
        let room = share_room(check, used, |share| {
            let others = units(
                self.others(holding)
                    .filter(|holder| has_share(holder.id, share)),
            );
            match holding {
                Some(holding) if has_share(holding.holder, share) => others.saturating_add(own),
                _ => others,
            }
        });
        let most = share_room(check, 0, |_| 0);
        let wanted = holding.map(|holding| i64::from(holding.wanted));
        let is_refused =
            note == HoldingNote::Superseded || wanted.is_some_and(|wanted| wanted > room);
        let wait = if wanted.is_some_and(|wanted| wanted > most) {
            Wait::Never
        } else if is_refused {
            // Nobody knows when a slot is given back.
            Wait::Micros(1)
        } else {
            Wait::Zero
        };
        outcome(saturate(i64::from(check.limit).abs_diff(room)), wait, note)
    }

    /// Returns the units that are held before a check is decided, with what its holder states.
    pub(crate) fn before(&self, holding: Option<&Holding>, now: u64) -> UnitsBefore {
        let (own, note) = self.own_before(holding, now);
        UnitsBefore {
            units: saturate(units(self.others(holding)).saturating_add(own)),
            note,
        }
    }

    fn own(&self, holding: &Holding) -> Option<&Holder> {
        self.holders.iter().find(|own| own.id == holding.holder)
    }

    fn others(&self, holding: Option<&Holding>) -> impl Iterator<Item = &Holder> {
        let own_id = holding.map(|holding| holding.holder);
        self.holders
            .iter()
            .filter(move |holder| Some(holder.id) != own_id)
    }

    /// Returns what the asking holder has before its check is decided, and the store's note about its entry.
    fn own_before(&self, holding: Option<&Holding>, now: u64) -> (u64, HoldingNote) {
        let Some(holding) = holding else {
            return (0, HoldingNote::None);
        };
        let own = self.own(holding);
        let live = own.filter(|own| own.ends_at > now);
        let (units, note) = match (own, live) {
            (Some(own), _) if holding.sequence < own.sequence => {
                (own.units, HoldingNote::Superseded)
            }
            // Another check of the same message came before.
            (_, Some(live)) if holding.sequence == live.sequence => (live.units, HoldingNote::None),
            (_, None) if holding.held > 0 => (holding.held, HoldingNote::Missing),
            _ => (holding.held, HoldingNote::None),
        };
        (units.into(), note)
    }

    /// Notes what a holder has spent, and returns the part of it that was never charged. Nothing if it is superseded.
    pub(crate) fn spend(&mut self, holding: &Holding, now: u64) -> u32 {
        let Holding {
            spent,
            acknowledged,
            ..
        } = *holding;
        let own = self.holders.iter_mut().find(|own| own.id == holding.holder);
        let charged = own.as_ref().map_or(0, |own| own.spent).max(acknowledged);
        let due = spent.saturating_sub(charged);
        match own {
            _ if due == 0 => return 0,
            Some(own) if holding.sequence < own.sequence => return 0,
            Some(own) => own.spent = spent,
            // Its lease has ended, until the message is decided.
            None => self.holders.push(Holder {
                id: holding.holder,
                sequence: holding.sequence,
                units: 0,
                lease: holding.lease_micros(),
                spent,
                ends_at: now,
            }),
        }
        saturate(due)
    }

    /// Writes the entry of a holder: with the units that it wants if they are granted. Does nothing if it is superseded.
    #[must_use]
    pub(crate) fn write(&mut self, holding: &Holding, is_granted: bool, now: u64) -> Changes {
        let (before, note) = self.own_before(Some(holding), now);
        if note == HoldingNote::Superseded {
            return Changes::NONE;
        }
        let known = self.own(holding).map_or(0, |own| own.spent);
        self.holders.retain(|own| own.id != holding.holder);
        let wanted = if is_granted { holding.wanted } else { 0 };
        let lease = holding.lease_micros();
        self.holders.push(Holder {
            id: holding.holder,
            sequence: holding.sequence,
            units: saturate(before.saturating_add(wanted.into())),
            lease,
            spent: holding.spent.max(holding.acknowledged).max(known),
            ends_at: now.saturating_add(lease),
        });
        Changes::RENEWED
    }

    /// Takes the granted units of a message back, since another check of the message was not decided.
    #[must_use]
    pub(crate) fn take_back(&mut self, holding: &Holding) -> Changes {
        let own = self
            .holders
            .iter_mut()
            .find(|own| own.id == holding.holder && own.sequence == holding.sequence);
        let Some(own) = own else {
            return Changes::NONE;
        };
        own.units = own.units.saturating_sub(holding.wanted);
        Changes::RENEWED
    }

    pub(super) fn write_spent(&self, bytes: &mut Vec<u8>) {
        self.holders
            .iter()
            .for_each(|holder| holder.spent.write(bytes));
    }

    pub(super) fn read_spent(&mut self, bytes: &mut &[u8]) -> Option<()> {
        for holder in &mut self.holders {
            holder.spent = Bytes::read(bytes)?;
        }
        Some(())
    }
}

/// Without a holding, a check changes nothing but entries whose lease has ended. No charge, refund, credit or reset changes what
/// is held.
impl AlgorithmState for Holds {
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

    /// An entry lives for twice its lease, and then for as long as it is kept.
    fn longest_window(&self) -> Option<u64> {
        let windows = self.holders.iter().map(|own| own.lease + own.kept() / 2);
        Some(windows.max().unwrap_or(0))
    }
}

fn units<'a>(holders: impl Iterator<Item = &'a Holder>) -> u64 {
    holders.map(|holder| u64::from(holder.units)).sum()
}

fn has_share(id: [u8; 16], share: ShareId) -> bool {
    holder_for(id, Some(share)) == id
}
