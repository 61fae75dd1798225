//! The refusals and the automatic blocks of keys, in bounded memory.

use std::sync::{Mutex, MutexGuard, PoisonError};

use quick_cache::UnitWeighter;
use quick_cache::unsync::{Cache, DefaultLifecycle};

use crate::algorithm::RefusalRecord;
use crate::clock::Clock;
use crate::key::{Fingerprint, HashFingerprint};
use crate::store::block_list::BlockList;
use crate::store::requests::{Block, RefusalOutcome, Refusals};

/// The most keys with a record. When there are more, the least used are forgotten. A key takes about 150 bytes.
const MAX_KEYS: usize = 10_000;

/// The records by the fingerprint of limiter and key.
type Records = Cache<
    Fingerprint,
    RefusalRecord,
    UnitWeighter,
    HashFingerprint,
    DefaultLifecycle<Fingerprint, RefusalRecord>,
>;

/// Counts the refusals of keys, and adds automatic blocks to a block list.
pub(super) struct RefusalRecords {
    clock: Clock,
    block_list: BlockList,
    records: Mutex<Records>,
}

impl RefusalRecords {
    /// Creates empty records for a block list on this clock.
    pub(super) fn new(clock: Clock, block_list: BlockList) -> Self {
        let records = Cache::with(
            // Grows when refusals are counted: most stores count none.
            0,
            MAX_KEYS as u64,
            UnitWeighter,
            HashFingerprint::default(),
            DefaultLifecycle::default(),
        );
        Self {
            clock,
            block_list,
            records: Mutex::new(records),
        }
    }

    /// Counts refusals, and blocks their key if a block is due.
    pub(super) fn count(&self, refusals: Refusals<'_>) -> RefusalOutcome {
        let name = name(
            refusals.limiter().fingerprint(),
            refusals.key().fingerprint(),
        );
        let mut records = self.lock();
        let now = self.clock.now();
        let mut record = records.get(&name).cloned().unwrap_or_default();
        if let Some(left) = record.blocked_for(now) {
            let blocks = record.blocks();
            return RefusalOutcome::StillBlocked { left, blocks };
        }
        if refusals.count() == 0 {
            return RefusalOutcome::Counted;
        }
        let due = record.count(refusals.rule(), refusals.count(), refusals.age(), now);
        let outcome = due.map_or(RefusalOutcome::Counted, |duration| {
            let block = Block::new(refusals.limiter(), refusals.key(), duration);
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
        });
        records.insert(name, record);
        outcome
    }

    /// Forgets the refusals and the blocks of a key about which an operator has decided.
    pub(super) fn forget(&self, block: Block<'_>) {
        let name = name(block.limiter().fingerprint(), block.key().fingerprint());
        self.lock().remove(&name);
    }

    fn lock(&self) -> MutexGuard<'_, Records> {
        // Poisoning is ignored: a record is replaced as a whole.
        self.records.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn name(limiter: Fingerprint, key: Fingerprint) -> Fingerprint {
    key.within(limiter)
}
