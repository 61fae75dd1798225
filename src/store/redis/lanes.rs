//! The lanes of one runtime: one for all checks, or on a cluster one for each slot.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use super::lane::Lane;

#[derive(Debug, Default)]
pub(super) struct Lanes {
    of_server: Arc<Lane>,
    /// A cluster refuses a call whose keys are in several slots. There are 16 384 at most.
    of_slots: Mutex<HashMap<u16, Arc<Lane>>>,
}

impl Lanes {
    pub(super) fn of_server(&self) -> &Arc<Lane> {
        &self.of_server
    }

    pub(super) fn of_slot(&self, slot: u16) -> Arc<Lane> {
        let mut lanes = self.of_slots.lock().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(lanes.entry(slot).or_default())
    }
}
