//! The nodes of a cluster, and the slots that each of them serves.

use std::collections::HashMap;
use std::ops::RangeInclusive;
use std::sync::Arc;

use redis::Value;

use super::super::reconnecting::ReconnectingConnection;

/// A node of a cluster. Each has a connection of its own, so a node that is lost delays no other.
#[derive(Debug)]
pub(super) struct Node {
    pub(super) host: String,
    pub(super) port: u16,
    pub(super) connection: Arc<ReconnectingConnection>,
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
        })
    }

    pub(super) fn is_at(&self, host: &str, port: u16) -> bool {
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

    /// Returns the nodes that have no range.
    pub(super) fn others(&self) -> &[Arc<Node>] {
        &self.others
    }

    /// Remembers a node that has no range.
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

/// Returns how many slots have a master in these ranges.
pub(super) fn served(ranges: &[SlotRange]) -> usize {
    ranges.iter().map(|range| range.slots.len()).sum()
}

/// Reads the reply to CLUSTER SLOTS of the node at `host`. Returns `None` if it is malformed.
pub(super) fn parse(reply: Value, host: &str) -> Option<Vec<SlotRange>> {
    let Value::Array(ranges) = reply else {
        return None;
    };
    let ranges = ranges.into_iter().map(|range| parse_range(range, host));
    ranges.collect()
}

fn parse_range(range: Value, asked: &str) -> Option<SlotRange> {
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
    Some(SlotRange {
        slots: u16::try_from(*first).ok()?..=u16::try_from(*last).ok()?,
        host: known_host(host, asked).to_owned(),
        port: u16::try_from(*port).ok()?,
    })
}

/// Returns the host of a node that another node names. If that one does not know it, it is the host `asked`, by which
/// that one was reached.
pub(super) fn known_host<'a>(host: &'a str, asked: &'a str) -> &'a str {
    match host {
        "" | "?" | "0.0.0.0" | "::" => asked,
        host => host,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_without_a_known_host_is_at_the_host_that_was_asked() {
        for (host, expected) in [
            ("$8\r\n10.0.0.2\r\n", "10.0.0.2"),
            ("$13\r\nredis-2.local\r\n", "redis-2.local"),
            // As `cluster-preferred-endpoint-type` says: `unknown-endpoint`, or `hostname` without one.
            ("$-1\r\n", "10.0.0.1"),
            ("$1\r\n?\r\n", "10.0.0.1"),
            // A node that nobody has met yet.
            ("$0\r\n\r\n", "10.0.0.1"),
        ] {
            let reply = format!("*1\r\n*3\r\n:0\r\n:16383\r\n*2\r\n{host}:7001\r\n");
            let reply = redis::parse_redis_value(reply.as_bytes()).unwrap();
            let ranges = parse(reply, "10.0.0.1").unwrap();
            let range = SlotRange {
                slots: 0..=16_383,
                host: expected.to_owned(),
                port: 7_001,
            };
            assert_eq!(ranges, [range]);
            assert_eq!(served(&ranges), 16_384);
        }
    }
}
