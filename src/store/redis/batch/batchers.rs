//! The lanes of one runtime: one for each connection, or on a cluster one for each slot.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use super::batcher::Batcher;
use crate::store::redis::connection::ConnectionIndex;

#[derive(Debug)]
pub(crate) struct Batchers {
    first: Arc<Batcher>,
    others: Box<[Arc<Batcher>]>,
    /// A cluster refuses a call whose keys are in several slots. There are 16 384 at most.
    of_slots: Mutex<HashMap<u16, Arc<Batcher>>>,
}

impl Batchers {
    /// The lanes to so many connections.
    pub(crate) fn new(connections: usize) -> Self {
        let lane = |connection| Arc::new(Batcher::new(ConnectionIndex::over(connection)));
        Self {
            first: lane(0),
            others: (1..connections).map(lane).collect(),
            of_slots: Mutex::default(),
        }
    }

    /// The lane of a way to one server.
    pub(crate) fn of_way(&self, way: ConnectionIndex) -> &Arc<Batcher> {
        let other = way
            .connection()
            .checked_sub(1)
            .and_then(|other| self.others.get(other));
        other.unwrap_or(&self.first)
    }

    pub(crate) fn of_slot(&self, slot: u16) -> Arc<Batcher> {
        let connections = 1 + self.others.len();
        let mut lanes = self.of_slots.lock().unwrap_or_else(PoisonError::into_inner);
        let lane = lanes.entry(slot).or_insert_with(|| {
            Arc::new(Batcher::new(ConnectionIndex::of(slot.into(), connections)))
        });
        Arc::clone(lane)
    }
}
