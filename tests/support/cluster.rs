//! A Redis Cluster: of three masters with a replica each, or of masters only.

use std::ops::Range;

use super::node::{Node, wait_until};
use super::relay::Relay;
use super::reply_proxy::ReplyProxy;

/// The slots of a cluster.
const SLOTS: usize = 16_384;

/// After this many milliseconds without an answer, a node counts as down.
const NODE_TIMEOUT: &str = "1000";

/// No node counts as down because the machine is slow.
const PATIENT: [&str; 2] = ["--cluster-node-timeout", "20000"];

/// A master whose last slot has moved stays a master.
const STAYING: [&str; 2] = ["--cluster-allow-replica-migration", "no"];

/// Servers on free ports of this machine, ready to answer.
pub(crate) struct Cluster {
    /// The masters, then the replica of each in the same order, if they have one.
    pub(crate) nodes: Vec<Node>,
    masters: usize,
}

impl Cluster {
    pub(crate) fn start() -> Self {
        Self::start_with(&[])
    }

    /// With further arguments of the servers.
    pub(crate) fn start_with(arguments: &[&str]) -> Self {
        Self::start_with_each(|_| arguments.iter().map(ToString::to_string).collect())
    }

    /// With further arguments of each server.
    pub(crate) fn start_with_each(arguments: impl Fn(usize) -> Vec<String>) -> Self {
        Self::start_nodes(6, 3, arguments)
    }

    /// Masters without replicas, which do not count as down soon.
    pub(crate) fn of_masters(masters: usize, arguments: &[&str]) -> Self {
        let arguments = PATIENT.iter().chain(&STAYING).chain(arguments);
        let arguments: Vec<_> = arguments.map(ToString::to_string).collect();
        Self::start_nodes(masters, masters, |_| arguments.clone())
    }

    /// The same, which speak TLS on these ports. Clients and nodes use no others.
    #[cfg(feature = "tls")]
    pub(crate) fn of_tls_masters(ports: &[u16], arguments: impl Fn(u16) -> Vec<String>) -> Self {
        let of_each = PATIENT.iter().chain(&STAYING);
        let of_each = of_each.chain(&["--tls-cluster", "yes"]);
        let of_each: Vec<_> = of_each.map(ToString::to_string).collect();
        let arguments = |index| [&of_each[..], &arguments(ports[index])].concat();
        Self::start_nodes(ports.len(), ports.len(), arguments)
    }

    fn start_nodes(nodes: usize, masters: usize, arguments: impl Fn(usize) -> Vec<String>) -> Self {
        let of_each = [
            "--cluster-enabled",
            "yes",
            "--cluster-node-timeout",
            NODE_TIMEOUT,
            "--repl-diskless-sync-delay",
            "0",
        ];
        let start = |index| {
            let further = arguments(index);
            let further = further.iter().map(String::as_str);
            let arguments: Vec<_> = of_each.into_iter().chain(further).collect();
            Node::start(&arguments)
        };
        let nodes = (0..nodes).map(start).collect();
        let cluster = Self { nodes, masters };
        cluster.join();
        cluster
    }

    /// What `redis-cli --cluster create` does.
    fn join(&self) {
        let (masters, replicas) = self.nodes.split_at(self.masters);
        for (index, master) in masters.iter().enumerate() {
            let slots: Vec<String> = self.slots_of(index).map(|slot| slot.to_string()).collect();
            let slots = slots.iter().map(String::as_str);
            let command: Vec<&str> = ["CLUSTER", "ADDSLOTS"].into_iter().chain(slots).collect();
            let () = master.ask(&command);
        }
        let port = port_for_nodes(&self.nodes[0]);
        for (epoch, node) in (1..).zip(&self.nodes) {
            let () = node.ask(&["CLUSTER", "SET-CONFIG-EPOCH", &epoch.to_string()]);
            let () = node.ask(&["CLUSTER", "MEET", "127.0.0.1", &port]);
        }
        for node in &self.nodes {
            wait_until("all nodes know each other", || {
                says(
                    node,
                    &format!("cluster_known_nodes:{}\r\n", self.nodes.len()),
                )
            });
        }
        for (master, replica) in masters.iter().zip(replicas) {
            let id: String = master.ask(&["CLUSTER", "MYID"]);
            let () = replica.ask(&["CLUSTER", "REPLICATE", &id]);
        }
        for node in &self.nodes {
            wait_until("the cluster is up", || says(node, "cluster_state:ok\r\n"));
        }
        for replica in replicas {
            wait_until("the replicas follow", || {
                let info: String = replica.ask(&["INFO", "replication"]);
                info.contains("master_link_status:up\r\n")
            });
        }
    }

