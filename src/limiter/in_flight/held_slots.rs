//! Slots that this process holds: a value, which gives them back when it is dropped.

use std::sync::Arc;

use smallvec::SmallVec;

use crate::error::Error;
use crate::key::Fingerprint;
use crate::limiter::line::LineKey;
use crate::store::StoreFuture;

/// The slots of one check.
#[derive(Default)]
pub(super) struct Slots {
    pub(super) since: u64,
    pub(super) of_keys: SmallVec<[SlotsOfKey; 1]>,
}

/// The slots of one key.
pub(super) struct SlotsOfKey {
    pub(super) id: Fingerprint,
    pub(super) line: LineKey,
    pub(super) slots: u32,
    /// They are lost if the key has a later one.
    pub(super) epoch: u64,
}

/// The table that has counted the slots.
pub(super) trait Holder: Send + Sync {
    /// Gives slots back. Returns what waits until the store knows, if it `is_awaited`.
    fn give_back(self: Arc<Self>, slots: &Slots, is_awaited: bool) -> Vec<StoreFuture<()>>;

    /// Returns the time until slots are lost, in microseconds, unless their lease is renewed until then: 0 if they are lost.
    /// `None` if they have no lease that ends.
    fn lost_in(&self, slots: &Slots) -> Option<u64>;
}

/// The slots of one check, held until this is dropped. That takes the lock of the table.
pub(crate) struct HeldSlots {
    holder: Arc<dyn Holder>,
    slots: Slots,
}

impl HeldSlots {
    pub(super) fn new(holder: Arc<dyn Holder>, slots: Slots) -> Self {
        Self { holder, slots }
    }

    pub(super) fn lost_in(&self) -> Option<u64> {
        self.holder.lost_in(&self.slots)
    }

    /// Gives the slots back, and waits until the store knows.
    pub(super) async fn release(mut self) -> Result<(), Error> {
        for told in self.give_back(true) {
            told.await?;
        }
        Ok(())
    }

    fn give_back(&mut self, is_awaited: bool) -> Vec<StoreFuture<()>> {
        let slots = std::mem::take(&mut self.slots);
        let holder = Arc::clone(&self.holder);
        holder.give_back(&slots, is_awaited)
    }
}

impl Drop for HeldSlots {
    fn drop(&mut self) {
        if !self.slots.of_keys.is_empty() {
            self.give_back(false);
        }
    }
}
