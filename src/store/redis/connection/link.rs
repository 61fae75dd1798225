//! Connecting to each kind of deployment, and the links that result.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{Cmd, RedisResult, Value};

#[cfg(feature = "cluster")]
use super::cluster::{self, Cluster, ClusterNodes};
#[cfg(feature = "sentinel")]
use super::sentinel::{MasterWatcher, Sentinel};
use super::single::{OnDisconnect, Server};
use crate::store::redis::protocol::ServerName;
use crate::store::redis::protocol::errors::ConnectError;

type Reply<'a> = Pin<Box<dyn Future<Output = RedisResult<Value>> + Send + 'a>>;

/// A connection of the application, of any type.
pub(crate) trait ExternalConnection: Send + Sync {
    fn send<'a>(&self, command: &'a Cmd) -> Reply<'a>;
}

#[cfg(feature = "redis-1")]
impl<C> ExternalConnection for C
where
    C: redis::aio::ConnectionLike + Clone + Send + Sync + 'static,
{
    fn send<'a>(&self, command: &'a Cmd) -> Reply<'a> {
        let mut connection = self.clone();
        Box::pin(async move { command.query_async(&mut connection).await })
    }
}

/// Makes links to one deployment of Redis.
pub(crate) enum Connector {
    /// The application has connected.
    #[cfg_attr(
        not(feature = "redis-1"),
        expect(dead_code, reason = "applications make one with this feature")
    )]
    External(Arc<dyn ExternalConnection>),
    Server(Box<Server>),
    #[cfg(feature = "sentinel")]
    Sentinel(Box<Sentinel>),
    #[cfg(feature = "cluster")]
    Cluster(Box<Cluster>),
}

/// An established link. It does not reconnect, unless the application or the client for clusters does so.
pub(super) enum Link {
    External(Arc<dyn ExternalConnection>),
    Server(MultiplexedConnection),
    /// A link to the master. The watcher reports a change of the master for as long as it lives.
    #[cfg(feature = "sentinel")]
    Master(
        MultiplexedConnection,
        #[expect(dead_code, reason = "held for its Drop")] MasterWatcher,
    ),
    #[cfg(feature = "cluster")]
    Cluster(ClusterNodes),
}

impl Connector {
    /// Makes one link. Every kind of deployment bounds the time of its attempt.
    ///
    /// A cluster fails commands some time after `deadline`; other links leave the deadline to
    /// callers.
    pub(super) async fn connect(
        &self,
        deadline: Duration,
        on_disconnect: OnDisconnect,
    ) -> Result<(Link, ServerName), ConnectError> {
        #[cfg(not(feature = "cluster"))]
        let _ = deadline;
        match self {
            Self::External(external) => {
                Ok((Link::External(Arc::clone(external)), self.server().clone()))
            }
            Self::Server(server) => {
                let connection = server.connect(on_disconnect).await?;
                Ok((Link::Server(connection), server.name().clone()))
            }
            #[cfg(feature = "sentinel")]
            Self::Sentinel(sentinel) => {
                let (connection, name, watcher) = sentinel.connect(on_disconnect).await?;
                Ok((Link::Master(connection, watcher), name))
            }
            #[cfg(feature = "cluster")]
            Self::Cluster(cluster) => {
                let nodes = cluster.connect(deadline).await?;
                Ok((Link::Cluster(nodes), cluster.name().clone()))
            }
        }
    }

    /// The configured server or deployment, for errors.
    pub(super) fn server(&self) -> &ServerName {
        match self {
            Self::External(_) => &ServerName::UNKNOWN,
            Self::Server(server) => server.name(),
            #[cfg(feature = "sentinel")]
            Self::Sentinel(sentinel) => sentinel.name(),
            #[cfg(feature = "cluster")]
            Self::Cluster(cluster) => cluster.name(),
        }
    }

    pub(super) fn is_cluster(&self) -> bool {
        match self {
            #[cfg(feature = "cluster")]
            Self::Cluster(_) => true,
            _ => false,
        }
    }

    /// Whether there is one connection, which the application has made.
    pub(super) fn is_external(&self) -> bool {
        matches!(self, Self::External(_))
    }
}

impl Link {
    /// Sends a command. An error reply of the server is an `Err`.
    pub(super) async fn send(&self, command: &Cmd) -> RedisResult<Value> {
        let reply = match self {
            Self::External(external) => return external.send(command).await,
            Self::Server(connection) => connection.clone().send_packed_command(command).await,
            #[cfg(feature = "sentinel")]
            Self::Master(connection, _) => connection.clone().send_packed_command(command).await,
            #[cfg(feature = "cluster")]
            Self::Cluster(nodes) => nodes.send(command).await,
        };
        match reply? {
            Value::ServerError(error) => Err(error.into()),
            reply => Ok(reply),
        }
    }

    /// Builds a liveness probe for the server that `command` was routed to, if that is known.
    pub(super) fn probe_for(&self, command: &Cmd) -> Option<Cmd> {
        match self {
            #[cfg(feature = "cluster")]
            Self::Cluster(_) => cluster::probe_for(command),
            Self::External(_) => None,
            _ => {
                let _ = command;
                Some(redis::cmd("PING"))
            }
        }
    }

    /// Whether a lost connection is replaced by the client itself: by that for clusters, or by the
    /// application's.
    pub(super) fn reconnects_on_its_own(&self) -> bool {
        self.is_cluster() || matches!(self, Self::External(_))
    }

    pub(super) fn is_cluster(&self) -> bool {
        match self {
            #[cfg(feature = "cluster")]
            Self::Cluster(_) => true,
            _ => false,
        }
    }
}

#[cfg(test)]
impl Connector {
    /// A connector to the single server at a URL.
    pub(super) fn to_server(url: &str) -> Self {
        use super::server_settings::ServerSettings;

        let info = redis::IntoConnectionInfo::into_connection_info(url).unwrap();
        Self::Server(Box::new(Server::new(ServerSettings::new(info, None))))
    }
}

impl fmt::Debug for Connector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::External(_) => f.write_str("given"),
            Self::Server(server) => server.fmt(f),
            #[cfg(feature = "sentinel")]
            Self::Sentinel(sentinel) => sentinel.fmt(f),
            #[cfg(feature = "cluster")]
            Self::Cluster(cluster) => cluster.fmt(f),
        }
    }
}

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Link").finish_non_exhaustive()
    }
}