    /// `redis+cluster://a,b,c`
    pub(crate) fn url(&self) -> String {
        let addresses: Vec<_> = self.nodes.iter().map(Node::address).collect();
        format!("redis+cluster://{}", addresses.join(","))
    }

    /// Puts a relay in front of each master. Returns them and the URL that they have together.
    pub(crate) async fn behind_relays(&self) -> (Vec<Relay>, String) {
        let mut relays = Vec::new();
        for master in &self.nodes[..3] {
            relays.push(Relay::to(master.port()).await);
        }
        let ports: Vec<_> = relays.iter().map(Relay::port).collect();
        let url = self.announcing(&ports);
        (relays, url)
    }

    /// Puts a proxy in front of each master, which may lose replies. Returns them and the URL that they have together.
    pub(crate) async fn behind_reply_proxies(&self) -> (Vec<ReplyProxy>, String) {
        let mut proxies = Vec::new();
        for master in &self.nodes[..self.masters] {
            proxies.push(ReplyProxy::before(master.port()).await);
        }
        let ports: Vec<_> = proxies.iter().map(ReplyProxy::port).collect();
        let url = self.announcing(&ports);
        (proxies, url)
    }

    /// Has the first masters announce these ports. Returns the URL of the cluster there.
    fn announcing(&self, ports: &[u16]) -> String {
        for (master, port) in self.nodes.iter().zip(ports) {
            let port = port.to_string();
            let () = master.ask(&["CONFIG", "SET", "cluster-announce-port", &port]);
        }
        let announced: Vec<_> = ports.iter().map(|port| format!(":{port}@")).collect();
        for node in &self.nodes {
            wait_until("all nodes announce the other ports", || {
                let nodes: String = node.ask(&["CLUSTER", "NODES"]);
                announced.iter().all(|port| nodes.contains(port))
                    && says(node, "cluster_state:ok\r\n")
            });
        }
        let addresses: Vec<_> = ports
            .iter()
            .map(|port| format!("127.0.0.1:{port}"))
            .collect();
        format!("redis+cluster://{}", addresses.join(","))
    }

    /// The slot of a key, or of its hash tag.
    pub(crate) fn slot_of(&self, key: &str) -> usize {
        self.nodes[0].ask(&["CLUSTER", "KEYSLOT", key])
    }

    /// The master at the start of the slot of a key, or of its hash tag.
    pub(crate) fn master_of(&self, key: &str) -> usize {
        let slot = self.slot_of(key);
        let has = |master: &usize| self.slots_of(*master).contains(&slot);
        (0..self.masters).find(has).expect("a master")
    }

    /// The slots of a master at the start.
    pub(crate) fn slots_of(&self, master: usize) -> Range<usize> {
        master * SLOTS / self.masters..(master + 1) * SLOTS / self.masters
    }
}

/// A slot that moves from one master to another, step by step as `redis-cli` does.
pub(crate) struct Move<'a> {
    pub(crate) from: &'a Node,
    pub(crate) to: &'a Node,
    slot: String,
}

impl<'a> Move<'a> {
    pub(crate) fn begin(from: &'a Node, to: &'a Node, slot: usize) -> Self {
        let slot = slot.to_string();
        let ids: [String; 2] = [from, to].map(|node| node.ask(&["CLUSTER", "MYID"]));
        let () = to.ask(&["CLUSTER", "SETSLOT", &slot, "IMPORTING", &ids[0]]);
        let () = from.ask(&["CLUSTER", "SETSLOT", &slot, "MIGRATING", &ids[1]]);
        Self { from, to, slot }
    }

    /// The keys that are still on the former master.
    pub(crate) fn keys(&self) -> Vec<String> {
        let keys = ["CLUSTER", "GETKEYSINSLOT", &self.slot, "100"];
        self.from.ask(&keys)
    }

