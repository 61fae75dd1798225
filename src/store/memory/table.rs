//! Counters by name, divided into shards with a lock each.

use super::locked::{Guard, Locked};
use super::shard::Shard;
use crate::clock::Clock;
use crate::key::Fingerprint;

/// Smaller shards would fill up long before their neighbours.
const MIN_KEYS_PER_SHARD: usize = 1_024;

const MAX_SHARDS: usize = 64;

/// A locked shard.
pub(super) type ShardGuard<'a> = Guard<'a, Shard>;

/// A bounded map from names to counters, in shards.
#[derive(Debug)]
pub(crate) struct Table {
    first: Locked<Shard>,
    others: Box<[Locked<Shard>]>,
}

impl Table {
    /// Creates a table for at most `max_keys` names. A full shard evicts a name that has used at most
    /// `droppable` of its limits, in 1/1024.
    pub(super) fn new(max_keys: usize, droppable: u16) -> Self {
        let shards = (max_keys / MIN_KEYS_PER_SHARD).clamp(1, MAX_SHARDS);
        let shard = || Locked::new(Shard::new(max_keys / shards, droppable));
        Self {
            first: shard(),
            others: std::iter::repeat_with(shard).take(shards - 1).collect(),
        }
    }

    pub(super) fn shards(&self) -> impl Iterator<Item = &Locked<Shard>> {
        std::iter::once(&self.first).chain(&self.others)
    }

    pub(super) fn len(&self) -> usize {
        self.shards().map(|shard| shard.lock().len()).sum()
    }

    /// Locks the shard of a name, and returns its time.
    #[inline]
    pub(super) fn lock_now(&self, name: Fingerprint, clock: &Clock) -> (ShardGuard<'_>, u64) {
        self.shard(name).lock_now(clock)
    }

    #[inline]
    fn shard(&self, name: Fingerprint) -> &Locked<Shard> {
        // The map in the shard uses the other half.
        let [_, half] = name.halves();
        let shards = u128::try_from(self.others.len() + 1).unwrap_or(1);
        let index = usize::try_from((u128::from(half) * shards) >> 64).unwrap_or(0);
        match index.checked_sub(1) {
            Some(index) => self.others.get(index).unwrap_or(&self.first),
            None => &self.first,
        }
    }
}
