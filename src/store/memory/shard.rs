//! A bounded map of keys, and who must go when it is full.

use std::hash::{BuildHasherDefault, Hash, Hasher};

use indexmap::{Equivalent, IndexMap};

use super::counters::{Counters, DROPPABLE_PART};
use super::{Answer, Check, Refund};
use crate::Quotas;

/// How many keys each check looks at, to drop those that are dead: enough that a shard is swept
/// faster than it can be filled.
const SWEPT_PER_CHECK: usize = 2;

/// How many keys are looked at for a place when the shard is full.
const SEEN_FOR_ROOM: usize = 64;

/// Some of the keys of a store.
#[derive(Debug)]
pub(super) struct Shard {
    entries: IndexMap<StoredName, Counters, BuildHasherDefault<Prehashed>>,
    max_keys: usize,
    /// The next key to look at: it goes round like the hand of a clock.
    hand: usize,
}

/// Whose counts are looked for, hashed once for the shard and the map in it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Name<'a> {
    pub(super) limiter: &'a str,
    pub(super) key: &'a str,
    pub(super) hash: u64,
}

#[derive(Debug)]
struct StoredName {
    limiter: Box<str>,
    key: Box<str>,
    hash: u64,
}

impl Shard {
    pub(super) fn new(max_keys: usize) -> Self {
        Self {
            entries: IndexMap::default(),
            max_keys,
            hand: 0,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Decides over a check; `None` when it would need a place and there is none.
    pub(super) fn check(&mut self, name: Name<'_>, check: Check<'_>, now: u64) -> Option<Answer> {
        self.sweep(now);
        if let Some(counters) = self.entries.get_mut(&name) {
            return Some(counters.check(check, now));
        }
        let mut counters = Counters::default();
        let answer = counters.check(check, now);
        // A check that was not charged leaves nothing to keep.
        if !counters.is_empty() {
            if self.entries.len() >= self.max_keys && !self.make_room(now) {
                return None;
            }
            self.entries.insert(name.into(), counters);
        }
        Some(answer)
    }

    pub(super) fn reset(&mut self, name: Name<'_>, quotas: &Quotas) {
        if let Some(counters) = self.entries.get_mut(&name) {
            counters.reset(quotas);
            if counters.is_empty() {
                self.entries.swap_remove(&name);
            }
        }
    }

    pub(super) fn refund(&mut self, name: Name<'_>, refund: Refund<'_>, now: u64) {
        if let Some(counters) = self.entries.get_mut(&name) {
            counters.refund(refund, now);
        }
    }

    fn sweep(&mut self, now: u64) {
        for _ in 0..SWEPT_PER_CHECK {
            if !self.sweep_one(now) {
                return;
            }
        }
    }

    /// Forgets all counts that have died.
    pub(super) fn remove_dead(&mut self, now: u64) {
        self.hand = 0;
        while self.sweep_one(now) {}
    }

    /// Looks at the next key, and drops it if it is dead. False at the end of the round.
    fn sweep_one(&mut self, now: u64) -> bool {
        let Some((_, counters)) = self.entries.get_index_mut(self.hand) else {
            self.hand = 0;
            return false;
        };
        counters.remove_dead(now);
        if counters.is_empty() {
            // The last key takes this place, and is looked at next.
            self.entries.swap_remove_index(self.hand);
        } else {
            self.hand += 1;
        }
        true
    }

    /// Drops one key that is idle, else one that has used little.
    fn make_room(&mut self, now: u64) -> bool {
        let mut candidate: Option<(u32, usize)> = None;
        for _ in 0..SEEN_FOR_ROOM.min(self.entries.len()) {
            if self.hand >= self.entries.len() {
                self.hand = 0;
            }
            let Some((_, counters)) = self.entries.get_index(self.hand) else {
                break;
            };
            let seen = (counters.part_used(now), self.hand);
            candidate = Some(candidate.map_or(seen, |best| best.min(seen)));
            self.hand += 1;
            if seen.0 == 0 {
                break;
            }
        }
        match candidate {
            Some((part_used, index)) if part_used <= DROPPABLE_PART => {
                self.entries.swap_remove_index(index);
                true
            }
            _ => false,
        }
    }
}

impl From<Name<'_>> for StoredName {
    fn from(name: Name<'_>) -> Self {
        Self {
            limiter: name.limiter.into(),
            key: name.key.into(),
            hash: name.hash,
        }
    }
}

impl Equivalent<StoredName> for Name<'_> {
    fn equivalent(&self, key: &StoredName) -> bool {
        self.hash == key.hash && *self.key == *key.key && *self.limiter == *key.limiter
    }
}

impl PartialEq for StoredName {
    fn eq(&self, other: &Self) -> bool {
        self.key == other.key && self.limiter == other.limiter
    }
}

impl Eq for StoredName {}

impl Hash for Name<'_> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.hash);
    }
}

impl Hash for StoredName {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.hash);
    }
}

/// Takes the hash that a name already has.
#[derive(Debug, Default)]
struct Prehashed(u64);

impl Hasher for Prehashed {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write_u64(&mut self, i: u64) {
        self.0 = i;
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = self.0.rotate_left(8) ^ u64::from(*byte);
        }
    }
}
