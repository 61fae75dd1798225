//! Connecting to each kind of deployment, and the links that result.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use redis::aio::MultiplexedConnection;
use redis::{Cmd, RedisResult, Value};

#[cfg(feature = "cluster")]
use super::cluster::Cluster;
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
    /// Links lead to one of its nodes.
    #[cfg(feature = "cluster")]
    Cluster(Arc<Cluster>),
}

/// An established link. It does not reconnect, unless it is the application's.
pub(super) enum Link {
    External(Arc<dyn ExternalConnection>),
    Server(MultiplexedConnection),
    /// A link to the master. The watcher reports a change of the master for as long as it lives.
    #[cfg(feature = "sentinel")]
    Master(
        MultiplexedConnection,
        #[expect(dead_code, reason = "held for its Drop")] MasterWatcher,
    ),
}

impl Connector {
    /// Returns the connector for the connections of one runtime, on which it follows the master that sentinels name.
    pub(super) fn of_runtime(self: &Arc<Self>) -> Arc<Self> {
        match &**self {
            #[cfg(feature = "sentinel")]
            Self::Sentinel(sentinel) => Arc::new(Self::Sentinel(Box::new(sentinel.of_runtime()))),
            _ => Arc::clone(self),
        }
    }

    /// Makes one link. Every kind of deployment bounds the time of its attempt.
    pub(super) async fn connect(
        &self,
        on_disconnect: OnDisconnect,
    ) -> Result<(Link, ServerName), ConnectError> {
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
                let connection = cluster.connect().await?;
                Ok((Link::Server(connection), cluster.name().clone()))
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
        };
        match reply? {
            Value::ServerError(error) => Err(error.into()),
            reply => Ok(reply),
        }
    }

    /// Sends a command to a node of a cluster that is about to get the slot of its keys.
    #[cfg(feature = "cluster")]
    pub(super) async fn send_asking(&self, command: &Cmd) -> RedisResult<Value> {
        let Self::Server(connection) = self else {
            return self.send(command).await;
        };
        // The node takes both together, so no other command comes in between.
        let mut both = redis::Pipeline::with_capacity(2);
        both.cmd("ASKING").add_command(command.clone());
        let replies = connection.clone().send_packed_commands(&both, 0, 2).await?;
        // The reply to ASKING is of no interest: without it, the node redirects the command.
        replies
            .into_iter()
            .last()
            .unwrap_or(Value::Nil)
            .extract_error()
    }

    /// Builds a liveness probe, unless the connection is the application's.
    pub(super) fn probe(&self) -> Option<Cmd> {
        let is_external = matches!(self, Self::External(_));
        (!is_external).then(|| redis::cmd("PING"))
    }

    /// Whether a lost connection is replaced by the application.
    pub(super) fn reconnects_on_its_own(&self) -> bool {
        matches!(self, Self::External(_))
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
