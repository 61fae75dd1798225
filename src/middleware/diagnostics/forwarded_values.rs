//! The number of different forwarded addresses that each peer of a layer sends.

use std::hash::{BuildHasher, RandomState};
use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};

use arrayvec::ArrayVec;

/// The number of different values that marks a peer as a proxy of many clients.
///
/// A client that connects directly sends none or repeats one. The proxy of an office sends a few.
pub(super) const VALUES: usize = 10;

/// The number of peers that are watched.
///
/// A load balancer has a few addresses. A content delivery network may have a hundred; then the first 32
/// send about ten requests each among the first 1 000.
const PEERS: usize = 32;

/// The forwarded values of the first peers that send any.
#[derive(Debug, Default)]
pub(super) struct ForwardedValues {
    hasher: RandomState,
    peers: Mutex<Vec<Peer>>,
}

#[derive(Debug)]
struct Peer {
    address: IpAddr,
    /// Hashes of the values: at most 80 bytes, however long the values are.
    values: ArrayVec<u64, VALUES>,
}

/// The forwarded value of one request.
#[derive(Debug, Hash)]
pub(super) enum Value<'a> {
    /// An address without its port, which changes with each connection.
    Address(IpAddr),
    Unreadable(&'a [u8]),
}

impl ForwardedValues {
    /// Adds the value of a request. Returns whether its peer has sent [`VALUES`] different ones.
    pub(super) fn add(&self, peer: IpAddr, value: &Value<'_>) -> bool {
        let hash = self.hasher.hash_one(value);
        let mut peers = self.peers.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(peer) = peers.iter_mut().find(|known| known.address == peer) {
            if !peer.values.contains(&hash) {
                // A full list needs no more values: the caller has warned.
                let _ = peer.values.try_push(hash);
            }
            return peer.values.is_full();
        }
        if peers.len() < PEERS {
            let values = ArrayVec::from_iter([hash]);
            let address = peer;
            peers.push(Peer { address, values });
        }
        false
    }

    /// Frees the memory.
    pub(super) fn clear(&self) {
        let mut peers = self.peers.lock().unwrap_or_else(PoisonError::into_inner);
        *peers = Vec::new();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(last: u8) -> IpAddr {
        IpAddr::from([198, 51, 100, last])
    }

    #[test]
    fn only_different_values_of_one_peer_are_counted() {
        let values = ForwardedValues::default();
        for _ in 0..3 {
            for client in 0..9 {
                let value = Value::Address(address(client));
                assert!(!values.add(address(200), &value));
                assert!(!values.add(address(201), &value));
            }
        }
        assert!(!values.add(address(201), &Value::Address(address(0))));
        assert!(values.add(address(200), &Value::Unreadable(b"unknown")));
    }

    #[test]
    fn memory_is_bounded_and_freed() {
        let values = ForwardedValues::default();
        for peer in 0..=u8::MAX {
            for client in 0..=u8::MAX {
                values.add(address(peer), &Value::Address(address(client)));
            }
        }
        assert_eq!(values.peers.lock().unwrap().len(), PEERS);
        values.clear();
        assert_eq!(values.peers.lock().unwrap().capacity(), 0);
    }
}
