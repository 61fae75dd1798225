//! A Redis Cluster: its seed nodes, and the settings for all nodes.

use std::fmt;

use redis::aio::MultiplexedConnection;
use redis::{ConnectionInfo, ProtocolVersion, RedisResult};

use super::single::{Server, timed_out, with_address};
use crate::store::redis::protocol::errors::{ConnectError, Handshake};
use crate::store::redis::protocol::{CLUSTER, ServerName};

/// A cluster: its seed nodes, and the settings for all nodes.
pub(crate) struct Cluster {
    seeds: Vec<Server>,
    settings: NodeSettings,
    name: ServerName,
    addresses: String,
}

/// The settings for every node.
struct NodeSettings {
    /// The settings of the first seed node.
    info: ConnectionInfo,
    protocol: Option<ProtocolVersion>,
}

impl Cluster {
    /// A cluster with these seed nodes.
    pub(crate) fn new(
        nodes: &[ConnectionInfo],
        protocol: Option<ProtocolVersion>,
    ) -> RedisResult<Self> {
        let addresses: Vec<String> = nodes.iter().map(|node| node.addr().to_string()).collect();
        let first = nodes.first().ok_or_else(timed_out)?;
        let seeds = nodes.iter().map(|node| Server::new(node, protocol));
        Ok(Self {
            seeds: seeds.collect::<RedisResult<_>>()?,
            settings: NodeSettings {
                info: first.clone(),
                protocol,
            },
            name: ServerName::new(CLUSTER, &addresses.join(", ")),
            addresses: addresses.join(","),
        })
    }

    /// Connects to the first seed node that answers. If none does, returns the error of the first one.
    ///
    /// Returns the host of the node as well, which a node leaves out where it names itself.
    pub(super) async fn connect(&self) -> Result<(MultiplexedConnection, String), ConnectError> {
        let mut first_failure = None;
        for seed in &self.seeds {
            match seed.connect(Box::new(|| ())).await {
                Ok(connection) => return Ok((connection, seed.host())),
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

    /// Returns the node at an address, with the settings for all nodes.
    pub(super) fn node(&self, host: &str, port: u16) -> RedisResult<Server> {
        let NodeSettings { info, protocol } = &self.settings;
        Server::new(&with_address(info, host.to_owned(), port), *protocol)
    }

    pub(super) fn name(&self) -> &ServerName {
        &self.name
    }
}

impl fmt::Debug for Cluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The addresses only: the settings hold the password.
        write!(f, "cluster of {}", self.addresses)
    }
}
