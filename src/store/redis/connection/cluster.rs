//! Connections to Redis Cluster. This file follows redirects.
//!
//! The cluster client of `redis` would follow them too, but it also resends commands that a lost
//! connection may have executed. So its retries are off, and a command is resent only if a node
//! says that it has not run it.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::cluster::{ClusterClient, ClusterConfig};
use redis::cluster_async::ClusterConnection;
use redis::cluster_routing::{RoutingInfo, SingleNodeRoutingInfo};
use redis::{
    Arg, Cmd, ConnectionInfo, ErrorKind, FromRedisValue, ProtocolVersion, RedisError, RedisResult,
    ServerErrorKind, Value,
};
use tokio::time;

use super::single::{Server, diagnose_if_slow, tcp_settings, timed_out, with_address};
use crate::store::redis::protocol::errors::{ConnectError, Handshake};
use crate::store::redis::protocol::{CLUSTER, ServerName};

/// The limit on connecting to one node. While the client looks for the masters, all nodes wait for
/// one that hangs.
const NODE_CONNECT_TIMEOUT: Duration = Duration::from_millis(250);

/// The limit on connecting to all nodes and reading the slot map.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);

/// The time that the client waits for a node beyond the deadline of the calls.
const RESPONSE_TIMEOUT_MARGIN: Duration = Duration::from_millis(100);

/// The limit on resending a command that nodes have not run. Redirects lead to a slot that moves.
const MAX_RETRIES: u32 = 3;

/// The backoff before a resend if the cluster asks for time. A redirect is followed at once.
const RETRY_BACKOFF: Duration = Duration::from_millis(15);

/// The limit on calls in flight to one node over one connection.
///
/// While the client looks for the masters it reads no replies, and a node with many unread replies
/// does not send the slot map. With 40, some losses of a master stalled the other shards for a
/// second; with 8, none was seen to. More [connections](crate::RedisStore::connections) carry more.
const MAX_IN_FLIGHT_PER_NODE: usize = 8;

const ANY_NODE: RoutingInfo = RoutingInfo::SingleNode(SingleNodeRoutingInfo::Random);

/// The name in errors of a node that a cluster announces.
const ANNOUNCED: &str = "the announced cluster node";

/// A cluster: its seed nodes, and the settings for all nodes.
pub(crate) struct Cluster {
    client: ClusterClient,
    /// For nodes that do not know RESP3, unless the protocol was configured.
    resp2_client: Option<ClusterClient>,
    /// The first seed node, whose errors explain better why connecting failed.
    first: Server,
    /// Whether an attempt has succeeded, so that the nodes can be reached as they are announced.
    has_connected: AtomicBool,
    settings: Arc<NodeSettings>,
    name: ServerName,
    addresses: String,
}

/// The settings for every node.
struct NodeSettings {
    /// The settings of the first seed node.
    info: ConnectionInfo,
    protocol: Option<ProtocolVersion>,
}

/// Connections to all nodes of a cluster.
pub(super) struct ClusterNodes {
    connection: ClusterConnection,
    settings: Arc<NodeSettings>,
}

/// The reply of a node that has not run a command.
#[derive(Debug, PartialEq, Eq)]
enum Redirect {
    /// Another node has the slot.
    Moved(String, u16),
    /// Another node has the keys of a slot that is moving.
    Ask(String, u16),
    /// Another node has the slot or the keys, but the reply names no address: read the slot map
    /// again.
    Reroute,
    /// The keys are on two nodes, or no node serves the slot yet.
    TryAgain,
}