    /// Moves these keys.
    pub(crate) fn take(&self, keys: &[&str]) {
        let port = self.to.port().to_string();
        let migrate = ["MIGRATE", "127.0.0.1", &port, "", "0", "5000", "KEYS"];
        let () = self.from.ask(&[&migrate, keys].concat());
    }

    /// Moves all keys.
    pub(crate) fn take_all(&self) {
        loop {
            let keys = self.keys();
            if keys.is_empty() {
                return;
            }
            self.take(&keys.iter().map(String::as_str).collect::<Vec<_>>());
        }
    }

    /// Moves the other keys and the slot. Masters that are told know it at once.
    pub(crate) fn end(self, others: &[&Node]) {
        self.take_all();
        let id: String = self.to.ask(&["CLUSTER", "MYID"]);
        for node in [self.to, self.from].iter().chain(others) {
            let () = node.ask(&["CLUSTER", "SETSLOT", &self.slot, "NODE", &id]);
        }
        // Else the next move may be back, with an older epoch than this one, and the two would disagree for ever.
        let epoch = |node: &Node| {
            let info: String = node.ask(&["CLUSTER", "INFO"]);
            let epoch = info.split("cluster_current_epoch:").nth(1);
            epoch.expect("an epoch").lines().next().map(str::to_owned)
        };
        wait_until("the former master has heard from the new one", || {
            epoch(self.from) == epoch(self.to)
        });
    }
}

/// Moves slots of one master to another: those without keys at once, the others as `redis-cli` does.
pub(crate) fn hand_over(from: &Node, to: &Node, slots: Range<usize>, others: &[&Node]) {
    // What it says about its slots counts more than what others say from now on.
    let () = to.ask(&["CLUSTER", "BUMPEPOCH"]);
    let id: String = to.ask(&["CLUSTER", "MYID"]);
    let of_slots = |node: &Node, slots: &[usize], command: &str, arguments: &[&str]| {
        let mut pipe = redis::pipe();
        for slot in slots {
            pipe.cmd("CLUSTER").arg(command).arg(slot).arg(arguments);
        }
        let replies: redis::RedisResult<Vec<redis::Value>> = pipe.query(&mut node.connect());
        replies.expect("the node knows its slots")
    };
    let slots: Vec<usize> = slots.collect();
    let counts = of_slots(from, &slots, "COUNTKEYSINSLOT", &[]);
    let counted: Vec<_> = slots.into_iter().zip(counts).collect();
    let with = |has_keys: bool| {
        let slots = counted.iter();
        let slots = slots.filter(|(_, count)| (*count != redis::Value::Int(0)) == has_keys);
        slots.map(|(slot, _)| *slot).collect::<Vec<_>>()
    };
    for node in [to, from].iter().chain(others) {
        of_slots(node, &with(false), "SETSLOT", &["NODE", &id]);
    }
    for slot in with(true) {
        Move::begin(from, to, slot).end(others);
    }
}

/// Adds a master without slots, which clients do not know.
pub(crate) fn join_empty(nodes: &[Node]) -> Node {
    let arguments = [&["--cluster-enabled", "yes"][..], &PATIENT, &STAYING];
    let node = Node::start(&arguments.concat());
    let port = nodes[0].port().to_string();
    let () = node.ask(&["CLUSTER", "MEET", "127.0.0.1", &port]);
    let known = format!("cluster_known_nodes:{}\r\n", nodes.len() + 1);
    for other in nodes.iter().chain([&node]) {
        wait_until("all nodes know each other", || {
            says(other, &known) && says(other, "cluster_state:ok\r\n")
        });
    }
    node
}

/// The port of a node that others are told.
fn port_for_nodes(node: &Node) -> String {
    // A server that was built without TLS has no such setting.
    let speaks_tls: Vec<String> = node.ask(&["CONFIG", "GET", "tls-cluster"]);
    match speaks_tls.last().map(String::as_str) {
        Some("yes") => {
            let [_, port]: [String; 2] = node.ask(&["CONFIG", "GET", "tls-port"]);
            port
        }
        _ => node.port().to_string(),
    }
}

fn says(node: &Node, line: &str) -> bool {
    let info: String = node.ask(&["CLUSTER", "INFO"]);
    info.contains(line)
}
