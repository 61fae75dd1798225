//! The state that all parts of a world share.

use std::sync::{Arc, Mutex, MutexGuard};

use super::budgets::StoredBudgets;
use super::holders::{HolderEntries, Holders};
use super::ledger::Ledger;
use super::log::Log;
use super::network::Network;
use super::record::Record;

/// The state that the clients, the connections and the steps of a world share.
pub(crate) struct World {
    /// In milliseconds.
    pub(crate) now: u64,
    /// From when on there are no faults.
    pub(crate) faults_end: u64,
    /// Whether the clients end.
    pub(crate) is_over: bool,
    /// The lives of each process: it begins another one when it starts again.
    pub(crate) lives: Vec<u64>,
    /// When each process made its last step but one.
    pub(crate) seen_at: Vec<u64>,
    pub(crate) log: Log,
    pub(crate) network: Network,
    pub(crate) record: Record,
    pub(crate) holders: Holders,
    pub(crate) ledger: Ledger,
    /// Until when calls may fail, so that use is charged late.
    pub(crate) troubled_until: u64,
}

impl World {
    /// Judges what a command has charged to the keys of budgets.
    pub(crate) fn judge_budgets(
        &mut self,
        before: &StoredBudgets,
        after: &StoredBudgets,
        server_time: i64,
    ) {
        for (key, after) in after {
            let Some(before) = before.get(key) else {
                continue;
            };
            let is_plain = key.contains(",plain");
            let violation =
                self.ledger
                    .take_in((key, is_plain), before, after, &self.holders, server_time);
            if let Some(text) = violation {
                self.log.violated(format_args!("{text}"));
            }
        }
    }

    /// Judges what the message of a call has changed of the slots and units that holders have.
    pub(crate) fn judge_holders(
        &mut self,
        call: u64,
        before: &HolderEntries,
        after: HolderEntries,
        server_time: i64,
    ) {
        let process = self.network.sender(call);
        let sender = process.map(|process| (process, self.lives[process]));
        let Self { holders, lives, .. } = self;
        let violation = match sender {
            Some(sender) => holders.take_in(sender, lives, self.now, before, &after),
            None => holders.take_in_late(before, &after, server_time),
        };
        holders.remember_taken(before, &after, self.now);
        holders.remember(after);
        if let Some(text) = violation {
            self.log.violated(format_args!("{text}"));
        }
    }

    /// Ends all blocks of the operator, of which an earlier one may last longer than a later one.
    pub(crate) fn end_blocks(&mut self) {
        let now = self.now;
        for block in &mut self.record.blocks {
            block.to = block.to.min(now);
        }
    }
}

/// A handle of the world. All handles are on one thread; the lock is there because the types of the store ask for it.
#[derive(Clone)]
pub(crate) struct SharedWorld(Arc<Mutex<World>>);

impl SharedWorld {
    pub(crate) fn new(world: World) -> Self {
        Self(Arc::new(Mutex::new(world)))
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, World> {
        self.0.lock().expect("a panic ends the world")
    }
}
