//! A map with little memory overhead: a list of entries, and a hash table of their indices.
//!
//! From an eighth to more than half of the slots of a hash table are empty. An empty slot takes four bytes
//! here, not the size of an entry. The list can also be walked by index, to drop expired keys.
#![cfg_attr(
    not(test),
    expect(
        clippy::indexing_slicing,
        reason = "the hash table has the indexes of the list"
    )
)]

use hashbrown::HashTable;

use crate::key::Fingerprint;
use crate::store::counters::Counters;

/// The counters of each key, by the fingerprint of its name.
#[derive(Debug, Default)]
pub(super) struct Entries {
    /// Indices into the list, hashed by one half of the fingerprint. The other half selects the shard.
    table: HashTable<u32>,
    list: Vec<Entry>,
}

/// Aligned so that its 96 bytes lie on at most two cache lines.
#[derive(Debug)]
#[repr(align(32))]
struct Entry {
    name: Fingerprint,
    counters: Counters,
}

impl Entries {
    pub(super) fn len(&self) -> usize {
        self.list.len()
    }

    #[inline]
    pub(super) fn get_mut(&mut self, name: Fingerprint) -> Option<&mut Counters> {
        let index = self.find(name)?;
        self.at_mut(index)
    }

    #[inline]
    fn find(&self, name: Fingerprint) -> Option<usize> {
        let found = self
            .table
            .find(name.hash(), |index| self.list[*index as usize].name == name)?;
        Some(*found as usize)
    }

    pub(super) fn at(&self, index: usize) -> Option<&Counters> {
        self.list.get(index).map(|entry| &entry.counters)
    }

    pub(super) fn at_mut(&mut self, index: usize) -> Option<&mut Counters> {
        self.list.get_mut(index).map(|entry| &mut entry.counters)
    }

    /// Adds a name that is not in the map. Returns false if the index would exceed 32 bits.
    pub(super) fn insert(&mut self, name: Fingerprint, counters: Counters) -> bool {
        let Ok(index) = u32::try_from(self.list.len()) else {
            return false;
        };
        if self.list.len() == self.list.capacity() {
            self.list.reserve_exact((self.list.len() / 8).max(8));
        }
        self.list.push(Entry { name, counters });
        let list = &self.list;
        self.table
            .insert_unique(name.hash(), index, |index| hash_at(list, *index));
        true
    }

    pub(super) fn remove(&mut self, name: Fingerprint) {
        if let Some(index) = self.find(name) {
            self.swap_remove(index);
        }
    }

    /// Removes the entry at an index, and moves the last entry there.
    pub(super) fn swap_remove(&mut self, index: usize) {
        let last = self.list.len() - 1;
        let removed_hash = self.list[index].name.hash();
        let last_hash = self.list[last].name.hash();
        if let Ok(found) = self
            .table
            .find_entry(removed_hash, |other| *other as usize == index)
        {
            let (free, _) = found.remove();
            if let Some(moved) = self
                .table
                .find_mut(last_hash, |other| *other as usize == last)
            {
                *moved = free;
            }
            self.list.swap_remove(index);
        }
    }
}

fn hash_at(list: &[Entry], index: u32) -> u64 {
    list[index as usize].name.hash()
}
