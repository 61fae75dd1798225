//! The slots, or the units, that a process holds, as a message to the store states them.

use std::time::Duration;

use crate::quota::ShareId;

/// The slots of a key that one process holds, and those that a [`Check`](crate::store::protocol::Check) wants for it.
///
/// For quotas [in flight](crate::Quota::in_flight), a store keeps an entry for each holder: the sequence, the slots, the
/// lease, and the end of the lease. Entries have absolute counts, so a message that is lost, late or repeated cannot count
/// a slot twice or lose one. [`Counters`](crate::store::protocol::Counters) follow these rules:
///
/// - An entry whose lease has ended is removed. One that ends later than a lease *of its own* from now, as after a step back
///   of the clock, ends then. Both are stored even if the check is refused.
/// - A check whose sequence is older than the entry's is refused, as a later message was decided before. It changes nothing
///   else.
/// - The holder's slots are `held`, or those of the entry if it has the same sequence: several checks of one sequence add up.
/// - If these, those of the other holders and `wanted` are at most each limit, and all rates admit the cost, the check is
///   admitted. Then the entry gets the sum, the sequence, and a lease from now on.
/// - Otherwise the check is refused. If `is_stated`, or if nothing is wanted, the entry is written in the same way without
///   `wanted`.
///
/// An entry with 0 slots stays until its lease ends, so that its sequence is known.
///
/// # Units
///
/// For quotas of a limiter with a [`reserve_lease`](crate::RateLimiter::reserve_lease), the entries have units in place of
/// slots, which nobody spends, and what the holder has `spent`. They stand beside the counts of the quotas. The rules are the
/// same, and:
///
/// - First, and whatever is decided, the store charges `spent` less the larger of `acknowledged` and the `spent` of the entry
///   to each quota, also beyond its limit. So no unit is charged twice, and none is lost with a message.
/// - The check is admitted if the units of all holders, what is charged, and `wanted` are at most each limit. Its cost is not
///   charged.
/// - When the lease has ended, an entry with something spent stays for an hour without units. A check whose sequence is older is
///   refused then, too.
///
/// The [receipt](crate::store::protocol::Receipt) of an answer to slots has a note for limiters as its generation: 2 if the sequence is
/// older than the entry's, 1 if slots are held and the holder had no entry, and otherwise 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Holding {
    /// The identity of the holder. A process has a new random one for each store; the last four bytes stand for the
    /// [share](crate::Quota::shares) of the slots, and are 0 without one. So each share of a process is a holder of its own.
    pub holder: [u8; 16],
    /// Grows with each message of the holder, over all of its keys.
    pub sequence: u64,
    /// The slots or units that the holder holds now.
    pub held: u32,
    /// The slots or units to add if the check is admitted. With 0, the check states what is held.
    pub wanted: u32,
    /// The lease of the holder's entry.
    pub lease: Duration,
    /// Whether the entry is written even if the check is refused.
    pub is_stated: bool,
    /// The units that the holder has ever used of the key. 0 for slots.
    pub spent: u64,
    /// The part of `spent` of which the holder knows that the store has charged it.
    pub acknowledged: u64,
}

/// The note of a store about the entry of a holder.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum HoldingNote {
    #[default]
    None,
    /// The holder holds slots, but had no entry: data was lost, or the lease had ended.
    Missing,
    /// A later message was decided before.
    Superseded,
}

impl HoldingNote {
    /// Stores tell the note by this number, as the generation of a [`Receipt`](crate::store::protocol::Receipt).
    pub(crate) const fn number(self) -> u64 {
        self as u64
    }
}

impl Holding {
    /// Creates the message of a holder that holds `held` slots of a key and wants `wanted` more.
    #[must_use]
    pub fn new(holder: [u8; 16], sequence: u64, held: u32, wanted: u32, lease: Duration) -> Self {
        Self {
            holder,
            sequence,
            held,
            wanted,
            lease,
            is_stated: false,
            spent: 0,
            acknowledged: 0,
        }
    }

    /// Adds what the holder has ever used of the key, and the part of it that the store has acknowledged.
    #[must_use]
    pub fn with_spent(self, spent: u64, acknowledged: u64) -> Self {
        Self {
            spent,
            acknowledged,
            ..self
        }
    }

    /// Makes this the message of the slots that a [share](crate::Quota::shares) of the process holds.
    #[must_use]
    pub fn in_share(self, share: &str) -> Self {
        Self {
            holder: holder_for(self.holder, Some(ShareId::of(share))),
            ..self
        }
    }

    /// Makes the store write the entry even if the check is refused.
    #[must_use]
    pub fn stated(self) -> Self {
        Self {
            is_stated: true,
            ..self
        }
    }

    pub(crate) fn wants(&self, wanted: u32) -> Self {
        Self { wanted, ..*self }
    }

    pub(crate) fn is_written_if_refused(&self) -> bool {
        self.is_stated || self.wanted == 0 || self.spent > self.acknowledged
    }

    pub(crate) fn lease_millis(&self) -> u32 {
        u32::try_from(self.lease.as_millis()).unwrap_or(u32::MAX)
    }

    /// In whole milliseconds, as a message states it.
    pub(crate) fn lease_micros(&self) -> u64 {
        u64::from(self.lease_millis()) * 1_000
    }
}

/// The last four bytes of a holder stand for the share of the process.
pub(crate) fn holder_for(process: [u8; 16], share: Option<ShareId>) -> [u8; 16] {
    let mut holder = process;
    if let Some(last_bytes) = holder.last_chunk_mut() {
        *last_bytes = share.map_or([0; 4], ShareId::bytes);
    }
    holder
}
