//! The counts that keys share while a store is full.
//!
//! A key for which there is no place is counted with the other keys of its network, or, if it has no
//! network or there is no room for that either, in one of a few shared counts. While such a count has
//! units that count, every new key that belongs to it stays there: a client that comes back has no
//! second limit.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use super::table::{ShardGuard, Table};
use crate::clock::Clock;
use crate::decision::{Answer, Counted, Source};
use crate::key::Fingerprint;
use crate::key::Key;
use crate::store::requests::Check;
use crate::store::requests::Subject;

/// One network is counted for so many keys, and at least for [`MIN_NETWORKS`].
const KEYS_PER_NETWORK: usize = 8;

const MIN_NETWORKS: usize = 64;

/// The shared counts of one limiter: so many for networks, and as many for keys without one.
const SHARED_COUNTS: u64 = 64;

/// The shared counts of all limiters.
const MAX_SHARED_COUNTS: usize = 4_096;

/// How often a full store says so at most, in microseconds.
const WARNING_INTERVAL: u64 = 60_000_000;

/// The shared counts of a store.
#[derive(Debug)]
pub(super) struct Overflow {
    networks: Table,
    shared: Table,
    /// The counts in both tables. While there are none, new keys need not look.
    len: AtomicUsize,
    /// When a full store may say so again.
    warns_at: AtomicU64,
}

impl Overflow {
    pub(super) fn new(max_keys: usize) -> Self {
        let networks = (max_keys / KEYS_PER_NETWORK).max(MIN_NETWORKS);
        Self {
            // No count with units that count is dropped: its keys would have a second limit.
            networks: Table::new(networks, 0),
            shared: Table::new(MAX_SHARED_COUNTS, 0),
            len: AtomicUsize::new(0),
            warns_at: AtomicU64::new(0),
        }
    }

    /// Whether there may be a count with units.
    #[inline]
    pub(super) fn is_used(&self) -> bool {
        self.len.load(Ordering::Acquire) > 0
    }

    /// Decides over a check of a key that belongs to a count with units; false where none has any.
    pub(super) fn check_live(&self, check: Check<'_>, clock: &Clock, answer: &mut Answer) -> bool {
        let Some((mut shard, now, place)) = self.live(check.subject, clock) else {
            return false;
        };
        let Some(counters) = shard.known(place.name) else {
            return false;
        };
        answer.begin(now, Source::Memory);
        counters.check(check, now, answer);
        answer.counted_in(place.counted);
        true
    }

    /// Decides over a check of a key for which the store has no place; false where there is none here
    /// either.
    pub(super) fn check(&self, check: Check<'_>, clock: &Clock, answer: &mut Answer) -> bool {
        let places = Place::all(check.subject);
        places.into_iter().flatten().rev().any(|place| {
            let (mut shard, now) = self.table(place).lock_now(place.name, clock);
            let held = shard.len();
            shard.sweep_now_and_then(now);
            answer.begin(now, Source::Memory);
            let has_room = shard.check(place.name, check, now, answer);
            self.follow(held, shard.len());
            answer.counted_in(place.counted);
            has_room
        })
    }

    /// Locks the count with units to which a key belongs, if there is one.
    pub(super) fn live(
        &self,
        subject: Subject<'_>,
        clock: &Clock,
    ) -> Option<(ShardGuard<'_>, u64, Place)> {
        if !self.is_used() {
            return None;
        }
        let places = Place::all(subject);
        places.into_iter().flatten().find_map(|place| {
            let (mut shard, now) = self.table(place).lock_now(place.name, clock);
            let held = shard.len();
            shard.sweep_now_and_then(now);
            self.follow(held, shard.len());
            shard.live(place.name, now)?;
            Some((shard, now, place))
        })
    }

    /// Locks the count in which a key was counted.
    pub(super) fn lock_now(
        &self,
        subject: Subject<'_>,
        counted: Counted,
        clock: &Clock,
    ) -> Option<(ShardGuard<'_>, u64, Fingerprint)> {
        let places = Place::all(subject).into_iter().flatten();
        let place = places.into_iter().find(|place| place.counted == counted)?;
        let (shard, now) = self.table(place).lock_now(place.name, clock);
        Some((shard, now, place.name))
    }

    /// Drops all counts that have died.
    pub(super) fn remove_dead(&self, clock: &Clock) {
        for shard in self.networks.shards().chain(self.shared.shards()) {
            let (mut shard, now) = shard.lock_now(clock);
            let held = shard.len();
            shard.remove_dead(now);
            self.follow(held, shard.len());
        }
    }

    /// Whether a full store is to say so now.
    pub(super) fn warns(&self, now: u64) -> bool {
        let next = now.saturating_add(WARNING_INTERVAL);
        let due = |at| (at <= now).then_some(next);
        let updated = self
            .warns_at
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, due);
        updated.is_ok()
    }

    fn table(&self, place: Place) -> &Table {
        match place.counted {
            Counted::Network => &self.networks,
            Counted::Own | Counted::Shared => &self.shared,
        }
    }

    /// Follows how many counts a locked shard holds.
    fn follow(&self, before: usize, now: usize) {
        // Both are less than can be counted, and what is taken away was added.
        if now >= before {
            self.len.fetch_add(now - before, Ordering::AcqRel);
        } else {
            self.len.fetch_sub(before - now, Ordering::AcqRel);
        }
    }
}

/// A count to which a key belongs while the store is full.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    pub(super) name: Fingerprint,
    counted: Counted,
}

impl Place {
    /// The shared count first: a key that came there while there was no room for its network stays.
    fn all(subject: Subject<'_>) -> [Option<Self>; 2] {
        let limiter = subject.limiter.fingerprint();
        let network = subject.key.network();
        let shared = Self {
            name: shared_name(subject.key, network).within(limiter),
            counted: Counted::Shared,
        };
        let of_network = network.map(|network| Self {
            name: network.within(limiter),
            counted: Counted::Network,
        });
        [Some(shared), of_network]
    }
}

/// The same for all keys of a network.
fn shared_name(key: &Key, network: Option<Fingerprint>) -> Fingerprint {
    let hash = network.unwrap_or_else(|| key.fingerprint()).hash();
    let kind = if network.is_some() { SHARED_COUNTS } else { 0 };
    Fingerprint::of_number(kind + hash % SHARED_COUNTS)
}

#[cfg(test)]
mod tests;
