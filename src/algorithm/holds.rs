//! Units that processes hold of a key, and what each of them has spent: an entry of absolute numbers for each process.

use super::algorithm_state::AlgorithmState;
use super::bytes::{Bytes, impl_bytes};
use super::quota_check::{Changes, Charge, QuotaCheck, QuotaOutcome};
use crate::decision::{Holding, HoldingNote, Receipt, Wait};

/// The holders of units of a key.
#[derive(Clone, Debug, Default)]
pub(crate) struct Holds {
    holders: Vec<UnitHolder>,
}

#[derive(Clone, Debug)]
struct UnitHolder {
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
impl_bytes!(UnitHolder {
    id,
    sequence,
    units,
    lease,
    spent,
    ends_at
});

/// The time for which an entry stays after its lease, without units, in microseconds: its sequence stops late messages, and a
/// process that stood still goes on from its `spent`.
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
        QuotaOutcome {
            used: self.units,
            wait,
            reset: 0,
            changes: Changes::NONE,
            receipt: Receipt::new(self.note.number(), 0),
        }
    }
}

impl UnitHolder {
    /// At the latest one lease from now, also after a step back of the clock.
    fn end(&self, now: u64) -> u64 {
        self.ends_at.min(now.saturating_add(self.lease))
    }
}

impl Holds {
    /// Takes the units of leases that have ended, shortens those that would end too late, and forgets old entries.
    #[must_use]
    pub(crate) fn expire(&mut self, now: u64) -> Changes {
        let mut is_changed = false;
        self.holders.retain_mut(|holder| {
            let ends_at = holder.end(now);
            let has_ended = ends_at <= now;
            is_changed |= ends_at != holder.ends_at || has_ended && holder.units > 0;
            holder.ends_at = ends_at;
            if has_ended {
                holder.units = 0;
            }
            ends_at.saturating_add(KEPT) > now
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
            None => self.holders.push(UnitHolder {
                id: holding.holder,
                sequence: holding.sequence,
                units: 0,
                lease: holding.lease_micros(),
                spent,
                ends_at: now,
            }),
        }
        u32::try_from(due).unwrap_or(u32::MAX)
    }

    /// Returns what is held before a check is decided, with what its holder states.
    pub(crate) fn before(&self, holding: Option<&Holding>, now: u64) -> UnitsBefore {
        let own_id = holding.map(|holding| holding.holder);
        let own = self.holders.iter().find(|own| Some(own.id) == own_id);
        let live = self.holders.iter().filter(|holder| holder.end(now) > now);
        let others: u64 = live
            .filter(|holder| Some(holder.id) != own_id)
            .map(|holder| u64::from(holder.units))
            .sum();
        let before = UnitHolderBefore::new(own, holding, now);
        UnitsBefore {
            units: u32::try_from(others.saturating_add(before.units)).unwrap_or(u32::MAX),
            note: before.note,
        }
    }

    /// Writes the entry of a holder: with the units that it wants if they are granted. Does nothing if it is superseded.
    #[must_use]
    pub(crate) fn write(&mut self, holding: &Holding, is_granted: bool, now: u64) -> Changes {
        let index = self
            .holders
            .iter()
            .position(|holder| holder.id == holding.holder);
        let own = index.and_then(|index| self.holders.get(index));
        let before = UnitHolderBefore::new(own, Some(holding), now);
        if before.note == HoldingNote::Superseded {
            return Changes::NONE;
        }
        let known = own.map_or(0, |own| own.spent);
        if let Some(index) = index {
            self.holders.remove(index);
        }
        let wanted = if is_granted { holding.wanted } else { 0 };
        let lease = holding.lease_micros();
        self.holders.push(UnitHolder {
            id: holding.holder,
            sequence: holding.sequence,
            units: u32::try_from(before.units.saturating_add(wanted.into())).unwrap_or(u32::MAX),
            lease,
            spent: holding.spent.max(holding.acknowledged).max(known),
            ends_at: now.saturating_add(lease),
        });
        Changes::RENEWED
    }

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
}

/// Nothing is charged to what processes hold, and no refund, credit or reset changes it.
impl AlgorithmState for Holds {
    fn evaluate(&mut self, check: &QuotaCheck<'_>) -> QuotaOutcome {
        let changes = self.expire(check.now);
        let outcome = self.before(None, check.now).outcome();
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
        let longest = self.holders.iter().map(|holder| holder.lease).max();
        Some(longest.unwrap_or(0) + KEPT / 2)
    }
}

/// A holder before its check is decided.
struct UnitHolderBefore {
    units: u64,
    note: HoldingNote,
}

impl UnitHolderBefore {
    fn new(own: Option<&UnitHolder>, holding: Option<&Holding>, now: u64) -> Self {
        let Some(holding) = holding else {
            let note = HoldingNote::None;
            return Self { units: 0, note };
        };
        let live = own.filter(|own| own.end(now) > now);
        let (units, note) = match (own, live) {
            (Some(own), _) if holding.sequence < own.sequence => {
                (live.map_or(0, |own| own.units), HoldingNote::Superseded)
            }
            // Another check of the same message came before.
            (_, Some(live)) if holding.sequence == live.sequence => (live.units, HoldingNote::None),
            (_, None) if holding.held > 0 => (holding.held, HoldingNote::Missing),
            _ => (holding.held, HoldingNote::None),
        };
        Self {
            units: units.into(),
            note,
        }
    }
}
