//! The batchers of one runtime, by target.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::runtime::Handle;

use super::batcher::Batcher;
use crate::store::redis::client::Client;
use crate::store::redis::connection::PerConnection;
use crate::store::redis::topology::Topology;
use crate::store::refusal_cache::RefusalCache;
use crate::store::requests::Subject;

/// The batchers of one runtime, and what they send with. A target is a connection; on a cluster, a
/// slot.
pub(in crate::store::redis) struct Batchers {
    pub(super) client: Client,
    pub(super) refusal_cache: Arc<RefusalCache>,
    pub(super) topology: Topology,
    pub(super) runtime: Handle,
    by_connection: PerConnection<Arc<Batcher>>,
    /// A cluster refuses a call with keys of several slots. There are at most 16 384.
    by_slot: Mutex<HashMap<u16, Arc<Batcher>>>,
}

impl Batchers {
    pub(in crate::store::redis) fn new(
        client: Client,
        refusal_cache: Arc<RefusalCache>,
        topology: Topology,
        runtime: Handle,
    ) -> Self {
        let connections = &client.connections;
        let by_connection = PerConnection::new(connections.count(), |index| {
            Arc::new(Batcher::new(connections.get(index, &runtime)))
        });
        Self {
            client,
            refusal_cache,
            topology,
            runtime,
            by_connection,
            by_slot: Mutex::default(),
        }
    }

    /// Returns the batcher for the checks of a subject.
    pub(in crate::store::redis) fn find(&self, subject: Subject<'_>) -> Arc<Batcher> {
        if self.topology.is_cluster() {
            self.by_slot(self.client.names.slot(subject))
        } else {
            let index = self.client.connection_index(subject);
            Arc::clone(self.by_connection.get(index))
        }
    }

    fn by_slot(&self, slot: u16) -> Arc<Batcher> {
        let mut batchers = self.by_slot.lock().unwrap_or_else(PoisonError::into_inner);
        let batcher = batchers.entry(slot).or_insert_with(|| {
            let index = self.client.connections.index_for(slot.into());
            let batcher = self.by_connection.get(index);
            Arc::new(Batcher::new(batcher.connection.clone()))
        });
        Arc::clone(batcher)
    }
}
