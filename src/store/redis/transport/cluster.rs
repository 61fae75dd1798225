//! A cluster: a node for each master, the slots that they serve, and the redirects that they send.
//!
//! Each node has its own connection, so a node that is lost delays no calls to the others. The cluster client of `redis`
//! sends all calls from one task, which stands still while it reads the slots, and it resends commands that a lost
//! connection may have executed. Here a command is sent again only if a node says that it has not run it.

use std::ops::RangeInclusive;
use std::sync::{Arc, RwLockReadGuard};
use std::time::{Duration, Instant};

use redis::{Cmd, RedisError, Value, from_redis_value, from_redis_value_ref};
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::dial::{Dial, Server};
use super::failure::{Failure, Fate, Redirect, known_host};
use super::node::{BACKOFF, Line, Node};
use crate::lock::RwLock;
use crate::random::up_to;
use crate::store::redis::protocol::{CLUSTER_NODE, SLOTS, ServerName};
use crate::store::redis::real_time::{self, Deadline};

/// The limit on the time in which a node sends the slots.
const READ_TIMEOUT: Duration = Duration::from_millis(500);

/// The limit on resending a command that nodes have not run.
const MAX_RETRIES: u32 = 16;

/// The redirects that are followed at once. More mean that the nodes do not agree yet who has the slot.
const PROMPT_RETRIES: u32 = 2;

/// The limit on resending a command whose keys are on two nodes, or whose slot no node serves: that may last.
const MAX_TRIES_AGAIN: u32 = 3;

/// The backoff before a resend, if the cluster needs time: the first one, and the longest one.
const MIN_BACKOFF: Duration = Duration::from_millis(15);
const MAX_BACKOFF: Duration = Duration::from_millis(120);

/// The longest backoff between reads of the slots: as long as an open circuit breaker waits until it probes.
const MAX_READ_BACKOFF: Duration = Duration::from_millis(500);

/// The backoff starts anew after this time without a reason to read the slots.
const CALM: Duration = Duration::from_secs(5);

/// A node without slots is forgotten when it has not replied for this time. Until a slot has moved, no node lists the
/// node that imports it.
const IMPORTING: Duration = Duration::from_secs(10);

/// A cluster, as one runtime reaches it. Clones share the connections.
#[derive(Clone)]
pub(crate) struct Cluster(Arc<ClusterInner>);

struct ClusterInner {
    name: ServerName,
    /// The settings of the first one hold for all nodes.
    seeds: Vec<Server>,
    runtime: Handle,
    map: RwLock<SlotMap>,
    reading: watch::Sender<Reading>,
}

/// The known nodes, and the master of each slot that has one.
struct SlotMap {
    nodes: Vec<Arc<Node>>,
    by_slot: Box<[Option<Arc<Node>>]>,
}

/// The progress of reading the slots.
#[derive(Default)]
struct Reading {
    has_map: bool,
    is_reading: bool,
    /// The end of the last read.
    read_at: Option<Instant>,
    /// The backoff before that read, of which it waited at least half.
    backoff: Duration,
    /// The failure of the first reads. Each call gets it until then.
    failure: Option<(Failure, Instant)>,
}

/// Slots that one master serves, as a node reports them.
#[derive(Debug, PartialEq, Eq)]
struct SlotRange {
    slots: RangeInclusive<u16>,
    host: String,
    port: u16,
}

impl SlotMap {
    fn master(&self, slot: u16) -> Option<&Arc<Node>> {
        self.by_slot.get(usize::from(slot))?.as_ref()
    }

    fn masters(&self) -> Vec<Arc<Node>> {
        self.nodes
            .iter()
            .filter(|node| self.has_slots(node))
            .cloned()
            .collect()
    }

    fn has_slots(&self, node: &Arc<Node>) -> bool {
        self.by_slot
            .iter()
            .flatten()
            .any(|master| Arc::ptr_eq(master, node))
    }

    /// Returns the node at an address. `make` makes it if it is unknown.
    fn node_at(
        &mut self,
        address: (&str, u16),
        make: impl FnOnce() -> Option<Arc<Node>>,
    ) -> Option<Arc<Node>> {
        if let Some(known) = self.nodes.iter().find(|node| node.address() == address) {
            return Some(Arc::clone(known));
        }
        let node = make()?;
        self.nodes.push(Arc::clone(&node));
        Some(node)
    }
}