impl Cluster {
    /// A cluster with these seed nodes.
    pub(crate) fn new(
        nodes: &[ConnectionInfo],
        protocol: Option<ProtocolVersion>,
        #[cfg(feature = "tls")] certificates: Option<&redis::TlsCertificates>,
    ) -> RedisResult<Self> {
        let client = |protocol| {
            let client = ClusterClient::builder(nodes.to_vec())
                .retries(0)
                .connection_timeout(NODE_CONNECT_TIMEOUT)
                .connection_concurrency_limit(MAX_IN_FLIGHT_PER_NODE)
                .tcp_settings(tcp_settings())
                .use_protocol(protocol);
            #[cfg(feature = "tls")]
            let client = match certificates {
                Some(certificates) => client.certs(certificates.clone()),
                None => client,
            };
            client.build()
        };
        let addresses: Vec<String> = nodes.iter().map(|node| node.addr().to_string()).collect();
        let first = nodes.first().ok_or_else(timed_out)?;
        Ok(Self {
            client: client(protocol.unwrap_or(ProtocolVersion::RESP3))?,
            resp2_client: match protocol {
                None => Some(client(ProtocolVersion::RESP2)?),
                Some(_) => None,
            },
            first: Server::new(first, protocol)?,
            has_connected: AtomicBool::new(false),
            settings: Arc::new(NodeSettings {
                info: first.clone(),
                protocol,
            }),
            name: ServerName::new(CLUSTER, &addresses.join(", ")),
            addresses: addresses.join(","),
        })
    }

    /// Connects to all nodes, for calls of this deadline.
    pub(super) async fn connect(&self, deadline: Duration) -> Result<ClusterNodes, ConnectError> {
        let connection = Box::pin(self.connect_to_all(deadline)).await?;
        let settings = Arc::clone(&self.settings);
        Ok(ClusterNodes {
            connection,
            settings,
        })
    }

    pub(super) fn name(&self) -> &ServerName {
        &self.name
    }

    async fn connect_to_all(&self, deadline: Duration) -> Result<ClusterConnection, ConnectError> {
        let failed = |error| ConnectError {
            server: self.name.clone(),
            error,
            handshake: Handshake::Unknown,
        };
        let failure = match Box::pin(self.open_first(deadline)).await? {
            Ok(connection) => {
                self.has_connected.store(true, Ordering::Relaxed);
                return Ok(connection);
            }
            Err(failure) => failure,
        };
        // The cluster client hides what the node replied; a plain connection shows it.
        let first = self.first.connect(Box::new(|| ())).await?;
        Box::pin(self.try_announced(first)).await?;
        match &self.resp2_client {
            Some(resp2_client) => open(resp2_client, deadline).await.map_err(failed),
            None => Err(failed(failure)),
        }
    }

    /// Connects to all nodes. Until that has succeeded, examines whether a node can be asked, and whether a
    /// handshake that is slow comes from a port without TLS.
    async fn open_first(
        &self,
        deadline: Duration,
    ) -> Result<RedisResult<ClusterConnection>, ConnectError> {
        if self.has_connected.load(Ordering::Relaxed) {
            return Ok(open(&self.client, deadline).await);
        }
        let attempt = Box::pin(async {
            let mut connection = open(&self.client, deadline).await?;
            // The client opens without any connection if it can reach none of the nodes that are announced.
            let ping = connection.route_command(redis::cmd("PING"), ANY_NODE).await;
            match ping {
                Err(error) if error.kind() == ErrorKind::ClusterConnectionNotFound => Err(error),
                _ => Ok(connection),
            }
        });
        if !self.first.is_tls() {
            return Ok(attempt.await);
        }
        let diagnosis = Box::pin(async {
            let first = self.first.connect(Box::new(|| ()));
            let outcome = match first.await {
                Ok(first) => self.try_announced(first).await,
                Err(failure) => Err(failure),
            };
            outcome
                .err()
                .filter(|failure| failure.handshake.is_mismatch())
        });
        diagnose_if_slow(attempt, diagnosis).await
    }

