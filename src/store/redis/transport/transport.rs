//! The way of a call to the server that has its keys.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use redis::{Cmd, Value};

use super::failure::{Failure, Fate};
use super::node::{Line, Node};
use crate::store::redis::protocol::ServerName;

pub(crate) type Boxed<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// A command, and where its keys are.
#[derive(Clone, Copy)]
#[cfg_attr(
    not(feature = "cluster"),
    expect(dead_code, reason = "only a cluster has slots")
)]
pub(crate) struct Ask<'a> {
    pub(super) command: &'a Cmd,
    /// The slot of the keys in a cluster. `None` for a command without keys, and on a single server.
    pub(super) slot: Option<u16>,
    /// Whether to wait for a cluster that is moving the slot and has only some of the keys. A call that can be divided
    /// does not.
    pub(super) waits_for_keys: bool,
    /// The time in which each server has to reply.
    pub(super) deadline: Duration,
}

/// The servers of a deployment, as one runtime reaches them.
///
/// A call runs to its end: the store never drops it. So *silent* means that a server has not replied within a whole deadline.
pub(crate) trait Transport: Send + Sync {
    /// The deployment, for errors.
    fn server(&self) -> &ServerName;

    /// Returns the server that has a slot, if it is known.
    fn node(&self, slot: Option<u16>) -> Option<Arc<Node>>;

    /// Returns all servers that are asked.
    fn nodes(&self) -> Vec<Arc<Node>>;

    /// Waits for a line to the server that has a slot, or for the reason why there is none.
    fn reserve(&self, slot: Option<u16>, until: Instant) -> Boxed<'_, Result<Line, Failure>>;

    /// Sends a command on a line, and again only if a server says that it has not run it.
    /// The line then is the last one that was used.
    fn call<'a>(&'a self, line: &'a mut Line, ask: Ask<'a>) -> Boxed<'a, Result<Value, Failure>>;

    /// Looks for the master again, because the server that has a slot is a replica.
    fn give_up(&self, slot: Option<u16>);

    /// Returns a line to the server that has a slot, if one is free now.
    fn try_reserve(&self, slot: Option<u16>) -> Option<Line> {
        self.node(slot)?.try_line()
    }
}

/// A deployment with one server to ask: a single server, the master that sentinels name, or the application's connection.
pub(super) struct One(pub(super) Arc<Node>);

impl Transport for One {
    fn server(&self) -> &ServerName {
        self.0.server()
    }

    fn node(&self, _: Option<u16>) -> Option<Arc<Node>> {
        Some(Arc::clone(&self.0))
    }

    fn nodes(&self) -> Vec<Arc<Node>> {
        vec![Arc::clone(&self.0)]
    }

    fn reserve(&self, _: Option<u16>, until: Instant) -> Boxed<'_, Result<Line, Failure>> {
        Box::pin(self.0.line(until))
    }

    fn call<'a>(&'a self, line: &'a mut Line, ask: Ask<'a>) -> Boxed<'a, Result<Value, Failure>> {
        Box::pin(async move { line.send(ask.command, ask.deadline).await })
    }

    fn give_up(&self, _: Option<u16>) {
        self.0.give_up();
    }
}

/// The way of calls to the keys of a slot, or of a single server.
#[derive(Clone)]
pub(crate) struct Route {
    transport: Arc<dyn Transport>,
    slot: Option<u16>,
}

impl Route {
    /// The way to the keys of a slot; without one, to a single server, or to any node of a cluster.
    pub(crate) fn new(transport: Arc<dyn Transport>, slot: Option<u16>) -> Self {
        Self { transport, slot }
    }

    /// The way to the keys of another slot.
    pub(crate) fn to_slot(&self, slot: Option<u16>) -> Self {
        Self::new(Arc::clone(&self.transport), slot)
    }

    /// The way to the same keys from another runtime.
    pub(crate) fn over(&self, transport: Arc<dyn Transport>) -> Self {
        Self::new(transport, self.slot)
    }

    pub(crate) fn slot(&self) -> Option<u16> {
        self.slot
    }

    /// Returns the server that has the keys, if it is known.
    pub(crate) fn node(&self) -> Option<Arc<Node>> {
        self.transport.node(self.slot)
    }

    /// Returns all servers that are asked.
    pub(crate) fn nodes(&self) -> Vec<Arc<Node>> {
        self.transport.nodes()
    }

    /// The server that has the keys, for errors.
    pub(crate) fn server(&self) -> ServerName {
        self.node().map_or_else(
            || self.transport.server().clone(),
            |node| node.connected_server(),
        )
    }

    /// Returns a line, if one is free now.
    pub(crate) fn try_reserve(&self) -> Option<Line> {
        self.transport.try_reserve(self.slot)
    }

    /// Waits for a line, or for the reason why there is none.
    pub(crate) async fn reserve(&self, until: Instant) -> Result<Line, Failure> {
        match self.try_reserve() {
            Some(line) => Ok(line),
            None => self.transport.reserve(self.slot, until).await,
        }
    }

    /// Sends a command.
    pub(crate) async fn query(&self, command: &Cmd, deadline: Duration) -> Result<Value, Failure> {
        let mut line = self.reserve(Instant::now() + deadline).await?;
        self.send(&mut line, command, true, deadline).await
    }

    /// Sends a command on a line, and again only if a server says that it has not run it.
    ///
    /// `waits_for_keys` tells whether to wait for a cluster that is moving the slot and has only some of the keys. A call
    /// that can be divided does not.
    pub(crate) async fn send(
        &self,
        line: &mut Line,
        command: &Cmd,
        waits_for_keys: bool,
        deadline: Duration,
    ) -> Result<Value, Failure> {
        let ask = Ask {
            command,
            slot: self.slot,
            waits_for_keys,
            deadline,
        };
        let reply = self.transport.call(line, ask).await;
        line.has_run = reply
            .as_ref()
            .err()
            .is_none_or(|failure| failure.fate != Fate::NotRun);
        reply
    }

    /// Looks for the master again, because the server that has the keys is a replica.
    pub(crate) fn give_up(&self) {
        self.transport.give_up(self.slot);
    }
}

impl fmt::Debug for dyn Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.server())
    }
}
