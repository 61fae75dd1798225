//! A Redis Cluster of three masters with a replica each.

use super::node::{Node, wait_until};
use super::relay::Relay;

/// The slots of a cluster.
const SLOTS: usize = 16_384;

/// After this many milliseconds without an answer, a node counts as down.
const NODE_TIMEOUT: &str = "1000";

/// Six servers on free ports of this machine, ready to answer.
pub(crate) struct Cluster {
    /// Three masters, then the replica of each in the same order.
    pub(crate) nodes: Vec<Node>,
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
        let nodes = (0..6).map(start).collect();
        let cluster = Self { nodes };
        cluster.join();
        cluster
    }

    /// What `redis-cli --cluster create` does.
    fn join(&self) {
        let (masters, replicas) = self.nodes.split_at(3);
        for (index, master) in masters.iter().enumerate() {
            let slots: Vec<String> = slots_of(index).map(|slot| slot.to_string()).collect();
            let slots = slots.iter().map(String::as_str);
            let command: Vec<&str> = ["CLUSTER", "ADDSLOTS"].into_iter().chain(slots).collect();
            let () = master.ask(&command);
        }
        for (epoch, node) in (1..).zip(&self.nodes) {
            let () = node.ask(&["CLUSTER", "SET-CONFIG-EPOCH", &epoch.to_string()]);
            let port = self.nodes[0].port().to_string();
            let () = node.ask(&["CLUSTER", "MEET", "127.0.0.1", &port]);
        }
        for node in &self.nodes {
            wait_until("all nodes know each other", || {
                says(node, "cluster_known_nodes:6\r\n")
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
        for (master, relay) in self.nodes.iter().zip(&relays) {
            let port = relay.port().to_string();
            let () = master.ask(&["CONFIG", "SET", "cluster-announce-port", &port]);
        }
        let ports: Vec<_> = relays
            .iter()
            .map(|relay| format!(":{}@", relay.port()))
            .collect();
        for node in &self.nodes {
            wait_until("all nodes announce the relays", || {
                let nodes: String = node.ask(&["CLUSTER", "NODES"]);
                ports.iter().all(|port| nodes.contains(port)) && says(node, "cluster_state:ok\r\n")
            });
        }
        let addresses: Vec<_> = relays
            .iter()
            .map(|relay| format!("127.0.0.1:{}", relay.port()))
            .collect();
        (relays, format!("redis+cluster://{}", addresses.join(",")))
    }

    /// The master at the start of the slot of a key, or of its hash tag.
    pub(crate) fn master_of(&self, key: &str) -> usize {
        let slot: usize = self.nodes[0].ask(&["CLUSTER", "KEYSLOT", key]);
        let has = |master: &usize| slots_of(*master).contains(&slot);
        (0..3).find(has).expect("a master")
    }
}

/// The slots of a master at the start.
fn slots_of(master: usize) -> std::ops::Range<usize> {
    master * SLOTS / 3..(master + 1) * SLOTS / 3
}

fn says(node: &Node, line: &str) -> bool {
    let info: String = node.ask(&["CLUSTER", "INFO"]);
    info.contains(line)
}