impl Reading {
    /// Returns when the slots may be read again: ever later while they are read again and again. Redirects tell about
    /// their slot meanwhile, and a master that is down may be down for long.
    fn next(&mut self) -> Instant {
        let Some(read_at) = self.read_at else {
            return Instant::now();
        };
        let is_first = !self.has_map || read_at.elapsed() >= CALM;
        self.backoff = if is_first {
            BACKOFF
        } else {
            (self.backoff * 2).clamp(BACKOFF, MAX_READ_BACKOFF)
        };
        // Processes that lose a master together do not read together.
        let half = self.backoff / 2;
        read_at + half + up_to(half)
    }
}

impl Cluster {
    /// A cluster whose connections belong to `runtime`. Does not connect yet.
    pub(super) fn new(name: ServerName, seeds: Vec<Server>, runtime: &Handle) -> Self {
        Self(Arc::new(ClusterInner {
            name,
            seeds,
            runtime: runtime.clone(),
            map: RwLock::new(SlotMap {
                nodes: Vec::new(),
                by_slot: vec![None; usize::from(SLOTS)].into(),
            }),
            reading: watch::Sender::default(),
        }))
    }

    pub(super) fn name(&self) -> &ServerName {
        &self.0.name
    }

    fn map(&self) -> RwLockReadGuard<'_, SlotMap> {
        self.0.map.read()
    }

    fn change_map<T>(&self, change: impl FnOnce(&mut SlotMap) -> T) -> T {
        let mut map = self.0.map.write();
        change(&mut map)
    }

    /// Returns the master of a slot; for a command without keys, a master that is connected if there is one.
    pub(super) fn master(&self, slot: Option<u16>) -> Option<Arc<Node>> {
        let map = self.map();
        if let Some(slot) = slot {
            return map.master(slot).cloned();
        }
        let masters = map.masters();
        let connected = masters.iter().find(|node| node.is_up());
        connected.or_else(|| masters.first()).cloned()
    }

    /// Returns what keeps this process from connecting to the master of a slot, if it is not the server.
    pub(super) fn obstacle(&self, slot: Option<u16>) -> Option<Failure> {
        match self.master(slot) {
            Some(node) => node.obstacle(),
            None => {
                let cause = self.0.seeds.iter().find_map(Dial::obstacle)?;
                Some(Failure::to_connect(&self.0.name, cause))
            }
        }
    }

    pub(super) fn masters(&self) -> Vec<Arc<Node>> {
        self.map().masters()
    }

    /// Returns the connected master that follows a node. It may know who has a slot that the node does not know.
    fn master_after(&self, node: &Arc<Node>) -> Option<Arc<Node>> {
        let masters = self.masters();
        let index = masters.iter().position(|master| Arc::ptr_eq(master, node));
        let first = index.map_or(0, |index| index + 1);
        masters
            .iter()
            .cycle()
            .skip(first)
            .take(masters.len())
            .find(|node| node.is_up())
            .cloned()
    }

    fn make_node(&self, host: &str, port: u16) -> Option<Arc<Node>> {
        let node = self.0.seeds.first()?.at(CLUSTER_NODE, host, port);
        Some(Node::new(node, &self.0.runtime))
    }

    /// Returns the node that a redirect names, and remembers it as the master of the slot that has moved there.
    fn redirected(&self, host: &str, port: u16, moved: Option<u16>) -> Option<Arc<Node>> {
        self.change_map(|map| {
            let node = map.node_at((host, port), || self.make_node(host, port))?;
            let master = moved.and_then(|slot| map.by_slot.get_mut(usize::from(slot)));
            if let Some(master) = master {
                *master = Some(Arc::clone(&node));
            }
            Some(node)
        })
    }

    async fn first_read(&self, deadline: &mut Deadline) -> Result<(), Failure> {
        let mut readings = self.0.reading.subscribe();
        loop {
            {
                let reading = readings.borrow_and_update();
                match &reading.failure {
                    _ if reading.has_map => return Ok(()),
                    Some((failure, retry_at)) if Instant::now() < *retry_at => {
                        return Err(failure.clone());
                    }
                    _ => {}
                }
            }
            self.refresh();
            if let Err(late) = deadline.wait(readings.changed()).await {
                return Err(self
                    .obstacle(None)
                    .unwrap_or_else(|| Failure::from_deadline(&self.0.name, late, Fate::NotRun)));
            }
        }
    }

    pub(super) fn refresh(&self) {
        let mut not_before = None;
        self.0.reading.send_if_modified(|reading| {
            if !reading.is_reading {
                reading.is_reading = true;
                not_before = Some(reading.next());
            }
            not_before.is_some()
        });
        if let Some(not_before) = not_before {
            let cluster = self.clone();
            self.0.runtime.spawn(async move {
                real_time::sleep_until(not_before).await;
                let read = cluster.read().await;
                let reading = &cluster.0.reading;
                reading.send_modify(|reading| cluster.learn(reading, read));
            });
        }
    }

    fn learn(&self, reading: &mut Reading, read: Result<Vec<SlotRange>, Failure>) {
        let now = Instant::now();
        reading.is_reading = false;
        reading.read_at = Some(now);
        match read {
            // Nodes that serve nothing know less than the last read.
            Ok(ranges) if ranges.is_empty() && reading.has_map => {}
            Ok(ranges) => {
                self.build(&ranges);
                reading.has_map = true;
                reading.failure = None;
            }
            Err(failure) => reading.failure = Some((failure, now + BACKOFF)),
        }
    }

    /// Asks all known masters at once, because one of them may hang, and then the other seed nodes, until a node reports a
    /// master for each slot. If none does, returns the ranges with the most slots: a node that is blank, or that the cluster
    /// has forgotten, reports ranges too.
    async fn read(&self) -> Result<Vec<SlotRange>, Failure> {
        let masters = self.masters();
        let other_seeds = self
            .0
            .seeds
            .iter()
            .filter(|seed| masters.iter().all(|node| node.address() != seed.address()))
            .map(|seed| Node::new(seed.clone(), &self.0.runtime))
            .collect();
        let mut best = Vec::new();
        let mut failure = None;
        for nodes in [masters, other_seeds] {
            let limit = self.read_limit();
            let mut reads: JoinSet<_> = nodes
                .into_iter()
                .map(|node| read_from(node, limit))
                .collect();
            while let Some(Ok(read)) = reads.join_next().await {
                match read {
                    Ok(ranges) if served(&ranges) > served(&best) => best = ranges,
                    Ok(_) => {}
                    Err(error) => {
                        failure.get_or_insert(error);
                    }
                }
                if served(&best) >= usize::from(SLOTS) {
                    return Ok(best);
                }
            }
        }
        match failure {
            Some(failure) if best.is_empty() => Err(failure),
            _ => Ok(best),
        }
    }

    /// Longer than an attempt to connect, whose failure says more than that the time is over.
    fn read_limit(&self) -> Duration {
        let connect_timeouts = self.0.seeds.iter().map(Server::connect_timeout);
        2 * connect_timeouts.max().unwrap_or_default()
    }

    fn build(&self, ranges: &[SlotRange]) {
        self.change_map(|map| {
            map.by_slot.fill(None);
            for SlotRange { slots, host, port } in ranges {
                let node = map.node_at((host, *port), || self.make_node(host, *port));
                let Some(node) = node else {
                    continue;
                };
                node.connect_if_new();
                let slots = usize::from(*slots.start())..=usize::from(*slots.end());
                let masters = map.by_slot.get_mut(slots).unwrap_or_default();
                masters.fill(Some(node));
            }
            let masters = map.masters();
            let since = Instant::now().checked_sub(IMPORTING);
            map.nodes.retain(|node| {
                masters.iter().any(|master| Arc::ptr_eq(master, node))
                    || since.is_some_and(|since| node.has_replied_since(since))
            });
        });
    }

    pub(super) async fn line(
        &self,
        slot: Option<u16>,
        deadline: &mut Deadline,
    ) -> Result<Line, Failure> {
        self.first_read(deadline).await?;
        // Any node says that no node serves a slot.
        let Some(node) = self.master(slot).or_else(|| self.master(None)) else {
            self.refresh();
            return Err(Failure::to_connect(&self.0.name, unserved()));
        };
        let line = node.line(deadline).await;
        if line.is_err() {
            // Another node may have taken its place.
            self.refresh();
        }
        line
    }

    /// Sends a command on a line, and follows the redirects of nodes that have not run it.
    pub(super) async fn send(
        &self,
        line: &mut Line,
        command: &Cmd,
        slot: Option<u16>,
        waits_for_keys: bool,
        deadline: Duration,
    ) -> Result<Value, Failure> {
        let mut patience = Deadline::new(deadline / 2);
        let mut retries = 0;
        let mut tries_again = 0;
        let mut backoff = MIN_BACKOFF;
        let mut is_asking = false;
        loop {
            let reply = if is_asking {
                line.send_asking(command, deadline).await
            } else {
                line.send(command, deadline).await
            };
            let failure = match reply {
                Ok(reply) => return Ok(reply),
                Err(failure) => failure,
            };
            if failure.fate == Fate::Unknown {
                // Another node may have taken its place.
                self.refresh();
            }
            let node = Arc::clone(line.node());
            let Some(redirect) = failure.redirect(node.address().0) else {
                return Err(failure);
            };
            if matches!(redirect, Redirect::TryAgain) && !waits_for_keys {
                return Err(failure);
            }
            let next = self.follow(redirect, &node, slot);
            is_asking = next.is_asking;
            retries += 1;
            tries_again += u32::from(next.needs_time);
            let needs_time = next.needs_time || retries > PROMPT_RETRIES;
            let left = patience.left();
            if retries > MAX_RETRIES
                || tries_again > MAX_TRIES_AGAIN
                || needs_time && left.is_zero()
            {
                return Err(failure);
            }
            if needs_time {
                real_time::sleep_until(Instant::now() + backoff.min(left)).await;
                backoff = (backoff * 2).min(MAX_BACKOFF);
            }
            let node = next.node.or_else(|| self.master(slot)).unwrap_or(node);
            *line = node.redirected_line(&mut Deadline::new(deadline)).await?;
        }
    }

    /// Returns where a command for a slot is sent next, which `node` has not run.
    fn follow(&self, redirect: Redirect, node: &Arc<Node>, slot: Option<u16>) -> NextNode {
        match redirect {
            Redirect::Moved(host, port) => {
                self.refresh();
                NextNode {
                    node: self.redirected(&host, port, slot),
                    is_asking: false,
                    needs_time: false,
                }
            }
            // Only some keys of the slot have moved.
            Redirect::Ask(host, port) => NextNode {
                node: self.redirected(&host, port, None),
                is_asking: true,
                needs_time: false,
            },
            Redirect::TryAgain => NextNode {
                node: None,
                is_asking: false,
                needs_time: true,
            },
            // A node that was reset does not know who serves the slot, but others do.
            Redirect::Unserved => {
                self.refresh();
                NextNode {
                    node: self.master_after(node),
                    is_asking: false,
                    needs_time: true,
                }
            }
        }
    }
}

