//! Slots or units that this process holds: a value, which gives them back when it is dropped.

use std::mem;

use super::held_key::HeldKey;
use super::held_of_key::{HeldOfKey, Rest};
use super::table::{HeldSlots, State};
use crate::error::Error;
use crate::limiter::line::LineKey;
use crate::store::StoreFuture;

impl HeldSlots {
    /// Returns the time until slots are lost, in microseconds, unless their lease is renewed until then: 0 if they are lost.
    /// `None` if they have no lease that ends.
    pub(super) fn lost_in(&self) -> Option<u64> {
        self.table.with(|state, now| {
            let ends = self.of_keys.iter().filter_map(|of_key| {
                let key = state.key(of_key.want.slots_of?)?;
                key.settle_end(now);
                if key.epoch != of_key.epoch {
                    return Some(0);
                }
                key.valid_until.map(|until| until.saturating_sub(now))
            });
            ends.min()
        })
    }

    /// Charges units that were never said to be used when this is dropped. Otherwise, they return.
    pub(super) fn charge_rest(&mut self) {
        for of_key in &mut self.of_keys {
            of_key.rest = Rest::IsCharged;
        }
    }

    /// Uses units of each key that `is_meant`. The rest returns when this is dropped.
    pub(super) fn add(&mut self, units: u32, is_meant: impl Fn(LineKey) -> bool) {
        let Self { table, of_keys, .. } = self;
        table.change(|state, now| {
            for of_key in of_keys.iter_mut().filter(|of_key| is_meant(of_key.line())) {
                if let Some(key) = state.unit_key(of_key) {
                    of_key.rest = Rest::Returns;
                    key.spend(of_key, units, now);
                }
            }
        });
    }

    /// Uses units of each key that `is_meant`, so that so many are used of it, and gives the rest back.
    pub(super) fn settle(&mut self, used: u32, is_meant: impl Fn(LineKey) -> bool) {
        let Self {
            table,
            since,
            of_keys,
        } = self;
        table.change(|state, now| {
            let held_for = now.saturating_sub(*since);
            of_keys.retain(|of_key| {
                let is_meant = is_meant(of_key.line());
                let Some(key) = state.unit_key(of_key).filter(|_| is_meant) else {
                    return true;
                };
                of_key.rest = Rest::Returns;
                key.spend(of_key, used.saturating_sub(of_key.used), now);
                state.give_back(*of_key, held_for, now);
                false
            });
        });
        table.given_back.notify_waiters();
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
            let acknowledged = of_keys.into_iter().filter_map(|of_key| {
                let key = state.give_back(of_key, held_for, now)?;
                is_awaited.then(|| key.tell(now))
            });
            acknowledged.collect()
        });
        self.table.given_back.notify_waiters();
        acknowledged
    }
}

impl State {
    /// `None` for slots.
    fn unit_key(&mut self, of_key: &HeldOfKey) -> Option<&mut HeldKey> {
        let id = of_key.want.slots_of?;
        self.key(id).filter(|key| key.holds_units())
    }
}

impl Drop for HeldSlots {
    fn drop(&mut self) {
        if !self.of_keys.is_empty() {
            self.give_back(false);
        }
    }
}
