//! A Redis Cluster: its seed nodes, and the settings for all nodes.

use std::fmt;
use std::sync::Arc;

use redis::RedisResult;
use redis::aio::MultiplexedConnection;

use super::super::server_settings::ServerSettings;
use super::super::single::{Server, timed_out};
use crate::store::circuit_breaker::Nodes;
use crate::store::redis::protocol::errors::{ConnectError, Handshake};
use crate::store::redis::protocol::{CLUSTER, SLOTS, ServerName};

/// A cluster: its seed nodes, and the settings for all nodes.
pub(crate) struct Cluster {
    seeds: Vec<Server>,
    /// The settings of the first seed node, which hold for all nodes.
    settings: ServerSettings,
    name: ServerName,
    addresses: String,
    /// The masters by slot, as the last map said that any connection has read.
    nodes: Arc<Nodes>,
}

impl Cluster {
    /// A cluster with these seed nodes.
    pub(crate) fn new(nodes: &[ServerSettings]) -> RedisResult<Self> {
        let first = nodes.first().ok_or_else(timed_out)?;
        let addresses = nodes.iter().map(|node| node.info().addr().to_string());
        let addresses: Vec<String> = addresses.collect();
        Ok(Self {
            seeds: nodes.iter().cloned().map(Server::new).collect(),
            settings: first.clone(),
            name: ServerName::new(CLUSTER, &addresses.join(", ")),
            addresses: addresses.join(","),
            nodes: Arc::new(Nodes::new(SLOTS)),
        })
    }

    /// Connects to the first seed node that answers. If none does, returns the error of the first one.
    pub(crate) async fn connect(&self) -> Result<MultiplexedConnection, ConnectError> {
        let mut first_failure = None;
        for seed in &self.seeds {
            match seed.connect(Box::new(|| ())).await {
                Ok(connection) => return Ok(connection),
                Err(failure) => {
                    first_failure.get_or_insert(failure);
                }
            }
        }
        Err(first_failure.unwrap_or_else(|| ConnectError {
            server: self.name.clone(),
            error: timed_out(),
            handshake: Handshake::Unknown,
        }))
    }

    /// The seed nodes, in the order of the URL.
    pub(super) fn seeds(&self) -> &[Server] {
        &self.seeds
    }

    /// Returns the node at an address, with the settings for all nodes.
    pub(super) fn node(&self, host: &str, port: u16) -> Server {
        Server::announced(self.settings.with_address(host.to_owned(), port))
    }

    pub(crate) fn nodes(&self) -> &Arc<Nodes> {
        &self.nodes
    }

    pub(crate) fn name(&self) -> &ServerName {
        &self.name
    }
}

impl fmt::Debug for Cluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The addresses only: the settings hold the password.
        write!(f, "cluster of {}", self.addresses)
    }
}
