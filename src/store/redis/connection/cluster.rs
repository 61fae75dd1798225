//! Connections to Redis Cluster, whose redirects are followed here.
//!
//! The client of redis would follow them too, but it also resends what a lost connection may have
//! executed. So its retries are off, and only a command that a node says it has not run is sent again.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::cluster::ClusterClient;
use redis::cluster::ClusterConfig;
use redis::cluster_async::ClusterConnection;
use redis::{
    Arg, Cmd, ConnectionInfo, ErrorKind, ProtocolVersion, RedisError, RedisResult, ServerErrorKind,
    Value,
};
use tokio::time;

use super::single::{Server, at, tcp_settings, timed_out};

/// How long a connection to one node may take. While the client looks for the masters, all nodes wait
/// for one that hangs.
const NODE_CONNECT_TIMEOUT: Duration = Duration::from_millis(250);

/// How long it may take to have connections to all nodes and to know who has which slots.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);

/// How much longer than a call the client waits for a node.
const BEYOND_DEADLINE: Duration = Duration::from_millis(100);

/// How often a command is sent again that a node has not run: a slot that moves is found by asking.
const RETRIES: u32 = 3;

/// The pause before a resend where the cluster asks for time. A redirect is followed at once.
const PAUSE: Duration = Duration::from_millis(15);

/// How many calls are on their way to one node, over one connection. While the client looks for the
/// masters it reads no answers, and a node that it owes many does not tell it where they are: with 40 some
/// losses of a master stalled the other shards for a second, with 8 none was seen to. More
/// [connections](crate::RedisStore::connections) carry more.
const CALLS_OF_NODE: usize = 8;

/// The nodes that are asked first, and how all are spoken to.
pub(crate) struct Cluster {
    client: ClusterClient,
    /// How they are spoken to where they do not know RESP3, unless that was asked for.
    in_resp2: Option<ClusterClient>,
    /// The first of the nodes, which says more clearly why there is no connection.
    first: Server,
    access: Arc<Access>,
    shown: String,
}

/// How any node is spoken to.
struct Access {
    /// The first of the nodes that are asked first.
    like: ConnectionInfo,
    protocol: Option<ProtocolVersion>,
}

/// Connections to all nodes of a cluster.
pub(crate) struct Nodes {
    connection: ClusterConnection,
    access: Arc<Access>,
}

/// The answer of a node that has not run a command.
#[derive(Debug, PartialEq, Eq)]
enum Redirect {
    /// Another node has the slot.
    Moved(String, u16),
    /// Another node has the keys of a slot that is moving.
    Ask(String, u16),
    /// The slot map has to be read again, for want of an address.
    Reroute,
    /// The keys are on two nodes, or nobody has the slot yet.
    Wait,
}

impl Cluster {
    /// A cluster, some of whose nodes are these.
    pub(crate) fn new(
        nodes: &[ConnectionInfo],
        protocol: Option<ProtocolVersion>,
        #[cfg(feature = "tls")] certificates: Option<&redis::TlsCertificates>,
    ) -> RedisResult<Self> {
        let speaking = |protocol| {
            let client = ClusterClient::builder(nodes.to_vec())
                .retries(0)
                .connection_timeout(NODE_CONNECT_TIMEOUT)
                .connection_concurrency_limit(CALLS_OF_NODE)
                .tcp_settings(tcp_settings())
                .use_protocol(protocol);
            #[cfg(feature = "tls")]
            let client = match certificates {
                Some(certificates) => client.certs(certificates.clone()),
                None => client,
            };
            client.build()
        };
        let shown: Vec<String> = nodes.iter().map(|node| node.addr().to_string()).collect();
        let first = nodes.first().ok_or_else(timed_out)?;
        Ok(Self {
            client: speaking(protocol.unwrap_or(ProtocolVersion::RESP3))?,
            in_resp2: match protocol {
                None => Some(speaking(ProtocolVersion::RESP2)?),
                Some(_) => None,
            },
            first: Server::new(first, protocol)?,
            access: Arc::new(Access {
                like: first.clone(),
                protocol,
            }),
            shown: shown.join(","),
        })
    }

    /// For calls that take so long at most.
    pub(crate) async fn connect(&self, deadline: Duration) -> RedisResult<Nodes> {
        let connection = self.connect_to_all(deadline).await?;
        let access = Arc::clone(&self.access);
        Ok(Nodes { connection, access })
    }

    async fn connect_to_all(&self, deadline: Duration) -> RedisResult<ClusterConnection> {
        let failure = match open(&self.client, deadline).await {
            Ok(connection) => return Ok(connection),
            Err(failure) => failure,
        };
        // The client does not tell plainly what a node has said.
        drop(self.first.connect(Box::new(|| ())).await?);
        match &self.in_resp2 {
            Some(in_resp2) => open(in_resp2, deadline).await,
            None => Err(failure),
        }
    }
}

async fn open(client: &ClusterClient, deadline: Duration) -> RedisResult<ClusterConnection> {
    let config = ClusterConfig::new()
        .set_connection_timeout(NODE_CONNECT_TIMEOUT)
        // More than the deadline, which callers see to. And no more, since all wait while the client asks
        // a node who has which slots.
        .set_response_timeout(deadline.saturating_add(BEYOND_DEADLINE));
    let opened = client.get_async_connection_with_config(config);
    let opened = time::timeout(CONNECT_TIMEOUT, opened).await;
    opened.unwrap_or_else(|_| Err(timed_out()))
}

impl Nodes {
    /// Sends a command to the node that has its key. Nothing is sent again that a node may have run.
    pub(crate) async fn send(&self, command: &Cmd) -> RedisResult<Value> {
        let mut reply = self.send_by_slot(command).await;
        for _ in 0..RETRIES {
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
                Some(Redirect::Wait) => {
                    time::sleep(PAUSE).await;
                    self.send_by_slot(command).await
                }
            };
        }
        reply
    }

    /// Sends a command by the slot map, which the client reads again after a redirect.
    async fn send_by_slot(&self, command: &Cmd) -> RedisResult<Value> {
        command.query_async(&mut self.connection.clone()).await
    }

    /// Connects to the node of a redirect for one command. The client cannot be asked for it: a node that
    /// has no slot yet is not in its map.
    async fn connect_to(&self, host: String, port: u16) -> RedisResult<MultiplexedConnection> {
        let Access { like, protocol } = &*self.access;
        let server = Server::new(&at(like, host, port), *protocol)?;
        server.connect(Box::new(|| ())).await
    }
}

impl Redirect {
    /// The redirect that an error stands for. Others may mean that the command was run: the client gives
    /// the error of a refresh of its slot map to all commands that are in flight.
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
            ServerErrorKind::TryAgain | ServerErrorKind::ClusterDown => Some(Self::Wait),
            _ => None,
        }
    }
}

/// A command for the node that has the key of another one: no other node answers it, as one may that is
/// asked for a PING. Whoever may run our scripts may run it, and it does nothing.
pub(crate) fn probe(command: &Cmd) -> Option<Cmd> {
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
        // Not the whole of it: it holds the password.
        write!(f, "cluster of {}", self.shown)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_a_node_has_not_run_is_sent_again() {
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
            ("TRYAGAIN", "Multiple keys", Some(Redirect::Wait)),
            ("CLUSTERDOWN", "Hash slot not served", Some(Redirect::Wait)),
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
