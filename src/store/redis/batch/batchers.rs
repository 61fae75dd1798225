//! The lanes of one runtime: one for each connection, or on a cluster one for each slot.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use super::batcher::Lane;
use crate::store::redis::connection::Way;

#[derive(Debug)]
pub(crate) struct Lanes {
    first: Arc<Lane>,
    others: Box<[Arc<Lane>]>,
    /// A cluster refuses a call whose keys are in several slots. There are 16 384 at most.
    of_slots: Mutex<HashMap<u16, Arc<Lane>>>,
}

impl Lanes {
    /// The lanes to so many connections.
    pub(crate) fn new(connections: usize) -> Self {
        let lane = |connection| Arc::new(Lane::new(Way::over(connection)));
        Self {
            first: lane(0),
            others: (1..connections).map(lane).collect(),
            of_slots: Mutex::default(),
        }
    }

    /// The lane of a way to one server.
    pub(crate) fn of_way(&self, way: Way) -> &Arc<Lane> {
        let other = way
            .connection()
            .checked_sub(1)
            .and_then(|other| self.others.get(other));
        other.unwrap_or(&self.first)
    }

    pub(crate) fn of_slot(&self, slot: u16) -> Arc<Lane> {
        let connections = 1 + self.others.len();
        let mut lanes = self.of_slots.lock().unwrap_or_else(PoisonError::into_inner);
        let lane = lanes
            .entry(slot)
            .or_insert_with(|| Arc::new(Lane::new(Way::of(slot.into(), connections))));
        Arc::clone(lane)
    }
}
