//! Connections to Redis Cluster: the client follows its redirects.

use std::fmt;
use std::time::Duration;

use redis::cluster::ClusterClient;
use redis::cluster::ClusterConfig;
use redis::cluster_async::ClusterConnection;
use redis::{Arg, Cmd, ConnectionInfo, ProtocolVersion, RedisResult, Value};
use tokio::time;

use super::server::{Server, tcp_settings, timed_out};

/// How long a connection to one node may take. While the client looks for the masters, all nodes wait
/// for one that hangs.
const NODE_CONNECT_TIMEOUT: Duration = Duration::from_millis(250);

/// How long it may take to have connections to all nodes and to know who has which slots.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);

/// How much longer than a call the client waits for a node.
const BEYOND_DEADLINE: Duration = Duration::from_millis(100);

/// How often a call is sent again that was redirected, or that a lost connection may have swallowed:
/// no fewer, since a slot that moves is found by asking, and no more, since what was executed and not
/// answered is counted again. In milliseconds, the waits where the cluster asks for some.
const RETRIES: u32 = 3;
const LEAST_WAIT: u64 = 5;
const MOST_WAIT: u64 = 100;

/// How many calls are on their way to one node, over one connection. While the client looks for the
/// masters it reads no answers, and a node that it owes many does not tell it where they are: with 40 some
/// losses of a master stalled the other shards for a second, with 8 none was seen to. More
/// [connections](crate::RedisStore::connections) carry more.
const CALLS_OF_NODE: usize = 8;

/// The nodes that are asked first, and how all are spoken to.
pub(in crate::store::redis) struct Cluster {
    client: ClusterClient,
    /// How they are spoken to where they do not know RESP3, unless that was asked for.
    in_resp2: Option<ClusterClient>,
    /// The first of the nodes, which says more clearly why there is no connection.
    first: Server,
    shown: String,
}

impl Cluster {
    /// A cluster, some of whose nodes are these.
    pub(in crate::store::redis) fn new(
        nodes: &[ConnectionInfo],
        protocol: Option<ProtocolVersion>,
        #[cfg(feature = "tls")] certificates: Option<&redis::TlsCertificates>,
    ) -> RedisResult<Self> {
        let speaking = |protocol| {
            let client = ClusterClient::builder(nodes.to_vec())
                .retries(RETRIES)
                .min_retry_wait(LEAST_WAIT)
                .max_retry_wait(MOST_WAIT)
                .retry_wait_formula(LEAST_WAIT, 2)
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
            shown: shown.join(","),
        })
    }

    /// For calls that take so long at most.
    pub(super) async fn connect(&self, deadline: Duration) -> RedisResult<ClusterConnection> {
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
        // More than the deadline: a call that timed out here would be sent again, if anybody waited for
        // it. And no more, since all wait while the client asks a node who has which slots.
        .set_response_timeout(deadline.saturating_add(BEYOND_DEADLINE));
    let opened = client.get_async_connection_with_config(config);
    let opened = time::timeout(CONNECT_TIMEOUT, opened).await;
    opened.unwrap_or_else(|_| Err(timed_out()))
}

pub(super) async fn send(connection: &ClusterConnection, command: &Cmd) -> RedisResult<Value> {
    command.query_async(&mut connection.clone()).await
}

/// A command for the node that has the key of another one: no other node answers it, as one may that is
/// asked for a PING. Whoever may run our scripts may run it, and it does nothing.
pub(super) fn probe(command: &Cmd) -> Option<Cmd> {
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