    /// Connects to the masters that the first node announces, and fails with the error of the first that cannot be
    /// reached.
    async fn try_announced(&self, mut first: MultiplexedConnection) -> Result<(), ConnectError> {
        let NodeSettings { info, protocol } = &*self.settings;
        let mut slots = redis::cmd("CLUSTER");
        slots.arg("SLOTS");
        let slots = time::timeout(NODE_CONNECT_TIMEOUT, slots.query_async(&mut first)).await;
        let Ok(Ok(slots)) = slots else {
            return Ok(());
        };
        for (host, port) in announced_masters(slots) {
            let Ok(server) = Server::new(&with_address(info, host, port), *protocol) else {
                continue;
            };
            let connected = server.connect(Box::new(|| ())).await;
            connected.map_err(|failure| ConnectError {
                server: failure.server.of_kind(ANNOUNCED),
                handshake: match failure.handshake {
                    Handshake::TlsToPlain => Handshake::TlsToAnnouncedPlain,
                    handshake => handshake,
                },
                ..failure
            })?;
        }
        Ok(())
    }
}

/// Returns the host and port of each master in a reply to `CLUSTER SLOTS`.
fn announced_masters(slots: Value) -> Vec<(String, u16)> {
    let fields = |value| match value {
        Value::Array(fields) => Some(fields.into_iter()),
        _ => None,
    };
    let mut masters = Vec::new();
    for range in fields(slots).into_iter().flatten() {
        let master = fields(range).and_then(|mut range| fields(range.nth(2)?));
        let master = master.and_then(|mut master| {
            let host = String::from_redis_value(master.next()?).ok()?;
            let port = u16::from_redis_value(master.next()?).ok()?;
            (!host.is_empty()).then_some((host, port))
        });
        masters.extend(master.filter(|master| !masters.contains(master)));
    }
    masters
}

async fn open(client: &ClusterClient, deadline: Duration) -> RedisResult<ClusterConnection> {
    let config = ClusterConfig::new()
        .set_connection_timeout(NODE_CONNECT_TIMEOUT)
        // Longer than the deadline, which callers apply. Not much longer, because all calls wait
        // while the client asks a node for the slot map.
        .set_response_timeout(deadline.saturating_add(RESPONSE_TIMEOUT_MARGIN));
    let opened = client.get_async_connection_with_config(config);
    let opened = time::timeout(CONNECT_TIMEOUT, opened).await;
    opened.unwrap_or_else(|_| Err(timed_out()))
}

impl ClusterNodes {
    /// Sends a command to the node that has its key. Does not resend a command that a node may have
    /// run.
    pub(super) async fn send(&self, command: &Cmd) -> RedisResult<Value> {
        let mut reply = self.send_by_slot(command).await;
        for _ in 0..MAX_RETRIES {
            let redirect = reply.as_ref().err().and_then(Redirect::of);
            reply = match redirect {
                None => break,
                Some(Redirect::Moved(host, port)) => {
                    let mut node = self.connect_to(host, port).await?;
                    command.query_async(&mut node).await
                }
                Some(Redirect::Ask(host, port)) => {
                    let mut node = self.connect_to(host, port).await?;
                    redis::cmd("ASKING").exec_async(&mut node).await?;
                    command.query_async(&mut node).await
                }
                Some(Redirect::Reroute) => self.send_by_slot(command).await,
                Some(Redirect::TryAgain) => {
                    time::sleep(RETRY_BACKOFF).await;
                    self.send_by_slot(command).await
                }
            };
        }
        reply
    }

    /// Sends a command by the slot map, which the client refreshes after a redirect.
    async fn send_by_slot(&self, command: &Cmd) -> RedisResult<Value> {
        command.query_async(&mut self.connection.clone()).await
    }

    /// Connects to the node of a redirect, for one command. The client has no connection to a node
    /// that owns no slot yet.
    async fn connect_to(&self, host: String, port: u16) -> RedisResult<MultiplexedConnection> {
        let NodeSettings { info, protocol } = &*self.settings;
        let server = Server::new(&with_address(info, host, port), *protocol)?;
        let connected = server.connect(Box::new(|| ())).await;
        connected.map_err(|failure| failure.error)
    }
}

