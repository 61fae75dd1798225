//! The refusals and the automatic blocks of keys, in bounded memory.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use quick_cache::UnitWeighter;
use quick_cache::unsync::{Cache, DefaultLifecycle};

use crate::algorithm::RefusalRecord;
use crate::clock::Clock;
use crate::key::{Fingerprint, HashFingerprint};
use crate::store::block_list::BlockList;
use crate::store::requests::{Block, RefusalOutcome, Refusals};

/// The most keys of a limiter with refusals, and the most with blocks. A key takes about 150 bytes.
const MAX_KEYS: usize = 10_000;

/// Counts the refusals of keys, and adds automatic blocks to a block list.
pub(super) struct RefusalRecords {
    clock: Clock,
    block_list: BlockList,
    /// The records of each limiter, so that a flood at one limiter takes no room from the others.
    limiters: Mutex<HashMap<Fingerprint, Records, HashFingerprint>>,
}

/// The records of the keys of one limiter.
struct Records {
    /// Records without a block. When there are too many, the least used are forgotten.
    refused: Cache<
        Fingerprint,
        RefusalRecord,
        UnitWeighter,
        HashFingerprint,
        DefaultLifecycle<Fingerprint, RefusalRecord>,
    >,
    /// Records with blocks, and the time at which each is not needed any more. None is forgotten before, because a
    /// client could end the growth of its blocks with a flood of invented keys.
    blocked: HashMap<Fingerprint, (RefusalRecord, u64), HashFingerprint>,
}

impl RefusalRecords {
    /// Creates empty records for a block list on this clock.
    pub(super) fn new(clock: Clock, block_list: BlockList) -> Self {
        Self {
            clock,
            block_list,
            limiters: Mutex::default(),
        }
    }

    /// Counts refusals, and blocks their key if a block is due.
    pub(super) fn count(&self, refusals: Refusals<'_>) -> RefusalOutcome {
        let key = refusals.key.fingerprint();
        let mut limiters = self.lock();
        let records = limiters.entry(refusals.limiter.fingerprint());
        let records = records.or_default();
        let now = self.clock.now();
        let mut record = records.get(key);
        if let Some(left) = record.blocked_for(now) {
            let blocks = record.blocks();
            return RefusalOutcome::StillBlocked { left, blocks };
        }
        if refusals.count == 0 {
            return RefusalOutcome::Counted;
        }
        let due = record.count(refusals.rule, refusals.count, refusals.age, now);
        let outcome = match due {
            None => RefusalOutcome::Counted,
            Some(_) if !records.has_room(key, now) => RefusalOutcome::NoRoom,
            Some(duration) => {
                let block = Block::new(refusals.limiter, refusals.key, duration);
                match self.block_list.put_automatic(block) {
                    Ok(true) => {
                        record.start_block(duration, now);
                        let blocks = record.blocks();
                        RefusalOutcome::Blocked { duration, blocks }
                    }
                    // An operator has blocked the key.
                    Ok(false) => RefusalOutcome::Counted,
                    Err(_) => RefusalOutcome::NoRoom,
                }
            }
        };
        let expires_at = record.expires_at(refusals.rule);
        records.insert(key, record, expires_at);
        outcome
    }

    /// Forgets the refusals and the blocks of a key about which an operator has decided.
    pub(super) fn forget(&self, block: Block<'_>) {
        if let Some(records) = self.lock().get_mut(&block.limiter.fingerprint()) {
            records.remove(block.key.fingerprint());
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Fingerprint, Records, HashFingerprint>> {
        // Poisoning is ignored: a record is replaced as a whole.
        self.limiters.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Records {
    fn get(&self, key: Fingerprint) -> RefusalRecord {
        let blocked = self.blocked.get(&key).map(|(record, _)| record);
        let record = blocked.or_else(|| self.refused.get(&key));
        record.cloned().unwrap_or_default()
    }

    /// Returns whether the key may be blocked.
    fn has_room(&mut self, key: Fingerprint, now: u64) -> bool {
        if self.blocked.len() >= MAX_KEYS && !self.blocked.contains_key(&key) {
            self.blocked.retain(|_, (_, expires_at)| *expires_at > now);
        }
        self.blocked.len() < MAX_KEYS || self.blocked.contains_key(&key)
    }

    fn insert(&mut self, key: Fingerprint, record: RefusalRecord, expires_at: u64) {
        self.remove(key);
        if record.blocks() > 0 {
            self.blocked.insert(key, (record, expires_at));
        } else {
            self.refused.insert(key, record);
        }
    }

    fn remove(&mut self, key: Fingerprint) {
        self.blocked.remove(&key);
        self.refused.remove(&key);
    }
}

impl Default for Records {
    fn default() -> Self {
        Self {
            // Grows when refusals are counted.
            refused: Cache::with(
                0,
                MAX_KEYS as u64,
                UnitWeighter,
                HashFingerprint::default(),
                DefaultLifecycle::default(),
            ),
            blocked: HashMap::default(),
        }
    }
}
