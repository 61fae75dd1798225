//! The nodes of a cluster, and the slots that each of them serves.

use std::collections::HashMap;
use std::ops::RangeInclusive;
use std::sync::Arc;

use redis::Value;
use tokio::sync::Semaphore;

use super::super::reconnecting::ReconnectingConnection;

/// The limit on checks in flight to one node over one connection: as many as to a single server.
pub(crate) const MAX_IN_FLIGHT_PER_NODE: usize = 256;

/// A node of a cluster. Each has a connection of its own, so a node that is lost delays no other.
#[derive(Debug)]
pub(super) struct Node {
    pub(super) host: String,
    pub(super) port: u16,
    pub(super) connection: Arc<ReconnectingConnection>,
    /// Checks wait here before they are sent.
    pub(super) turns: Arc<Semaphore>,
}

/// The masters of a cluster by slot.
#[derive(Clone, Debug, Default)]
pub(super) struct SlotMap {
    /// Disjoint, and in order.
    ranges: Arc<[(RangeInclusive<u16>, Arc<Node>)]>,
    /// The masters that redirects have named since the ranges were read.
    moved: HashMap<u16, Arc<Node>>,
    /// Nodes that redirects have named, and that have no range.
    others: Vec<Arc<Node>>,
}

/// Slots that one master serves, as a node reports them.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct SlotRange {
    slots: RangeInclusive<u16>,
    host: String,
    port: u16,
}

impl Node {
    pub(super) fn new(host: &str, port: u16, connection: Arc<ReconnectingConnection>) -> Arc<Self> {
        Arc::new(Self {
            host: host.to_owned(),
            port,
            connection,
            turns: Arc::new(Semaphore::new(MAX_IN_FLIGHT_PER_NODE)),
        })
    }

    fn is_at(&self, host: &str, port: u16) -> bool {
        self.port == port && self.host == host
    }
}

impl SlotMap {
    /// Builds the map of these ranges. `node` finds or makes the node at an address.
    pub(super) fn new(
        mut ranges: Vec<SlotRange>,
        mut node: impl FnMut(&Self, &str, u16) -> Arc<Node>,
    ) -> Self {
        ranges.sort_by_key(|range| *range.slots.start());
        let mut map = Self::default();
        let mut served = Vec::with_capacity(ranges.len());
        for SlotRange { slots, host, port } in ranges {
            let node = node(&map, &host, port);
            map.add(&node);
            served.push((slots, node));
        }
        Self {
            ranges: served.into(),
            ..Self::default()
        }
    }

    /// Returns the master of a slot, if one serves it.
    pub(super) fn master(&self, slot: u16) -> Option<&Arc<Node>> {
        if let Some(node) = self.moved.get(&slot) {
            return Some(node);
        }
        let next = self
            .ranges
            .partition_point(|(slots, _)| *slots.start() <= slot);
        let (slots, node) = self.ranges.get(next.checked_sub(1)?)?;
        slots.contains(&slot).then_some(node)
    }

    /// Returns the slots and the address of each master, in order.
    pub(super) fn addresses(&self) -> impl Iterator<Item = (&RangeInclusive<u16>, &str, u16)> {
        let ranges = self.ranges.iter();
        ranges.map(|(slots, node)| (slots, node.host.as_str(), node.port))
    }

    /// Returns every master once.
    pub(super) fn masters(&self) -> Vec<Arc<Node>> {
        let mut masters: Vec<Arc<Node>> = Vec::new();
        for node in self
            .ranges
            .iter()
            .map(|(_, node)| node)
            .chain(self.moved.values())
        {
            if !masters.iter().any(|known| Arc::ptr_eq(known, node)) {
                masters.push(Arc::clone(node));
            }
        }
        masters
    }

    /// Returns the node at an address, if it is known.
    pub(super) fn find(&self, host: &str, port: u16) -> Option<&Arc<Node>> {
        let of_ranges = self.ranges.iter().map(|(_, node)| node);
        let mut nodes = of_ranges.chain(self.moved.values()).chain(&self.others);
        nodes.find(|node| node.is_at(host, port))
    }

    /// Remembers a node that a redirect has named.
    pub(super) fn add(&mut self, node: &Arc<Node>) {
        if self.find(&node.host, node.port).is_none() {
            self.others.push(Arc::clone(node));
        }
    }

    /// Remembers the master that a redirect has named for a slot.
    pub(super) fn set_master(&mut self, slot: u16, node: &Arc<Node>) {
        self.moved.insert(slot, Arc::clone(node));
    }
}

/// Reads the reply to CLUSTER SLOTS of the node at `host`. Returns `None` if it is malformed.
pub(super) fn parse(reply: Value, host: &str) -> Option<Vec<SlotRange>> {
    let Value::Array(ranges) = reply else {
        return None;
    };
    // Ranges whose master is unknown to the node are left out.
    let ranges = ranges.into_iter().map(|range| parse_range(range, host));
    Some(
        ranges
            .collect::<Option<Vec<_>>>()?
            .into_iter()
            .flatten()
            .collect(),
    )
}

fn parse_range(range: Value, host_of_node: &str) -> Option<Option<SlotRange>> {
    let Value::Array(range) = range else {
        return None;
    };
    let [
        Value::Int(first),
        Value::Int(last),
        Value::Array(master),
        ..,
    ] = &*range
    else {
        return None;
    };
    let [host, Value::Int(port), ..] = &**master else {
        return None;
    };
    let host = match host {
        Value::BulkString(host) => str::from_utf8(host).ok()?,
        Value::SimpleString(host) => host,
        Value::Nil => "",
        _ => return None,
    };
    let host = match host {
        "?" => return Some(None),
        // The address by which the node was reached.
        "" | "0.0.0.0" | "::" => host_of_node,
        host => host,
    };
    Some(Some(SlotRange {
        slots: u16::try_from(*first).ok()?..=u16::try_from(*last).ok()?,
        host: host.to_owned(),
        port: u16::try_from(*port).ok()?,
    }))
}
