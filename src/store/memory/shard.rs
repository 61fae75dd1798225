//! A bounded map of keys, with eviction when it is full.

use super::entries::Entries;
use crate::key::Fingerprint;
use crate::store::counters::Counters;
use crate::store::requests::{Adjust, Change};

/// The number of keys that a check of a new key sweeps. With two, a shard is swept faster than it fills.
const SWEPT_PER_NEW_KEY: usize = 2;

/// The number of checks for each one that sweeps a key, whether or not its own key is new. A check of a known
/// key adds nothing, and the swept key is usually not in a processor cache.
const CHECKS_PER_SWEEP: u8 = 8;

/// The most keys that a full shard compares to evict one.
const MAX_EVICTION_CANDIDATES: usize = 64;

/// A part of the keys of a store.
#[derive(Debug)]
pub(super) struct Shard {
    entries: Entries,
    max_keys: usize,
    /// The used part of its limits up to which a key may be evicted, in 1/1024.
    droppable: u16,
    /// The index of the next key to sweep, as in the clock algorithm of page replacement.
    hand: usize,
    /// The checks since the last sweep.
    unswept: u8,
}

impl Shard {
    pub(super) fn new(max_keys: usize, droppable: u16) -> Self {
        Self {
            entries: Entries::default(),
            max_keys,
            droppable,
            hand: 0,
            unswept: 0,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Sweeps a key, on one of [`CHECKS_PER_SWEEP`] calls.
    #[inline]
    pub(super) fn sweep_occasionally(&mut self, now: u64) {
        self.unswept += 1;
        if self.unswept >= CHECKS_PER_SWEEP {
            self.unswept = 0;
            self.sweep_one(now);
        }
    }

    #[inline]
    pub(super) fn get_mut(&mut self, name: Fingerprint) -> Option<&mut Counters> {
        self.entries.get_mut(name)
    }

    /// Changes the counters of a key, which is added if it is new. `None` if there is no room for it.
    pub(super) fn update<T>(
        &mut self,
        name: Fingerprint,
        now: u64,
        change: impl FnOnce(&mut Counters) -> T,
    ) -> Option<T> {
        match self.get_mut(name) {
            Some(counters) => Some(change(counters)),
            None => self.add(name, now, change),
        }
    }

    /// Adds a new key, unless the change leaves its counters empty. `None` if there is no room for it.
    #[inline(never)]
    pub(super) fn add<T>(
        &mut self,
        name: Fingerprint,
        now: u64,
        change: impl FnOnce(&mut Counters) -> T,
    ) -> Option<T> {
        for _ in 0..SWEPT_PER_NEW_KEY {
            if !self.sweep_one(now) {
                break;
            }
        }
        let mut counters = Counters::default();
        let changed = change(&mut counters);
        let is_kept = counters.is_empty() || {
            let has_room = self.entries.len() < self.max_keys || self.evict_one(now);
            has_room && self.entries.insert(name, counters)
        };
        is_kept.then_some(changed)
    }

    pub(super) fn adjust(&mut self, name: Fingerprint, adjust: Adjust<'_>, now: u64) {
        if let Some(counters) = self.entries.get_mut(name) {
            counters.adjust(adjust, now);
            // Counters that other changes leave empty are swept, where the number of keys is recorded.
            if matches!(adjust.change, Change::Reset) && counters.is_empty() {
                self.entries.remove(name);
            }
        }
    }

    pub(super) fn remove_dead(&mut self, now: u64) {
        self.hand = 0;
        while self.sweep_one(now) {}
    }

    /// Drops the counters of the next key that have expired. Returns false at the end of the list.
    #[inline(never)]
    fn sweep_one(&mut self, now: u64) -> bool {
        let Some(counters) = self.entries.at_mut(self.hand) else {
            self.hand = 0;
            return false;
        };
        counters.remove_dead(now);
        if counters.is_empty() {
            // The last key moves to this index and is swept next.
            self.entries.swap_remove(self.hand);
        } else {
            self.hand += 1;
        }
        true
    }

    /// Evicts an idle key, or else the key that has used the smallest part of its limits, if that part is small
    /// enough. Returns whether it evicted one.
    fn evict_one(&mut self, now: u64) -> bool {
        let mut candidate: Option<(u16, usize)> = None;
        for _ in 0..MAX_EVICTION_CANDIDATES.min(self.entries.len()) {
            if self.hand >= self.entries.len() {
                self.hand = 0;
            }
            let Some(counters) = self.entries.at(self.hand) else {
                break;
            };
            let next = (counters.used_part(now), self.hand);
            candidate = Some(candidate.map_or(next, |best| best.min(next)));
            self.hand += 1;
            if next.0 == 0 {
                break;
            }
        }
        match candidate {
            Some((used_part, index)) if used_part <= self.droppable => {
                self.entries.swap_remove(index);
                true
            }
            _ => false,
        }
    }
}
