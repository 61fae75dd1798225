//! A map that takes little more than what is in it: entries side by side, and a table of where they
//! are.
//!
//! A table of the entries themselves would be empty by an eighth to more than a half; this one has
//! four bytes a place. What is side by side can be walked by index, to drop what is idle.

use hashbrown::HashTable;

use super::counters::Counters;
use crate::key::Fingerprint;

/// The counts of each key, by the fingerprint of its name.
#[derive(Debug, Default)]
pub(super) struct Entries {
    /// By one half of a fingerprint; the other one chooses the shard.
    table: HashTable<u32>,
    list: Vec<Entry>,
}

/// Aligned so that each of its 96 bytes is on one of two cache lines, and never on a third.
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

    #[inline(always)]
    pub(super) fn get_mut(&mut self, name: Fingerprint) -> Option<&mut Counters> {
        let list = &self.list;
        let found = self
            .table
            .find(name.hash(), |index| is_at(list, *index, name))?;
        let entry = self.list.get_mut(*found as usize)?;
        Some(&mut entry.counters)
    }

    pub(super) fn at(&self, index: usize) -> Option<&Counters> {
        self.list.get(index).map(|entry| &entry.counters)
    }

    pub(super) fn at_mut(&mut self, index: usize) -> Option<&mut Counters> {
        self.list.get_mut(index).map(|entry| &mut entry.counters)
    }

    /// Adds a name that is not there yet. False when there are as many as can be numbered.
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
        let list = &self.list;
        let found = self
            .table
            .find(name.hash(), |index| is_at(list, *index, name));
        if let Some(index) = found.copied() {
            self.swap_remove(index as usize);
        }
    }

    /// Removes the entry at an index, which the last one takes.
    pub(super) fn swap_remove(&mut self, index: usize) {
        let (Some(removed), Some(last)) = (self.list.get(index), self.list.last()) else {
            return;
        };
        let list = &self.list;
        let is_last = |at: &u32| *at as usize + 1 == list.len();
        if let Ok(place) = self
            .table
            .find_entry(removed.name.hash(), |at| *at as usize == index)
        {
            let (at, _) = place.remove();
            if let Some(moved) = self.table.find_mut(last.name.hash(), is_last) {
                *moved = at;
            }
            self.list.swap_remove(index);
        }
    }
}

fn is_at(list: &[Entry], index: u32, name: Fingerprint) -> bool {
    list.get(index as usize)
        .is_some_and(|entry| entry.name == name)
}

fn hash_at(list: &[Entry], index: u32) -> u64 {
    list.get(index as usize)
        .map_or(0, |entry| entry.name.hash())
}
