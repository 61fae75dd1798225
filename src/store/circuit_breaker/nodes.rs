//! The nodes that a store is divided among: which of them serves a slot.
#![cfg_attr(
    not(any(feature = "cluster", test)),
    expect(dead_code, reason = "only a cluster has several nodes")
)]

use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The number of slots whose node is unknown, and of a store that is one server.
pub(super) const UNKNOWN: usize = 0;

/// The numbers that nodes may have, with the number of unknown ones. The masters of a larger cluster share the last number.
pub(super) const NUMBERS: usize = 256;

/// The node of each slot, as a number that stays the same while the node serves slots.
///
/// Shared by all connections to a cluster. A look-up is one atomic load.
#[derive(Debug)]
pub(crate) struct Nodes {
    by_slot: Box<[AtomicU8]>,
    /// The addresses of the numbers from 1 on.
    addresses: Mutex<Vec<Address>>,
    /// Grows with each change of `by_slot`.
    version: AtomicUsize,
}

type Address = (String, u16);

impl Nodes {
    /// Nodes that are all unknown.
    pub(crate) fn new(slots: u16) -> Self {
        Self {
            by_slot: (0..slots).map(|_| AtomicU8::new(0)).collect(),
            addresses: Mutex::default(),
            version: AtomicUsize::new(0),
        }
    }

    /// Returns the number of the node that serves a slot.
    #[inline]
    pub(crate) fn of_slot(&self, slot: u16) -> usize {
        let number = self.by_slot.get(usize::from(slot));
        number.map_or(UNKNOWN, |number| number.load(Ordering::Relaxed).into())
    }

    /// Sets the node of one slot.
    pub(crate) fn set(&self, slot: u16, host: &str, port: u16) {
        let number = self.number_of(&mut self.lock(), host, port);
        self.store(slot, number);
    }

    /// Sets the nodes of all slots. Those that no range has are served by none.
    pub(crate) fn replace<'a>(
        &self,
        ranges: impl IntoIterator<Item = (&'a RangeInclusive<u16>, &'a str, u16)>,
    ) {
        let mut addresses = self.lock();
        let mut next = 0;
        for (slots, host, port) in ranges {
            (next..*slots.start()).for_each(|slot| self.store(slot, 0));
            let number = self.number_of(&mut addresses, host, port);
            slots.clone().for_each(|slot| self.store(slot, number));
            next = slots.end().saturating_add(1);
        }
        let end = u16::try_from(self.by_slot.len()).unwrap_or(u16::MAX);
        (next..end).for_each(|slot| self.store(slot, 0));
    }

    fn store(&self, slot: u16, number: u8) {
        if let Some(current) = self.by_slot.get(usize::from(slot))
            && current.swap(number, Ordering::Relaxed) != number
        {
            self.version.fetch_add(1, Ordering::Release);
        }
    }

    /// Returns the number of the node at an address. A new node gets one that no other serves slots under.
    fn number_of(&self, addresses: &mut Vec<Address>, host: &str, port: u16) -> u8 {
        let is_known = |(known, its_port): &Address| *its_port == port && known == host;
        let index = match addresses.iter().position(is_known) {
            Some(index) => index,
            None if addresses.len() < NUMBERS - 1 => {
                addresses.push((host.to_owned(), port));
                addresses.len() - 1
            }
            None => {
                let used = self.used();
                let free = used.iter().skip(1).position(|used| !used);
                let index = free.unwrap_or(NUMBERS - 2);
                if let Some(address) = addresses.get_mut(index) {
                    *address = (host.to_owned(), port);
                }
                index
            }
        };
        u8::try_from(index + 1).unwrap_or(u8::MAX)
    }

    /// Returns a number that is another one after each change.
    #[inline]
    pub(super) fn version(&self) -> usize {
        self.version.load(Ordering::Acquire)
    }

    /// Returns, for each number, whether any slot has it.
    pub(super) fn used(&self) -> [bool; NUMBERS] {
        let mut used = [false; NUMBERS];
        for number in &self.by_slot {
            if let Some(used) = used.get_mut(usize::from(number.load(Ordering::Relaxed))) {
                *used = true;
            }
        }
        used
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Address>> {
        // Consistent after a panic: each step leaves it so.
        self.addresses
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_have_the_number_of_their_node_while_it_serves_any() {
        let nodes = Nodes::new(100);
        assert_eq!(nodes.of_slot(7), UNKNOWN);
        nodes.replace([(&(0..=49), "a", 1), (&(60..=99), "b", 1)]);
        let [a, b] = [7, 60].map(|slot| nodes.of_slot(slot));
        assert!(a != b && a != UNKNOWN && b != UNKNOWN);
        assert_eq!(
            [0, 49, 50, 59, 99].map(|slot| nodes.of_slot(slot)),
            [a, a, UNKNOWN, UNKNOWN, b]
        );
        let version = nodes.version();
        nodes.replace([(&(0..=49), "a", 1), (&(60..=99), "b", 1)]);
        assert_eq!(nodes.version(), version);
        nodes.set(7, "b", 1);
        assert_eq!([6, 7, 8].map(|slot| nodes.of_slot(slot)), [a, b, a]);
        assert_ne!(nodes.version(), version);
        // The same host, another port.
        nodes.set(8, "b", 2);
        assert!(![a, b, UNKNOWN].contains(&nodes.of_slot(8)));
        assert_eq!(nodes.of_slot(100), UNKNOWN);
    }

    #[test]
    fn a_cluster_whose_addresses_change_for_ever_needs_no_more_numbers() {
        let nodes = Nodes::new(100);
        for address in 0..10_000 {
            let [one, other] = ["one", "other"].map(|name| format!("{name}{address}"));
            nodes.replace([(&(0..=49), &*one, 1), (&(50..=99), &*other, 1)]);
            let [one, other] = [0, 99].map(|slot| nodes.of_slot(slot));
            assert!(
                one != other && one != UNKNOWN && other != UNKNOWN,
                "{address}"
            );
        }
        assert_eq!(nodes.lock().len(), NUMBERS - 1);
    }

    #[test]
    fn the_nodes_of_a_huge_cluster_share_the_last_number() {
        let nodes = Nodes::new(1_000);
        for slot in 0..1_000 {
            nodes.set(slot, "a", slot);
        }
        assert_eq!(nodes.of_slot(253), 254);
        assert_eq!([255, 999].map(|slot| nodes.of_slot(slot)), [255, 255]);
    }
}
