//! Slots that this process holds: a value, which gives them back when it is dropped.

use std::mem;

use super::table::HeldSlots;
use crate::error::Error;
use crate::store::StoreFuture;

impl HeldSlots {
    /// Returns the time until slots are lost, in microseconds, unless their lease is renewed until then: 0 if they are lost.
    /// `None` if they have no lease that ends.
    pub(super) fn lost_in(&self) -> Option<u64> {
        self.table.with(|state, now| {
            let ends = self.of_keys.iter().filter_map(|(want, epoch)| {
                let key = state.key(want.slots_of?)?;
                key.settle_end(now);
                if key.epoch != *epoch {
                    return Some(0);
                }
                key.valid_until.map(|until| until.saturating_sub(now))
            });
            ends.min()
        })
    }

    pub(super) async fn release(mut self) -> Result<(), Error> {
        for acknowledged in self.give_back(true) {
            acknowledged.await?;
        }
        Ok(())
    }

    /// Gives the slots back. Returns what waits until the store knows, if it `is_awaited`.
    fn give_back(&mut self, is_awaited: bool) -> Vec<StoreFuture<()>> {
        let of_keys = mem::take(&mut self.of_keys);
        let acknowledged = self.table.change(|state, now| {
            let held_for = now.saturating_sub(self.since);
            let acknowledged = of_keys.iter().filter_map(|(want, epoch)| {
                let key = state.give_back(want, *epoch, held_for, now)?;
                is_awaited.then(|| key.tell(now))
            });
            acknowledged.collect()
        });
        self.table.given_back.notify_waiters();
        acknowledged
    }
}

impl Drop for HeldSlots {
    fn drop(&mut self) {
        if !self.of_keys.is_empty() {
            self.give_back(false);
        }
    }
}
