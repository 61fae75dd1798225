//! The way of a call to the server that has its keys.

use std::sync::Arc;
use std::time::Duration;

use redis::{Cmd, Value};

#[cfg(feature = "cluster")]
use super::cluster::Cluster;
use super::failure::{Failure, Fate};
use super::node::{Line, Node};
use crate::store::redis::protocol::ServerName;
use crate::store::redis::real_time::Deadline;

/// The servers of a deployment, as one runtime reaches them. Clones share the connections.
///
/// A call runs to its end: the store never drops it. So *silent* means that a server has not replied within a whole deadline.
#[derive(Clone)]
pub(super) enum Transport {
    /// A single server, the master that sentinels name, or the application's connection.
    One(Arc<Node>),
    #[cfg(feature = "cluster")]
    Cluster(Cluster),
}

/// The way of calls to the keys of a slot, or of a single server.
#[derive(Clone)]
pub(crate) struct Route {
    transport: Transport,
    pub(crate) slot: Option<u16>,
}

impl Route {
    /// The way to the keys of a slot; without one, to a single server, or to any node of a cluster.
    pub(super) fn new(transport: Transport, slot: Option<u16>) -> Self {
        Self { transport, slot }
    }

    pub(crate) fn to_slot(&self, slot: Option<u16>) -> Self {
        Self::new(self.transport.clone(), slot)
    }

    pub(crate) fn node(&self) -> Option<Arc<Node>> {
        match &self.transport {
            Transport::One(node) => Some(Arc::clone(node)),
            #[cfg(feature = "cluster")]
            Transport::Cluster(cluster) => cluster.master(self.slot),
        }
    }

    pub(crate) fn nodes(&self) -> Vec<Arc<Node>> {
        match &self.transport {
            Transport::One(node) => vec![Arc::clone(node)],
            #[cfg(feature = "cluster")]
            Transport::Cluster(cluster) => cluster.masters(),
        }
    }

    pub(crate) fn server(&self) -> ServerName {
        match &self.transport {
            Transport::One(node) => node.connected_server(),
            #[cfg(feature = "cluster")]
            Transport::Cluster(cluster) => match cluster.master(self.slot) {
                Some(node) => node.connected_server(),
                None => cluster.name().clone(),
            },
        }
    }

    /// Returns what keeps this process from connecting to the server that has the keys, if it is not the server.
    pub(crate) fn obstacle(&self) -> Option<Failure> {
        match &self.transport {
            Transport::One(node) => node.obstacle(),
            #[cfg(feature = "cluster")]
            Transport::Cluster(cluster) => cluster.obstacle(self.slot),
        }
    }

    pub(crate) fn try_reserve(&self) -> Option<Line> {
        self.node()?.try_line()
    }

    pub(crate) async fn reserve(&self, deadline: &mut Deadline) -> Result<Line, Failure> {
        match &self.transport {
            Transport::One(node) => node.line(deadline).await,
            #[cfg(feature = "cluster")]
            Transport::Cluster(cluster) => Box::pin(cluster.line(self.slot, deadline)).await,
        }
    }

    pub(crate) async fn query(&self, command: &Cmd, deadline: Duration) -> Result<Value, Failure> {
        let mut line = self.reserve(&mut Deadline::new(deadline)).await?;
        self.send(&mut line, command, true, deadline).await
    }

    pub(crate) async fn ping(&self, deadline: Duration) -> Result<(), Failure> {
        let line = self.reserve(&mut Deadline::new(deadline)).await?;
        line.ping(deadline).await
    }

    /// Sends a command on a line, and again only if a server says that it has not run it. The line then is the last one that
    /// was used. Each server has the deadline to reply.
    ///
    /// `waits_for_keys` tells whether to wait for a cluster that is moving the slot and has only some of the keys. A call
    /// that can be divided does not.
    #[cfg_attr(
        not(feature = "cluster"),
        expect(unused_variables, reason = "only a cluster moves slots")
    )]
    pub(crate) async fn send(
        &self,
        line: &mut Line,
        command: &Cmd,
        waits_for_keys: bool,
        deadline: Duration,
    ) -> Result<Value, Failure> {
        let reply = match &self.transport {
            Transport::One(_) => line.send(command, deadline).await,
            #[cfg(feature = "cluster")]
            Transport::Cluster(cluster) => {
                let call = cluster.send(line, command, self.slot, waits_for_keys, deadline);
                Box::pin(call).await
            }
        };
        let failure = reply.as_ref().err();
        line.has_run = failure.is_none_or(|failure| failure.fate != Fate::NotRun);
        reply
    }

    /// Looks for the master again, because the server that has the keys is a replica.
    pub(crate) fn give_up(&self) {
        match &self.transport {
            Transport::One(node) => node.give_up(),
            #[cfg(feature = "cluster")]
            Transport::Cluster(cluster) => cluster.refresh(),
        }
    }
}
