//! A count of the different forwarded addresses that each peer of a layer sends.

use std::hash::{BuildHasher, RandomState};
use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};

use arrayvec::ArrayVec;

/// The number of different values from which on a peer is probably a proxy of many clients.
///
/// A client that connects directly sends no value, or always the same one. The proxy of an office sends a few.
pub(super) const VALUES: usize = 10;

/// The maximum number of peers for which values are counted.
///
/// A load balancer has a few addresses. A content delivery network may have a hundred. Then the first 32 of
/// them send about ten requests each among the first 1 000.
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
    /// Hashes of the values: at most 80 bytes, for values of any length.
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
                // If the list is full, the caller has already warned.
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

    /// Frees the memory of all peers.
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
