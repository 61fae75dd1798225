//! Whether Redis is one server or a cluster, and what follows from it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::protocol::{KeyNames, errors as error};
use crate::error::Error;
use crate::store::requests::OwnedCheck;

/// Whether the server belongs to a cluster: known from the URL or a setting, or learned from an error reply.
/// Clones share what they learn.
#[derive(Clone, Debug)]
pub(super) struct Topology(Arc<AtomicBool>);

impl Topology {
    pub(super) fn new(is_cluster: bool) -> Self {
        Self(Arc::new(AtomicBool::new(is_cluster)))
    }

    pub(super) fn is_cluster(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// Remembers that the server belongs to a cluster.
    pub(super) fn learn_cluster(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Explains the error of a check that was sent alone. If its levels are in several slots, the server belongs to a
    /// cluster. Otherwise something in front of it does not know hash tags, as the error says.
    pub(super) fn explain(&self, error: Error, names: &KeyNames, levels: &[OwnedCheck]) -> Error {
        let subjects = levels.iter().map(|level| level.check().subject);
        if error::is_cross_slot(&error) && names.are_in_several_slots(subjects) {
            self.learn_cluster();
            return error::several_slots();
        }
        error
    }
}