impl Redirect {
    /// Returns the redirect that an error stands for. After any other error the command may have
    /// run: the client fails all commands in flight with the error of a slot map refresh.
    fn of(error: &RedisError) -> Option<Self> {
        let ErrorKind::Server(kind) = error.kind() else {
            return None;
        };
        let node = || {
            let (node, _) = error.redirect_node()?;
            let (host, port) = node.rsplit_once(':')?;
            let host = host.trim_matches(['[', ']']);
            (!host.is_empty()).then_some((host.to_owned(), port.parse().ok()?))
        };
        let to = |redirect: fn(String, u16) -> Self| {
            node().map_or(Self::Reroute, |(host, port)| redirect(host, port))
        };
        match kind {
            ServerErrorKind::Moved => Some(to(Self::Moved)),
            ServerErrorKind::Ask => Some(to(Self::Ask)),
            ServerErrorKind::TryAgain | ServerErrorKind::ClusterDown => Some(Self::TryAgain),
            _ => None,
        }
    }
}

/// Builds a liveness probe for the node that has the key of `command`: an EVALSHA of no script.
///
/// Any node might answer a PING. The probe needs no right beyond those for the scripts, and has no
/// effect.
pub(super) fn probe_for(command: &Cmd) -> Option<Cmd> {
    const NO_SCRIPT: &str = "0000000000000000000000000000000000000000";
    let mut args = command.args_iter();
    let key = match args.next()? {
        Arg::Simple(b"EVALSHA" | b"EVAL") => args.nth(2)?,
        Arg::Simple(b"UNLINK") => args.next()?,
        _ => return None,
    };
    let Arg::Simple(key) = key else {
        return None;
    };
    let mut probe = redis::cmd("EVALSHA");
    probe.arg(NO_SCRIPT).arg(1).arg(key);
    Some(probe)
}

impl fmt::Debug for Cluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The addresses only: the client holds the password.
        write!(f, "cluster of {}", self.addresses)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_command_that_a_node_has_not_run_is_resent() {
        let moved = |host: &str| Some(Redirect::Moved(host.to_owned(), 7_001));
        for (code, detail, expected) in [
            ("MOVED", "12182 10.0.0.2:7001", moved("10.0.0.2")),
            ("MOVED", "12182 redis-2.local:7001", moved("redis-2.local")),
            ("MOVED", "12182 2001:db8::2:7001", moved("2001:db8::2")),
            ("MOVED", "12182 :7001", Some(Redirect::Reroute)),
            (
                "ASK",
                "12182 10.0.0.2:7001",
                Some(Redirect::Ask("10.0.0.2".to_owned(), 7_001)),
            ),
            ("TRYAGAIN", "Multiple keys", Some(Redirect::TryAgain)),
            (
                "CLUSTERDOWN",
                "Hash slot not served",
                Some(Redirect::TryAgain),
            ),
            ("LOADING", "Redis is loading", None),
            ("READONLY", "You can't write", None),
            ("NOSCRIPT", "No matching script", None),
        ] {
            let reply = redis::parse_redis_value(format!("-{code} {detail}\r\n").as_bytes());
            let error = reply.and_then(Value::extract_error).unwrap_err();
            assert_eq!(Redirect::of(&error), expected, "{code} {detail}");
        }
        for kind in [
            std::io::ErrorKind::BrokenPipe,
            std::io::ErrorKind::ConnectionReset,
            std::io::ErrorKind::TimedOut,
        ] {
            let error = RedisError::from(std::io::Error::from(kind));
            assert_eq!(Redirect::of(&error), None, "{kind}");
        }
        let lost = RedisError::from((ErrorKind::ClusterConnectionNotFound, "no connections"));
        assert_eq!(Redirect::of(&lost), None);
    }
}
