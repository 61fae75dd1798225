//! Where connections come from: one file for each kind of deployment.

use std::fmt;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{Cmd, RedisResult, Value};

#[cfg(feature = "cluster")]
use super::cluster::Cluster;
#[cfg(feature = "sentinel")]
use super::sentinel::{MasterWatcher, Sentinel};
use super::single::Server;

/// Makes connections.
pub(crate) enum Connector {
    Server(Box<Server>),
    #[cfg(feature = "sentinel")]
    Sentinel(Box<Sentinel>),
    #[cfg(feature = "cluster")]
    Cluster(Box<Cluster>),
}

/// What is to be told when a connection is lost.
pub(crate) type OnDisconnect = Box<dyn Fn() + Send + Sync>;

/// A connection, which does not make itself anew.
pub(crate) enum Link {
    /// To one server.
    One(MultiplexedConnection),
    /// To the one that is master.
    #[cfg(feature = "sentinel")]
    Master(
        MultiplexedConnection,
        #[expect(dead_code, reason = "it only lives")] MasterWatcher,
    ),
    /// To all nodes of a cluster.
    #[cfg(feature = "cluster")]
    Cluster(super::cluster::Nodes),
}

impl Connector {
    /// Makes one connection, or says why there is none. Bounded in time.
    pub(crate) async fn connect(
        &self,
        deadline: Duration,
        on_loss: OnDisconnect,
    ) -> RedisResult<Link> {
        #[cfg(not(feature = "cluster"))]
        let _ = deadline;
        match self {
            Self::Server(server) => server.connect(on_loss).await.map(Link::One),
            #[cfg(feature = "sentinel")]
            Self::Sentinel(sentinel) => {
                let (connection, lookout) = sentinel.connect(on_loss).await?;
                Ok(Link::Master(connection, lookout))
            }
            #[cfg(feature = "cluster")]
            Self::Cluster(cluster) => cluster.connect(deadline).await.map(Link::Cluster),
        }
    }

    pub(crate) fn is_cluster(&self) -> bool {
        match self {
            #[cfg(feature = "cluster")]
            Self::Cluster(_) => true,
            _ => false,
        }
    }
}

impl Link {
    pub(crate) async fn send(&self, command: &Cmd) -> RedisResult<Value> {
        let reply = match self {
            Self::One(connection) => connection.clone().send_packed_command(command).await,
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

    /// What asks the server that a command went to whether it is there, if that can be told.
    pub(crate) fn probe(&self, command: &Cmd) -> Option<Cmd> {
        match self {
            #[cfg(feature = "cluster")]
            Self::Cluster(_) => super::cluster::probe(command),
            _ => {
                let _ = command;
                Some(redis::cmd("PING"))
            }
        }
    }

    pub(crate) fn is_of_cluster(&self) -> bool {
        match self {
            #[cfg(feature = "cluster")]
            Self::Cluster(_) => true,
            _ => false,
        }
    }
}

impl fmt::Debug for Connector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
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
