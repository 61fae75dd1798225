//! A bounded map of keys, and who must go when it is full.

use super::counters::Counters;
use super::entries::Entries;
use crate::decision::Answer;
use crate::key::Fingerprint;
use crate::quota::Quotas;
use crate::store::requests::{Check, Credit, Refund};

/// How many keys a check of a key that is not there looks at, to drop those that are dead: enough
/// that a shard is swept faster than it can be filled.
const SWEPT_PER_STRANGER: usize = 2;

/// One check in so many looks at a key, whether or not its own is there. A check of a key that is
/// there fills nothing, and what it would look at is in no cache.
const CHECKS_PER_SWEPT: u8 = 8;

/// How many keys are looked at for a place when the shard is full.
const SEEN_FOR_ROOM: usize = 64;

/// Some of the keys of a store.
#[derive(Debug)]
pub(super) struct Shard {
    entries: Entries,
    max_keys: usize,
    /// A key that has used at most this part of its limits may be dropped, in 1/1024.
    droppable: u16,
    /// The next key to look at: it goes round like the hand of a clock.
    hand: usize,
    /// The checks since a key was looked at.
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

    /// Looks at another key before one check in so many.
    #[inline]
    pub(super) fn sweep_now_and_then(&mut self, now: u64) {
        self.unswept += 1;
        if self.unswept >= CHECKS_PER_SWEPT {
            self.unswept = 0;
            self.sweep_one(now);
        }
    }

    /// The counts of a key that is there.
    #[inline]
    pub(super) fn known(&mut self, name: Fingerprint) -> Option<&mut Counters> {
        self.entries.get_mut(name)
    }

    /// The counts of a key that is there and has units that count.
    pub(super) fn live(&mut self, name: Fingerprint, now: u64) -> Option<&mut Counters> {
        self.known(name).filter(|counters| !counters.is_idle(now))
    }

    /// Decides over a check; false when it would need a place and there is none.
    pub(super) fn check(
        &mut self,
        name: Fingerprint,
        check: Check<'_>,
        now: u64,
        answer: &mut Answer,
    ) -> bool {
        match self.known(name) {
            Some(counters) => {
                counters.check(check, now, answer);
                true
            }
            None => self.check_stranger(name, check, now, answer),
        }
    }

    /// Decides over a check of a key that is not there; false when it would need a place and there
    /// is none.
    #[inline(never)]
    pub(super) fn check_stranger(
        &mut self,
        name: Fingerprint,
        check: Check<'_>,
        now: u64,
        answer: &mut Answer,
    ) -> bool {
        for _ in 0..SWEPT_PER_STRANGER {
            if !self.sweep_one(now) {
                break;
            }
        }
        let mut counters = Counters::default();
        counters.check(check, now, answer);
        // A check that was not charged leaves nothing to keep.
        if counters.is_empty() {
            return true;
        }
        let has_room = self.entries.len() < self.max_keys || self.make_room(now);
        has_room && self.entries.insert(name, counters)
    }

    pub(super) fn reset(&mut self, name: Fingerprint, quotas: &Quotas) {
        if let Some(counters) = self.entries.get_mut(name) {
            counters.reset(quotas);
            if counters.is_empty() {
                self.entries.remove(name);
            }
        }
    }

    pub(super) fn refund(&mut self, name: Fingerprint, refund: Refund<'_>, now: u64) {
        if let Some(counters) = self.entries.get_mut(name) {
            counters.refund(refund, now);
        }
    }

    pub(super) fn credit(&mut self, name: Fingerprint, give: Credit<'_>, now: u64) {
        if let Some(counters) = self.entries.get_mut(name) {
            counters.credit(give, now);
        }
    }

    /// Forgets all counts that have died.
    pub(super) fn remove_dead(&mut self, now: u64) {
        self.hand = 0;
        while self.sweep_one(now) {}
    }

    /// Looks at the next key, and drops it if it is dead. False at the end of the round.
    #[inline(never)]
    fn sweep_one(&mut self, now: u64) -> bool {
        let Some(counters) = self.entries.at_mut(self.hand) else {
            self.hand = 0;
            return false;
        };
        counters.remove_dead(now);
        if counters.is_empty() {
            // The last key takes this place, and is looked at next.
            self.entries.swap_remove(self.hand);
        } else {
            self.hand += 1;
        }
        true
    }

    /// Drops one key that is idle, else one that has used little.
    fn make_room(&mut self, now: u64) -> bool {
        let mut candidate: Option<(u16, usize)> = None;
        for _ in 0..SEEN_FOR_ROOM.min(self.entries.len()) {
            if self.hand >= self.entries.len() {
                self.hand = 0;
            }
            let Some(counters) = self.entries.at(self.hand) else {
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
            Some((part_used, index)) if part_used <= self.droppable => {
                self.entries.swap_remove(index);
                true
            }
            _ => false,
        }
    }
}