/// The node that gets a command after a redirect.
struct NextNode {
    /// Missing if it is the master of the slot.
    node: Option<Arc<Node>>,
    /// Whether the node only imports the slot.
    is_asking: bool,
    /// Whether the keys are on two nodes, or no node serves the slot: that may last.
    needs_time: bool,
}

/// How many slots have a master in these ranges.
fn served(ranges: &[SlotRange]) -> usize {
    ranges.iter().map(|range| range.slots.len()).sum()
}

fn unserved() -> RedisError {
    let text = "Hash slot not served".to_owned();
    redis::make_extension_error("CLUSTERDOWN".to_owned(), Some(text))
}

async fn read_from(node: Arc<Node>, limit: Duration) -> Result<Vec<SlotRange>, Failure> {
    let mut command = redis::cmd("CLUSTER");
    command.arg("SLOTS");
    let line = node.line(&mut Deadline::new(limit)).await?;
    let reply = line.send(&command, READ_TIMEOUT).await?;
    let (host, _) = node.address();
    // No other command has a reply of this shape.
    parse(reply, host).ok_or_else(|| line.out_of_sync())
}

/// Reads the reply to CLUSTER SLOTS of the node at the host `asked`. Returns `None` if it is malformed.
fn parse(reply: Value, asked: &str) -> Option<Vec<SlotRange>> {
    let ranges: Vec<Vec<Value>> = from_redis_value(reply).ok()?;
    ranges
        .iter()
        .map(|range| parse_range(range, asked))
        .collect()
}

fn parse_range(range: &[Value], asked: &str) -> Option<SlotRange> {
    let [
        Value::Int(first),
        Value::Int(last),
        Value::Array(master),
        ..,
    ] = range
    else {
        return None;
    };
    let [host, Value::Int(port), ..] = &**master else {
        return None;
    };
    let host: Option<String> = from_redis_value_ref(host).ok()?;
    Some(SlotRange {
        slots: u16::try_from(*first).ok()?..=u16::try_from(*last).ok()?,
        host: known_host(&host.unwrap_or_default(), asked).to_owned(),
        port: u16::try_from(*port).ok()?,
    })
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
            // A node that no other node has met yet.
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
