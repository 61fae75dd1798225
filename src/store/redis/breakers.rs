//! The circuit breakers of a store: one for each server that has failed.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{PoisonError, RwLock, RwLockReadGuard};

use crate::error::Error;
use crate::store::circuit_breaker::CircuitBreaker;
use crate::store::future::StoreFuture;

/// The circuit breakers of a store. They belong to the servers, whichever runtime reaches them.
pub(super) struct Breakers {
    /// The breaker of a single server; on a cluster, of slots whose node is unknown.
    of_store: CircuitBreaker,
    /// The breaker of the nodes that have none of their own, because they have not failed. Stays closed.
    of_others: CircuitBreaker,
    of_nodes: RwLock<Vec<NodeBreaker>>,
    /// Whether a call to the cluster has ever failed. Until then, no check looks for a breaker.
    has_failed: AtomicBool,
}

/// The breaker of the node at an address.
struct NodeBreaker {
    host: String,
    port: u16,
    breaker: CircuitBreaker,
}

impl NodeBreaker {
    fn is_at(&self, (host, port): (&str, u16)) -> bool {
        self.port == port && self.host == host
    }
}

impl Breakers {
    pub(super) fn new(of_store: CircuitBreaker) -> Self {
        Self {
            of_others: of_store.another(),
            of_store,
            of_nodes: RwLock::default(),
            has_failed: AtomicBool::new(false),
        }
    }

    pub(super) fn of_store(&self) -> &CircuitBreaker {
        &self.of_store
    }

    /// Returns whether a call to a cluster has failed, so that the breaker of a key may be open.
    #[inline]
    pub(super) fn has_failed(&self) -> bool {
        self.has_failed.load(Ordering::Relaxed)
    }

    /// Returns the breaker of the node at an address.
    pub(super) fn at(&self, address: (&str, u16)) -> CircuitBreaker {
        let nodes = self.nodes();
        let found = nodes.iter().find(|node| node.is_at(address));
        found.map_or(&self.of_others, |node| &node.breaker).clone()
    }

    /// Records a call to the node at an address, or to one that is unknown. `probe` probes this node.
    pub(super) fn record<P>(
        &self,
        address: Option<(&str, u16)>,
        outcome: Result<(), &Error>,
        probe: impl FnOnce() -> P,
    ) where
        P: Fn() -> StoreFuture<()> + Send + Sync + 'static,
    {
        let is_failure = outcome.is_err_and(CircuitBreaker::is_failure);
        if is_failure {
            self.has_failed.store(true, Ordering::Relaxed);
        } else if !self.has_failed() {
            return;
        }
        match address {
            Some(address) if is_failure => self.failing_at(address, probe).record(outcome),
            Some(address) => self.at(address).record(outcome),
            None => self.of_store.record(outcome),
        }
    }

    /// Returns the breaker of a node that fails, and makes it with the first failure.
    fn failing_at<P>(&self, address: (&str, u16), probe: impl FnOnce() -> P) -> CircuitBreaker
    where
        P: Fn() -> StoreFuture<()> + Send + Sync + 'static,
    {
        let mut nodes = self
            .of_nodes
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        // An older one would probe by a slot that may be elsewhere now.
        nodes.retain(|node| !(node.is_at(address) && node.breaker.is_calm()));
        if let Some(node) = nodes.iter().find(|node| node.is_at(address)) {
            return node.breaker.clone();
        }
        // The addresses of a cluster may change for ever.
        if nodes.len() == nodes.capacity() {
            nodes.retain(|node| node.breaker.is_open());
        }
        let breaker = self.of_store.clone().probed_by(probe());
        let (host, port) = address;
        nodes.push(NodeBreaker {
            host: host.to_owned(),
            port,
            breaker: breaker.clone(),
        });
        breaker
    }

    fn nodes(&self) -> RwLockReadGuard<'_, Vec<NodeBreaker>> {
        self.of_nodes.read().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;

    const ONE: (&str, u16) = ("a", 1);
    const OTHER: (&str, u16) = ("a", 2);

    fn breakers() -> Breakers {
        Breakers::new(CircuitBreaker::new().recorded_by_store())
    }

    fn record(breakers: &Breakers, address: Option<(&str, u16)>, outcome: Result<(), &Error>) {
        breakers.record(address, outcome, || || StoreFuture::ready(Ok(())));
    }

    /// Five calls fail.
    fn fail(breakers: &Breakers, address: Option<(&str, u16)>) {
        for _ in 0..5 {
            let error = Error::new(ErrorKind::Timeout, "too late");
            record(breakers, address, Err(&error));
        }
    }

    #[test]
    fn the_failures_of_a_node_open_its_breaker_and_no_other() {
        let breakers = breakers();
        record(&breakers, Some(ONE), Ok(()));
        assert!(!breakers.has_failed());
        fail(&breakers, Some(ONE));
        assert!(breakers.has_failed() && breakers.at(ONE).is_open());
        assert!(!breakers.at(OTHER).is_open() && !breakers.of_store().is_open());
        fail(&breakers, None);
        assert!(!breakers.at(OTHER).is_open() && breakers.of_store().is_open());
    }

    #[test]
    fn answers_and_errors_that_are_answers_count_as_successes_of_their_node() {
        let breakers = breakers();
        let error = Error::new(ErrorKind::Misconfigured, "denied");
        for _ in 0..9 {
            for _ in 0..4 {
                let error = Error::new(ErrorKind::Unavailable, "gone");
                record(&breakers, Some(ONE), Err(&error));
            }
            record(&breakers, Some(ONE), Err(&error));
            for _ in 0..9 {
                record(&breakers, Some(ONE), Ok(()));
            }
        }
        assert!(!breakers.at(ONE).is_open());
    }

    #[test]
    fn a_cluster_whose_addresses_change_for_ever_keeps_few_breakers() {
        let breakers = breakers();
        fail(&breakers, Some(ONE));
        for host in 0..10_000 {
            let error = Error::new(ErrorKind::Timeout, "too late");
            record(&breakers, Some((&host.to_string(), 1)), Err(&error));
        }
        assert!(breakers.nodes().len() <= 8, "{}", breakers.nodes().len());
        assert!(breakers.at(ONE).is_open());
    }
}
