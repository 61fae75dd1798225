//! A master and its replica, monitored by three sentinels.

use std::collections::HashMap;
use std::fs;
use std::path::Path;

use super::node::{Node, wait_until};

/// What the sentinels call the master.
const NAME: &str = "mymaster";

/// After this many milliseconds without an answer, a server counts as down for a sentinel.
const DOWN_AFTER: u32 = 500;

/// A replica has the master's data at once: one that waited for it would refuse to become master.
const OF_EACH: [&str; 2] = ["--repl-diskless-sync-delay", "0"];

/// Servers and sentinels on free ports of this machine, which know each other.
pub(crate) struct Sentinels {
    /// At first the master and its replica.
    pub(crate) servers: Vec<Node>,
    pub(crate) sentinels: Vec<Node>,
}

impl Sentinels {
    pub(crate) fn start() -> Self {
        Self::start_with(&[], "")
    }

    /// With further arguments of the servers, and further lines in the settings of the sentinels.
    pub(crate) fn start_with(of_servers: &[&str], of_sentinels: &str) -> Self {
        let master = Node::start(&[of_servers, &OF_EACH].concat());
        let port = master.port().to_string();
        let of_replica = ["--replicaof", "127.0.0.1", &port];
        let replica = Node::start(&[of_servers, &OF_EACH, &of_replica].concat());
        let servers = vec![master, replica];
        let mut sentinels: Vec<Node> = Vec::new();
        for id in 0..3 {
            let others: Vec<_> = sentinels.iter().enumerate().collect();
            let settings = settings(&servers, &others, id, of_sentinels);
            sentinels.push(start_sentinel(&settings));
        }
        let sentinels = Self { servers, sentinels };
        sentinels.wait_until_ready();
        sentinels
    }

    /// Until a failover is possible: all know each other, and the replica has the master's data.
    fn wait_until_ready(&self) {
        for sentinel in &self.sentinels {
            wait_until("a sentinel knows the others", || {
                let master = master_of(sentinel);
                let says = |field: &str, text: &str| master[field] == text;
                says("num-slaves", "1")
                    && says("num-other-sentinels", "2")
                    && says("flags", "master")
            });
        }
        wait_until("the replica follows", || {
            let info: redis::InfoDict = self.servers[1].ask(&["INFO", "replication"]);
            info.get("master_link_status") == Some("up".to_owned())
        });
    }

    /// Moves a sentinel to another port, with its id. Returns when the others know.
    pub(crate) fn move_sentinel(&mut self, id: usize) {
        self.sentinels[id].kill();
        let others = self.sentinels.iter().enumerate();
        let others: Vec<_> = others.filter(|(other, _)| *other != id).collect();
        let settings = settings(&self.servers, &others, id, "");
        let moved = start_sentinel(&settings);
        let port = moved.port().to_string();
        for (_, other) in others {
            wait_until("the others know where a sentinel is", || {
                let known: Vec<HashMap<String, String>> =
                    other.ask(&["SENTINEL", "SENTINELS", NAME]);
                known.iter().any(|sentinel| sentinel["port"] == port)
            });
        }
        self.sentinels[id] = moved;
    }

    /// Makes the sentinels take a master for dead that is silent for half a second, as they do from the start.
    pub(crate) fn watch_closely(&self) {
        self.set_down_after(DOWN_AFTER);
    }

    /// Makes them wait a minute: else a busy machine makes them fail over without a fault, or once more.
    pub(crate) fn be_patient(&self) {
        self.set_down_after(60_000);
    }

    fn set_down_after(&self, millis: u32) {
        for sentinel in &self.sentinels {
            let millis = millis.to_string();
            let () = sentinel.ask(&["SENTINEL", "SET", NAME, "down-after-milliseconds", &millis]);
        }
    }

    /// `redis+sentinel://a,b,c/mymaster`
    pub(crate) fn url(&self) -> String {
        format!("redis+sentinel://{}/{NAME}", self.addresses())
    }

    /// Where the sentinels are: `a,b,c`.
    pub(crate) fn addresses(&self) -> String {
        let addresses: Vec<_> = self.sentinels.iter().map(Node::address).collect();
        addresses.join(",")
    }

    /// The server that most of the sentinels now take for the master.
    pub(crate) fn master(&self) -> &Node {
        let told: Vec<_> = self.sentinels.iter().map(master_of).collect();
        let is_it = |server: &&Node| {
            let port = server.port().to_string();
            told.iter().filter(|master| master["port"] == port).count() >= 2
        };
        self.servers.iter().find(is_it).expect("a master")
    }
}

fn start_sentinel(settings: &str) -> Node {
    let write = |directory: &Path, _| {
        fs::write(directory.join("sentinel.conf"), settings).expect("a file");
    };
    Node::start_with_files(&["sentinel.conf", "--sentinel"], write)
}

/// What a sentinel says of the master.
fn master_of(sentinel: &Node) -> HashMap<String, String> {
    sentinel.ask(&["SENTINEL", "MASTER", NAME])
}

/// The settings of a sentinel, including the other sentinels with their ids: discovery would take seconds.
fn settings(servers: &[Node], others: &[(usize, &Node)], id: usize, further: &str) -> String {
    let id_of = |id: usize| id.to_string().repeat(40);
    let [master, replica] = servers else {
        panic!("a master and a replica");
    };
    let mut settings = format!(
        "sentinel myid {}\n\
         sentinel monitor {NAME} 127.0.0.1 {} 2\n\
         sentinel down-after-milliseconds {NAME} {DOWN_AFTER}\n\
         sentinel failover-timeout {NAME} 5000\n\
         sentinel known-replica {NAME} 127.0.0.1 {}\n",
        id_of(id),
        master.port(),
        replica.port()
    );
    for (id, other) in others {
        let (port, id) = (other.port(), id_of(*id));
        settings += &format!("sentinel known-sentinel {NAME} 127.0.0.1 {port} {id}\n");
    }
    settings + further
}
