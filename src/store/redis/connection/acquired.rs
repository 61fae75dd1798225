//! The connections of a pool, each to a single server or to all nodes of a cluster.

use std::sync::Arc;
use std::time::{Duration, Instant};

use redis::{Cmd, RedisError, RedisResult, Value};
use tokio::sync::OwnedSemaphorePermit;

#[cfg(feature = "cluster")]
use super::asked;
#[cfg(feature = "cluster")]
use super::cluster::{ClusterConnection, Patience};
use super::reconnecting::{AcquiredServer, ReconnectingConnection};
use crate::store::redis::protocol::ServerName;
use crate::store::redis::protocol::errors::ConnectError;

/// One connection of a pool.
#[derive(Clone, Debug)]
pub(crate) enum Connection {
    Server(Arc<ReconnectingConnection>),
    #[cfg(feature = "cluster")]
    Cluster(Arc<ClusterConnection>),
}

/// An established connection that a caller sends on.
pub(crate) struct AcquiredConnection {
    target: Target,
    /// The place among the calls in flight to a server. Given back on drop.
    #[expect(dead_code, reason = "held for its Drop")]
    turn: Option<OwnedSemaphorePermit>,
}

enum Target {
    Server(AcquiredServer),
    #[cfg(feature = "cluster")]
    Cluster(Arc<ClusterConnection>, Patience),
}

impl Connection {
    /// Returns the connection for calls of this deadline, if it is established and the server of `slot` can take
    /// another check now.
    pub(crate) fn try_acquire(
        &self,
        deadline: Duration,
        slot: Option<u16>,
    ) -> Option<AcquiredConnection> {
        #[cfg(not(feature = "cluster"))]
        let _ = slot;
        match self {
            Self::Server(connection) => {
                let turn = connection.try_take_turn()?;
                let link = connection.try_acquire(deadline)?;
                Some(AcquiredConnection::new(Target::Server(link), Some(turn)))
            }
            #[cfg(feature = "cluster")]
            Self::Cluster(cluster) => {
                let turn = cluster.try_take_turn(slot, deadline)?;
                let target = Target::Cluster(Arc::clone(cluster), Patience::of_call(deadline));
                Some(AcquiredConnection::new(target, turn))
            }
        }
    }

    /// Waits until the connection is established and the server of `slot` can take another check, or until
    /// connecting fails.
    ///
    /// On a cluster, commands without a slot do not wait for a turn.
    pub(crate) async fn acquire(
        &self,
        deadline: Duration,
        slot: Option<u16>,
    ) -> Result<AcquiredConnection, ConnectError> {
        match self {
            Self::Server(connection) => {
                if let Some(acquired) = self.try_acquire(deadline, slot) {
                    return Ok(acquired);
                }
                // Callers learn why connecting fails before they wait for a turn. Meanwhile the connection may be lost.
                connection.acquire(deadline).await?;
                let turn = connection.take_turn().await;
                let link = connection.acquire(deadline).await?;
                Ok(AcquiredConnection::new(Target::Server(link), turn))
            }
            #[cfg(feature = "cluster")]
            Self::Cluster(cluster) => {
                // The wait for a turn is a part of the call.
                let patience = Patience::of_call(deadline);
                let turn = cluster.take_turn(slot, deadline).await?;
                let target = Target::Cluster(Arc::clone(cluster), patience);
                Ok(AcquiredConnection::new(target, turn))
            }
        }
    }

    /// Whether the server of `slot` has replied to any command since then.
    pub(crate) fn has_replied_since(&self, since: Instant, slot: Option<u16>) -> bool {
        #[cfg(not(feature = "cluster"))]
        let _ = slot;
        match self {
            Self::Server(connection) => connection.has_replied_since(since),
            #[cfg(feature = "cluster")]
            Self::Cluster(cluster) => cluster.has_replied_since(since, slot),
        }
    }

    /// Returns the last round trip to the server of `slot`.
    pub(crate) fn round_trip(&self, slot: Option<u16>) -> Duration {
        #[cfg(not(feature = "cluster"))]
        let _ = slot;
        match self {
            Self::Server(connection) => connection.round_trip(),
            #[cfg(feature = "cluster")]
            Self::Cluster(cluster) => cluster.round_trip(slot),
        }
    }
}

impl AcquiredConnection {
    fn new(target: Target, turn: Option<OwnedSemaphorePermit>) -> Self {
        Self { target, turn }
    }

    /// Sends a command. Does not resend a command that a server may have run.
    ///
    /// `waits_for_keys` tells whether to wait for a cluster that is moving the slot of the keys, and has them on two
    /// nodes.
    pub(crate) async fn send(&self, command: &Cmd, waits_for_keys: bool) -> RedisResult<Value> {
        #[cfg(not(feature = "cluster"))]
        let _ = waits_for_keys;
        match &self.target {
            Target::Server(link) => link.send(command).await,
            #[cfg(feature = "cluster")]
            Target::Cluster(cluster, patience) => {
                cluster.send(command, *patience, waits_for_keys).await
            }
        }
    }

    /// Returns the error of a server that does not know EVALSHA, if calls have failed without a reply so far. A node of
    /// a cluster that does not know it is not connected at all.
    pub(crate) async fn scripts_refusal(&self) -> Option<RedisError> {
        match &self.target {
            Target::Server(link) => link.scripts_refusal().await,
            #[cfg(feature = "cluster")]
            Target::Cluster(..) => None,
        }
    }

    /// The server, for errors: of a cluster, the node that the current call has asked last.
    pub(crate) fn server(&self) -> ServerName {
        match &self.target {
            Target::Server(link) => link.server().clone(),
            #[cfg(feature = "cluster")]
            Target::Cluster(cluster, _) => {
                asked::last().unwrap_or_else(|| cluster.server().clone())
            }
        }
    }

    /// Reconnects before the next call, because this server is not the one to ask. Does nothing to
    /// a connection of the application, and nothing on a cluster, whose nodes name the master.
    pub(crate) fn give_up(&self) {
        match &self.target {
            Target::Server(link) => link.give_up(),
            #[cfg(feature = "cluster")]
            Target::Cluster(cluster, _) => cluster.refresh(),
        }
    }
}
