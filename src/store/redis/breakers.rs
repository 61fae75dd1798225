//! The circuit breakers of a store: one for each server that has failed.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::protocol::ServerName;
use crate::error::Error;
use crate::lock::RwLock;
use crate::store::circuit_breaker::CircuitBreaker;
use crate::store::future::StoreFuture;

/// The circuit breakers of a store. They belong to the servers, whichever runtime reaches them.
pub(super) struct Breakers {
    probe: Arc<NodeProbe>,
    /// The breaker of a single server; on a cluster, of slots whose node is unknown.
    pub(super) of_store: CircuitBreaker,
    /// The breaker of the nodes that have none of their own, because they have not failed. Stays closed.
    of_others: CircuitBreaker,
    of_nodes: RwLock<NodeBreakers>,
    /// Whether a call to the cluster has ever failed. Until then, no check looks for a breaker.
    has_failed: AtomicBool,
}

/// Sends a PING to the server that has a slot; without a slot, to a single server, or to any node of a cluster.
pub(super) type NodeProbe = dyn Fn(Option<u16>) -> StoreFuture<()> + Send + Sync;

type NodeBreakers = HashMap<ServerName, CircuitBreaker>;

impl Breakers {
    /// `probe` probes a server whose breaker is open.
    pub(super) fn new(of_store: CircuitBreaker, probe: Arc<NodeProbe>) -> Self {
        let probe_any = Arc::clone(&probe);
        let of_store = of_store.probed_by(move || probe_any(None));
        Self {
            probe,
            of_others: of_store.another(),
            of_store,
            of_nodes: RwLock::default(),
            has_failed: AtomicBool::new(false),
        }
    }

    /// Returns whether a call to a cluster has failed, so that the breaker of a key may be open.
    #[inline]
    pub(super) fn has_failed(&self) -> bool {
        self.has_failed.load(Ordering::Relaxed)
    }

    pub(super) fn get(&self, server: &ServerName) -> CircuitBreaker {
        let nodes = self.of_nodes.read();
        nodes.get(server).unwrap_or(&self.of_others).clone()
    }

    pub(super) fn record(
        &self,
        server: Option<&ServerName>,
        slot: Option<u16>,
        outcome: Result<(), &Error>,
    ) {
        let is_failure = outcome.is_err_and(CircuitBreaker::is_failure);
        if is_failure {
            self.has_failed.store(true, Ordering::Relaxed);
        } else if !self.has_failed() {
            return;
        }
        match server {
            Some(server) if is_failure => self.failing(server, slot).record(outcome),
            Some(server) => self.get(server).record(outcome),
            None => self.of_store.record(outcome),
        }
    }

    fn failing(&self, server: &ServerName, slot: Option<u16>) -> CircuitBreaker {
        let mut nodes = self.of_nodes.write();
        // An older one would probe by a slot that may be elsewhere now.
        nodes.retain(|known, breaker| !(known == server && breaker.is_calm()));
        if let Some(breaker) = nodes.get(server) {
            return breaker.clone();
        }
        // The addresses of a cluster may change for ever.
        if nodes.len() == nodes.capacity() {
            nodes.retain(|_, breaker| breaker.is_open());
        }
        let probe = Arc::clone(&self.probe);
        let breaker = self.of_store.clone().probed_by(move || probe(slot));
        nodes.insert(server.clone(), breaker.clone());
        breaker
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;

    fn node(port: u16) -> ServerName {
        ServerName::new("a node", &format!("a:{port}"))
    }

    fn unfailed() -> Breakers {
        let probe = Arc::new(|_| StoreFuture::ready(Ok(())));
        Breakers::new(CircuitBreaker::new().recorded_by_store(), probe)
    }

    fn record(breakers: &Breakers, port: Option<u16>, outcome: Result<(), &Error>) {
        let node = port.map(node);
        breakers.record(node.as_ref(), None, outcome);
    }

    /// Five calls fail.
    fn fail(breakers: &Breakers, port: Option<u16>) {
        for _ in 0..5 {
            let error = Error::new(ErrorKind::Timeout, "too late");
            record(breakers, port, Err(&error));
        }
    }

    #[test]
    fn the_failures_of_a_node_open_its_breaker_and_no_other() {
        let breakers = unfailed();
        record(&breakers, Some(1), Ok(()));
        assert!(!breakers.has_failed());
        fail(&breakers, Some(1));
        assert!(breakers.has_failed() && breakers.get(&node(1)).is_open());
        assert!(!breakers.get(&node(2)).is_open() && !breakers.of_store.is_open());
        fail(&breakers, None);
        assert!(!breakers.get(&node(2)).is_open() && breakers.of_store.is_open());
    }

    #[test]
    fn answers_and_errors_that_are_answers_count_as_successes_of_their_node() {
        let breakers = unfailed();
        let error = Error::new(ErrorKind::Misconfigured, "denied");
        for _ in 0..9 {
            for _ in 0..4 {
                let error = Error::new(ErrorKind::Unavailable, "gone");
                record(&breakers, Some(1), Err(&error));
            }
            record(&breakers, Some(1), Err(&error));
            for _ in 0..9 {
                record(&breakers, Some(1), Ok(()));
            }
        }
        assert!(!breakers.get(&node(1)).is_open());
    }

    #[test]
    fn a_cluster_whose_addresses_change_for_ever_keeps_few_breakers() {
        let breakers = unfailed();
        fail(&breakers, Some(1));
        for port in 2..10_000 {
            let error = Error::new(ErrorKind::Timeout, "too late");
            record(&breakers, Some(port), Err(&error));
        }
        let nodes = breakers.of_nodes.read().len();
        assert!(nodes <= 8, "{nodes}");
        assert!(breakers.get(&node(1)).is_open());
    }
}
