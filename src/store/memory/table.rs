//! A map from names to counters, divided into shards with one lock each.
#![cfg_attr(
    not(test),
    expect(
        clippy::indexing_slicing,
        reason = "the index of a shard is below their number"
    )
)]

use std::collections::{BTreeMap, BTreeSet};

use super::locked::{Guard, Locked};
use super::shard::Shard;
use crate::clock::Clock;
use crate::key::Fingerprint;

/// The fewest keys of a shard. Smaller shards would differ too much in the number of their keys, and some
/// would be full long before others.
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
    /// Creates a table for at most `max_keys` names. A full shard may evict a name that has used at most
    /// `droppable` of its limits, in 1/1024.
    pub(super) fn new(max_keys: usize, droppable: u16) -> Self {
        let shards = (max_keys / MIN_KEYS_PER_SHARD).clamp(1, MAX_SHARDS);
        let max_keys = max_keys / shards;
        Self {
            first: Locked::new(Shard::new(max_keys, droppable)),
            others: (1..shards)
                .map(|_| Locked::new(Shard::new(max_keys, droppable)))
                .collect(),
        }
    }

    pub(super) fn shards(&self) -> impl Iterator<Item = &Locked<Shard>> {
        std::iter::once(&self.first).chain(&self.others)
    }

    pub(super) fn len(&self) -> usize {
        self.shards().map(|shard| shard.lock().len()).sum()
    }

    #[inline]
    pub(super) fn lock_now(&self, name: Fingerprint, clock: &Clock) -> (ShardGuard<'_>, u64) {
        self.at(self.index(name)).lock_now(clock)
    }

    /// Locks the shards of several names. Returns them with one time for all.
    ///
    /// Shards are locked in ascending order, so that two calls cannot deadlock.
    pub(super) fn lock_all(
        &self,
        names: impl Iterator<Item = Fingerprint>,
        clock: &Clock,
    ) -> (LockedShards<'_>, u64) {
        let indices: BTreeSet<_> = names.map(|name| self.index(name)).collect();
        let mut now = 0;
        let mut shards = BTreeMap::new();
        for index in indices {
            let (shard, time) = self.at(index).lock_now(clock);
            now = now.max(time);
            shards.insert(index, shard);
        }
        for shard in shards.values_mut() {
            shard.advance_to(now);
        }
        (
            LockedShards {
                table: self,
                shards,
            },
            now,
        )
    }

    #[inline]
    fn index(&self, name: Fingerprint) -> usize {
        // The map in the shard uses the other half of the fingerprint.
        let [_, half] = name.halves();
        let shards = u128::try_from(self.others.len() + 1).unwrap_or(1);
        usize::try_from((u128::from(half) * shards) >> 64).unwrap_or(0)
    }

    #[inline]
    fn at(&self, index: usize) -> &Locked<Shard> {
        match index.checked_sub(1) {
            Some(index) => &self.others[index],
            None => &self.first,
        }
    }
}

/// Several shards of a table, all locked.
pub(super) struct LockedShards<'a> {
    table: &'a Table,
    shards: BTreeMap<usize, ShardGuard<'a>>,
}

impl LockedShards<'_> {
    pub(super) fn get_mut(&mut self, name: Fingerprint) -> Option<&mut Shard> {
        let shard = self.shards.get_mut(&self.table.index(name))?;
        Some(shard)
    }
}
