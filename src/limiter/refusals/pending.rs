//! The refusals that this process has not sent to the store, in bounded memory.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::key::{Fingerprint, HashFingerprint, Key};

/// The most keys with unsent refusals. A key takes about 100 bytes.
const MAX_KEYS: usize = 10_000;

/// Refusals of one key.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct RefusedOften {
    pub(super) key: Key,
    pub(super) count: u32,
    /// The time of the first of them, in microseconds of the clock of this process.
    pub(super) first_at: u64,
    /// The time until which the quotas refuse the key.
    pub(super) refused_until: u64,
}

/// Unsent refusals by key. The refusals of further keys are dropped while the table is full.
#[derive(Debug)]
pub(super) struct PendingRefusals {
    /// Older refusals do not count any more, in microseconds.
    max_age: u64,
    refused: Mutex<Table>,
}

type Table = HashMap<Fingerprint, RefusedOften, HashFingerprint>;

impl PendingRefusals {
    pub(super) fn new(max_age: u64) -> Self {
        Self {
            max_age,
            refused: Mutex::default(),
        }
    }

    /// Adds a refusal.
    pub(super) fn add(&self, key: &Key, now: u64, refused_until: u64) {
        let mut refused = self.lock();
        let has_room = refused.len() < MAX_KEYS;
        match refused.entry(key.fingerprint()) {
            Entry::Occupied(mut known) => {
                let known = known.get_mut();
                if now.saturating_sub(known.first_at) >= self.max_age {
                    (known.count, known.first_at) = (0, now);
                }
                known.count = known.count.saturating_add(1);
                known.refused_until = known.refused_until.max(refused_until);
            }
            Entry::Vacant(vacant) if has_room => {
                vacant.insert(RefusedOften {
                    key: key.clone(),
                    count: 1,
                    first_at: now,
                    refused_until,
                });
            }
            Entry::Vacant(_) => {}
        }
    }

    /// Removes and returns all refusals that still count.
    pub(super) fn take(&self, now: u64) -> Vec<RefusedOften> {
        let refused = std::mem::take(&mut *self.lock());
        let refused = refused.into_values();
        let refused = refused.filter(|key| now.saturating_sub(key.first_at) < self.max_age);
        refused.collect()
    }

    /// Removes refusals that do not count any more. Returns a key that has some left.
    pub(super) fn first_key(&self, now: u64) -> Option<Key> {
        let mut refused = self.lock();
        refused.retain(|_, key| now.saturating_sub(key.first_at) < self.max_age);
        let first = refused.values().next()?;
        Some(first.key.clone())
    }

    pub(super) fn is_empty(&self) -> bool {
        self.lock().is_empty()
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        // Poisoning is ignored: the table is consistent between any two steps.
        self.refused.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_are_joined_by_key_until_they_are_taken() {
        let pending = PendingRefusals::new(1_000);
        for (key, at) in [("ada", 10), ("bob", 11), ("ada", 12)] {
            pending.add(&Key::from(key), at, 100);
        }
        let mut taken = pending.take(20);
        taken.sort_by_key(|refused| refused.first_at);
        let taken: Vec<_> = taken
            .iter()
            .map(|refused| (refused.key.as_str(), refused.count, refused.first_at))
            .collect();
        assert_eq!(taken, [("ada", 2, 10), ("bob", 1, 11)]);
        assert_eq!(pending.take(20), []);
    }

    #[test]
    fn refusals_that_do_not_count_any_more_are_dropped() {
        let pending = PendingRefusals::new(1_000);
        let ada = Key::from("ada");
        pending.add(&ada, 0, 100);
        assert_eq!(pending.first_key(999), Some(ada.clone()));
        // The earlier refusal is too old to be sent together with this one.
        pending.add(&ada, 1_000, 100);
        let [refused] = &pending.take(1_000)[..] else {
            panic!("one key");
        };
        assert_eq!((refused.count, refused.first_at), (1, 1_000));
        pending.add(&ada, 2_000, 100);
        assert_eq!(pending.first_key(3_000), None);
        pending.add(&ada, 3_000, 100);
        assert_eq!(pending.take(4_000), []);
    }

    #[test]
    fn a_full_table_counts_only_known_keys() {
        let pending = PendingRefusals::new(1_000);
        for number in 0..MAX_KEYS + 500 {
            pending.add(&Key::from(number.to_string()), 0, 100);
        }
        pending.add(&Key::from("7"), 0, 100);
        let taken = pending.take(0);
        assert_eq!(taken.len(), MAX_KEYS);
        assert!(taken.iter().any(|refused| refused.count == 2));
        pending.add(&Key::from("new"), 0, 100);
        assert_eq!(pending.take(0).len(), 1);
    }
}
