//! A connection to all nodes of a Redis Cluster. This file follows redirects.
//!
//! Each node has its own connection, so calls to a node that is lost hold up no calls to the others. The
//! cluster client of `redis` sends all calls from one task, which stands still while it looks for the
//! masters, and resends commands that a lost connection may have executed. Here a command is resent only
//! if a node says that it has not run it.

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::time::{Duration, Instant};

use redis::{Arg, Cmd, RedisError, RedisResult, Value};
use tokio::runtime::Handle;
use tokio::sync::{OwnedSemaphorePermit, watch};
use tokio::task::JoinSet;

use super::super::asked;
use super::super::link::Connector;
use super::super::reconnecting::ReconnectingConnection;
use super::super::single::{Server, timed_out};
use super::super::state::{Failure, RECONNECT_BACKOFF};
use super::cluster::Cluster;
use super::redirect::Redirect;
use super::slot_map::{self, Node, SlotMap, SlotRange};
use crate::store::redis::protocol::errors::{self as error, ConnectError, Handshake};
use crate::store::redis::protocol::{SLOTS, ServerName, slot_of_key};
use crate::store::redis::real_time;

/// The limit on the time in which a node sends the slot map.
const READ_TIMEOUT: Duration = Duration::from_millis(500);

/// The limit on resending a command that nodes have not run.
const MAX_RETRIES: u32 = 16;

/// The redirects that are followed at once. More mean that the nodes do not agree yet who has the slot.
const PROMPT_RETRIES: u32 = 2;

/// The limit on resending a command whose keys are on two nodes, or whose slot no node serves: that may last.
const MAX_TRIES_AGAIN: u32 = 3;

/// The backoff before a resend, if the cluster needs time: the first one, and the longest one.
const MIN_BACKOFF: Duration = Duration::from_millis(15);
const MAX_BACKOFF: Duration = Duration::from_millis(120);

/// The longest backoff between reads of the slot map: as long as an open circuit breaker waits until it probes.
const MAX_READ_BACKOFF: Duration = Duration::from_millis(500);

/// The backoff starts anew after this time without a reason to read the map.
const CALM: Duration = Duration::from_secs(5);

/// A node without slots is forgotten when it has not replied for this time. Until a slot has moved, the node that
/// imports it is in no map.
const IMPORTING: Duration = Duration::from_secs(10);

/// How long nodes are waited for that have not run a command.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Patience {
    /// The deadline of the call.
    deadline: Duration,
    /// No wait for a resend goes on beyond it, however many commands the call takes. The rest of the deadline is for
    /// the reply. Callers apply it.
    retry_until: Instant,
}

impl Patience {
    /// The patience of a call that begins now.
    pub(crate) fn of_call(deadline: Duration) -> Self {
        Self {
            deadline,
            retry_until: Instant::now() + deadline / 2,
        }
    }
}

/// A connection to all nodes of a cluster, of one runtime.
#[derive(Debug)]
pub(crate) struct ClusterConnection {
    cluster: Arc<Cluster>,
    /// The runtime that owns the connections to the nodes.
    runtime: Handle,
    state: watch::Sender<State>,
}

#[derive(Debug, Default)]
struct State {
    /// `None` until it was read for the first time.
    map: Option<Arc<SlotMap>>,
    is_reading: bool,
    /// The time of the end of the last attempt to read the map.
    read_at: Option<Instant>,
    /// The backoff before that attempt, of which it waited at least half.
    backoff: Duration,
    /// The failure of the first attempts.
    failure: Option<Failure>,
}

impl State {
    /// Returns when the map may be read again: ever later while it is read again and again, since redirects tell about
    /// their slot meanwhile, and a master that is down may be down for long.
    fn next_read(&mut self) -> Option<Instant> {
        let read_at = self.read_at?;
        let is_first = self.map.is_none() || read_at.elapsed() >= CALM;
        self.backoff = match is_first {
            true => RECONNECT_BACKOFF,
            false => (self.backoff * 2).clamp(RECONNECT_BACKOFF, MAX_READ_BACKOFF),
        };
        // Processes that lose a master together do not read together.
        let half = self.backoff / 2;
        let random = u32::try_from(RandomState::new().hash_one(0) % 256).unwrap_or_default();
        Some(read_at + half + half * random / 256)
    }
}

impl ClusterConnection {
    /// A connection owned by `runtime`. Does not connect yet.
    pub(crate) fn new(cluster: Arc<Cluster>, runtime: Handle) -> Self {
        Self {
            cluster,
            runtime,
            state: watch::Sender::default(),
        }
    }

    /// The cluster, for errors.
    pub(crate) fn server(&self) -> &ServerName {
        self.cluster.name()
    }

    /// Takes a place among the checks in flight to the master of a slot. Returns `None` if there is none now, or
    /// if the master is not connected yet. A command without a slot needs no place.
    pub(crate) fn try_take_turn(
        &self,
        slot: Option<u16>,
        deadline: Duration,
    ) -> Option<Option<OwnedSemaphorePermit>> {
        let map = self.current_map()?;
        let Some(node) = slot.and_then(|slot| map.master(slot)) else {
            return Some(None);
        };
        node.connection.try_acquire(deadline)?;
        node.connection.try_take_turn().map(Some)
    }

    /// Waits until the master of a slot is connected, and for a place among the checks in flight to it.
    pub(crate) async fn take_turn(
        self: &Arc<Self>,
        slot: Option<u16>,
        deadline: Duration,
    ) -> Result<Option<OwnedSemaphorePermit>, ConnectError> {
        let map = self.map().await?;
        let Some(node) = slot.and_then(|slot| map.master(slot)) else {
            return Ok(None);
        };
        asked::note(node.connection.server());
        let mut waiting = Waiting::new(self, deadline);
        let connected = node.connection.acquire(deadline).await;
        waiting.is_over = true;
        if let Err(failure) = connected {
            // Another node may have taken its place.
            self.refresh();
            return Err(failure);
        }
        Ok(node.connection.take_turn().await)
    }

    /// Whether the master of a slot has replied to any command since then.
    pub(crate) fn has_replied_since(&self, since: Instant, slot: Option<u16>) -> bool {
        self.master(slot)
            .is_some_and(|node| node.connection.has_replied_since(since))
    }

    /// Returns the last round trip to the master of a slot.
    pub(crate) fn round_trip(&self, slot: Option<u16>) -> Duration {
        let node = self.master(slot);
        node.map_or(Duration::ZERO, |node| node.connection.round_trip())
    }

    fn master(&self, slot: Option<u16>) -> Option<Arc<Node>> {
        self.current_map()?.master(slot?).cloned()
    }

    /// Sends a command to the node that has its keys. Does not resend a command that a node may have run.
    ///
    /// A command without a key goes to one master; PING and INFO go to all.
    pub(crate) async fn send(
        self: &Arc<Self>,
        command: &Cmd,
        patience: Patience,
        waits_for_keys: bool,
    ) -> RedisResult<Value> {
        let deadline = patience.deadline;
        let mut waiting = Waiting::new(self, deadline);
        let reply = match slot_of(command) {
            Some(slot) => {
                self.send_to_slot(slot, command, patience, waits_for_keys)
                    .await
            }
            None => self.send_to_masters(command, deadline).await,
        };
        waiting.is_over = true;
        if reply
            .as_ref()
            .is_err_and(|failure| failure.code().is_none())
        {
            // The connection is lost.
            self.refresh();
        }
        reply
    }

    async fn send_to_slot(
        self: &Arc<Self>,
        slot: u16,
        command: &Cmd,
        patience: Patience,
        waits_for_keys: bool,
    ) -> RedisResult<Value> {
        let (mut retries, mut tries_again, mut backoff) = (0, 0, MIN_BACKOFF);
        // The node to ask in place of the master, and whether it is importing the slot.
        let mut next: Option<(Arc<Node>, bool)> = None;
        loop {
            let (node, is_asking) = match next.take() {
                Some((node, is_asking)) => (Some(node), is_asking),
                None => {
                    let map = self.map().await.map_err(noted)?;
                    (map.master(slot).cloned(), false)
                }
            };
            let reply = match &node {
                Some(node) => send_to(node, command, is_asking, patience.deadline).await,
                None => unserved(),
            };
            let asked = node.as_ref().map_or("", |node| &node.host);
            let error = reply.as_ref().err();
            let Some(redirect) = error.and_then(|error| Redirect::of(error, asked)) else {
                return reply;
            };
            retries += 1;
            let needs_time = match redirect {
                Redirect::Moved(host, port) => {
                    self.refresh();
                    self.set_master(slot, &host, port);
                    retries > PROMPT_RETRIES
                }
                // Only some keys of the slot have moved: the map is right.
                Redirect::Ask(host, port) => {
                    next = Some((self.node_at(&host, port), true));
                    retries > PROMPT_RETRIES
                }
                Redirect::TryAgain if !waits_for_keys => return reply,
                Redirect::TryAgain => {
                    tries_again += 1;
                    true
                }
                // A node that was reset does not know who serves the slot, but others do.
                Redirect::Unserved => {
                    self.refresh();
                    let master = self.master_after(node.as_ref(), patience.deadline);
                    next = master.map(|master| (master, false));
                    tries_again += 1;
                    true
                }
            };
            let left = patience
                .retry_until
                .saturating_duration_since(Instant::now());
            if retries > MAX_RETRIES
                || tries_again > MAX_TRIES_AGAIN
                || needs_time && left.is_zero()
            {
                return reply;
            }
            if needs_time {
                real_time::sleep(backoff.min(left)).await;
                backoff = (backoff * 2).min(MAX_BACKOFF);
            }
        }
    }

    /// Sends a command without a key.
    async fn send_to_masters(
        self: &Arc<Self>,
        command: &Cmd,
        deadline: Duration,
    ) -> RedisResult<Value> {
        let map = self.map().await.map_err(noted)?;
        let masters = map.masters();
        let name = command.args_iter().next();
        if let Some(Arg::Simple(name @ (b"PING" | b"INFO"))) = name {
            let mut replies = Vec::with_capacity(masters.len());
            for node in &masters {
                let address = format!("{}:{}", node.host, node.port);
                let reply = send_to(node, command, false, deadline).await?;
                replies.push((Value::BulkString(address.into_bytes()), reply));
            }
            if name == b"INFO" {
                return Ok(Value::Map(replies));
            }
            let first = replies.into_iter().next();
            return first.map_or_else(unserved, |(_, reply)| Ok(reply));
        }
        let is_connected = |node: &&Arc<Node>| node.connection.try_acquire(deadline).is_some();
        match masters
            .iter()
            .find(is_connected)
            .or_else(|| masters.first())
        {
            Some(node) => send_to(node, command, false, deadline).await,
            None => unserved(),
        }
    }

    /// Returns the connected master that follows a node.
    fn master_after(&self, node: Option<&Arc<Node>>, deadline: Duration) -> Option<Arc<Node>> {
        let masters = self.current_map()?.masters();
        let is_it = |master: &Arc<Node>| node.is_some_and(|node| Arc::ptr_eq(node, master));
        let first = masters.iter().position(is_it).map_or(0, |place| place + 1);
        let mut following = masters.iter().cycle().skip(first).take(masters.len());
        let is_connected = |node: &&Arc<Node>| node.connection.try_acquire(deadline).is_some();
        following.find(is_connected).cloned()
    }

    fn current_map(&self) -> Option<Arc<SlotMap>> {
        self.state.borrow().map.clone()
    }

    /// Returns the slot map, and waits until it is read for the first time.
    async fn map(self: &Arc<Self>) -> Result<Arc<SlotMap>, ConnectError> {
        if let Some(map) = self.current_map() {
            return Ok(map);
        }
        let mut changes = self.state.subscribe();
        loop {
            {
                let state = changes.borrow_and_update();
                if let Some(map) = &state.map {
                    return Ok(Arc::clone(map));
                }
                if let Some(error) = state.failure.as_ref().and_then(Failure::until_retry) {
                    return Err(error);
                }
            }
            self.refresh();
            // Cannot fail: `self` holds the sender.
            let _ = changes.changed().await;
        }
    }

    /// Reads the slot map again, in the background. At most one task does so.
    pub(crate) fn refresh(self: &Arc<Self>) {
        let mut not_before = None;
        let starts = self.state.send_if_modified(|state| {
            let starts = !state.is_reading;
            if starts {
                state.is_reading = true;
                not_before = state.next_read();
            }
            starts
        });
        if starts {
            let task = RefreshTask {
                connection: Arc::clone(self),
                is_done: false,
            };
            self.runtime.spawn(task.run(not_before));
        }
    }

    /// Asks all known masters at once, because one of them may hang, and then the other seed nodes, until a map serves
    /// all slots. If none does, returns the ranges that serve the most: a node that is blank, or that the cluster has
    /// forgotten, has a map too.
    async fn read_map(&self) -> Result<Vec<SlotRange>, ConnectError> {
        let known = self.current_map().unwrap_or_default().masters();
        let (mut best, mut failure) = (Vec::new(), None);
        let mut offer = |ranges: Vec<SlotRange>| {
            if slot_map::served(&ranges) > slot_map::served(&best) {
                best = ranges;
            }
            slot_map::served(&best) >= usize::from(SLOTS)
        };
        let mut reads: JoinSet<_> = known.iter().cloned().map(read_slots_of).collect();
        while let Some(read) = reads.join_next().await {
            if read.is_ok_and(|ranges| offer(ranges.unwrap_or_default())) {
                return Ok(best);
            }
        }
        for seed in self.cluster.seeds() {
            let (host, port) = seed.address();
            if known.iter().any(|node| node.is_at(host, port)) {
                continue;
            }
            match read_slots_of_seed(seed).await {
                Ok(ranges) => {
                    if offer(ranges) {
                        return Ok(best);
                    }
                }
                Err(error) => {
                    failure.get_or_insert(error);
                }
            }
        }
        match failure {
            Some(failure) if best.is_empty() => Err(failure),
            _ => Ok(best),
        }
    }

    fn build_map(&self, ranges: Vec<SlotRange>, known: &SlotMap) -> SlotMap {
        let mut map = SlotMap::new(ranges, |new, host, port| {
            let found = new.find(host, port).or_else(|| known.find(host, port));
            found.cloned().unwrap_or_else(|| self.make_node(host, port))
        });
        if let Some(since) = Instant::now().checked_sub(IMPORTING) {
            let others = known.others().iter();
            for node in others.filter(|node| node.connection.has_replied_since(since)) {
                map.add(node);
            }
        }
        map
    }

    fn make_node(&self, host: &str, port: u16) -> Arc<Node> {
        let server = self.cluster.node(host, port);
        let connector = Arc::new(Connector::Server(Box::new(server)));
        let connection = ReconnectingConnection::new(connector, self.runtime.clone());
        Node::new(host, port, Arc::new(connection))
    }

    /// Returns the node that a redirect names.
    fn node_at(&self, host: &str, port: u16) -> Arc<Node> {
        let map = self.current_map().unwrap_or_default();
        if let Some(known) = map.find(host, port) {
            return Arc::clone(known);
        }
        let mut node = self.make_node(host, port);
        // Another task may have added one meanwhile.
        self.change_map(|map| match map.find(host, port) {
            Some(known) => node = Arc::clone(known),
            None => map.add(&node),
        });
        node
    }

    /// Remembers the master that a redirect names for a slot.
    fn set_master(&self, slot: u16, host: &str, port: u16) {
        let node = self.node_at(host, port);
        self.cluster.nodes().set(slot, host, port);
        self.change_map(|map| map.set_master(slot, &node));
    }

    fn change_map(&self, change: impl FnOnce(&mut SlotMap)) {
        self.state.send_if_modified(|state| {
            let mut map = state.map.as_deref().cloned().unwrap_or_default();
            change(&mut map);
            state.map = Some(Arc::new(map));
            false
        });
    }
}

async fn send_to(
    node: &Node,
    command: &Cmd,
    is_asking: bool,
    deadline: Duration,
) -> RedisResult<Value> {
    asked::note(node.connection.server());
    let link = node.connection.acquire(deadline).await.map_err(noted)?;
    if is_asking {
        link.send_asking(command).await
    } else {
        link.send(command).await
    }
}

/// Returns the error of an attempt to connect, and notes its server.
fn noted(failure: ConnectError) -> RedisError {
    asked::note(&failure.server);
    failure.error
}

fn slots_command() -> Cmd {
    let mut command = redis::cmd("CLUSTER");
    command.arg("SLOTS");
    command
}

async fn read_slots_of(node: Arc<Node>) -> Option<Vec<SlotRange>> {
    let command = slots_command();
    let reply = send_to(&node, &command, false, READ_TIMEOUT);
    let reply = real_time::timeout(READ_TIMEOUT, reply).await?.ok()?;
    slot_map::parse(reply, &node.host)
}

async fn read_slots_of_seed(seed: &Server) -> Result<Vec<SlotRange>, ConnectError> {
    let mut connection = seed.connect(Box::new(|| ())).await?;
    let command = slots_command();
    let reply = real_time::timeout(READ_TIMEOUT, connection.send_packed_command(&command));
    let reply = reply.await.unwrap_or_else(|| Err(timed_out()));
    let reply = reply.and_then(Value::extract_error);
    let reply = reply.map_err(|error| ConnectError {
        server: seed.name().clone(),
        error,
        handshake: Handshake::Unknown,
    })?;
    Ok(slot_map::parse(reply, seed.address().0).unwrap_or_default())
}

/// The reply that a node would send.
fn unserved() -> RedisResult<Value> {
    redis::parse_redis_value(b"-CLUSTERDOWN Hash slot not served\r\n")?.extract_error()
}

/// Returns the slot of the first key of a command, if the command has a key.
fn slot_of(command: &Cmd) -> Option<u16> {
    let mut args = command.args_iter();
    let key = match args.next()? {
        Arg::Simple(b"EVALSHA" | b"EVAL") => args.nth(2)?,
        Arg::Simple(b"ACL" | b"CLUSTER" | b"CONFIG" | b"HELLO" | b"INFO" | b"PING" | b"TIME") => {
            return None;
        }
        _ => args.next()?,
    };
    match key {
        Arg::Simple(key) => Some(slot_of_key(key)),
        _ => None,
    }
}

/// A caller that waits for a node. Has the slot map read again if the node is silent: another one may have taken
/// its place.
struct Waiting<'a> {
    connection: &'a Arc<ClusterConnection>,
    /// A caller that gives up earlier says nothing about the node.
    silent_at: Instant,
    is_over: bool,
}

impl<'a> Waiting<'a> {
    fn new(connection: &'a Arc<ClusterConnection>, deadline: Duration) -> Self {
        Self {
            connection,
            silent_at: Instant::now() + deadline / 2,
            is_over: false,
        }
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        if !self.is_over && Instant::now() >= self.silent_at {
            self.connection.refresh();
        }
    }
}

/// The task that reads the slot map.
struct RefreshTask {
    connection: Arc<ClusterConnection>,
    is_done: bool,
}

impl RefreshTask {
    async fn run(mut self, not_before: Option<Instant>) {
        if let Some(not_before) = not_before {
            real_time::sleep(not_before.saturating_duration_since(Instant::now())).await;
        }
        let read = self.connection.read_map().await;
        self.end(read);
    }

    fn end(&mut self, read: Result<Vec<SlotRange>, ConnectError>) {
        self.is_done = true;
        self.connection.state.send_modify(|state| {
            state.is_reading = false;
            state.read_at = Some(Instant::now());
            match read {
                // Nodes that serve nothing know less than the last map.
                Ok(ranges) if ranges.is_empty() && state.map.is_some() => {}
                Ok(ranges) => {
                    let known = state.map.take().unwrap_or_default();
                    let map = self.connection.build_map(ranges, &known);
                    self.connection.cluster.nodes().replace(map.addresses());
                    for node in map.masters() {
                        node.connection.connect_if_new();
                    }
                    state.map = Some(Arc::new(map));
                    state.failure = None;
                }
                Err(error) => state.failure = Some(Failure::new(error)),
            }
        });
    }
}

impl Drop for RefreshTask {
    /// Fails the callers on other runtimes when this one shuts down. They would wait forever otherwise.
    fn drop(&mut self) {
        if !self.is_done {
            let server = self.connection.server().clone();
            self.end(Err(error::runtime_has_ended(server)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_goes_to_the_slot_of_its_first_key() {
        let slot = |args: &[&str]| {
            let mut command = redis::cmd(args[0]);
            command.arg(&args[1..]);
            slot_of(&command)
        };
        // As CLUSTER KEYSLOT says.
        assert_eq!(slot(&["EVALSHA", "0", "2", "foo", "bar"]), Some(12_182));
        assert_eq!(slot(&["UNLINK", "a{foo}b", "{foo}"]), Some(12_182));
        assert_eq!(slot(&["EXISTS", "a{}b{foo}"]), slot(&["SET", "a{}b{foo}"]));
        assert_ne!(slot(&["EXISTS", "a{}b{foo}"]), Some(12_182));
        for keyless in [&["PING"][..], &["TIME"], &["CONFIG", "GET", "foo"]] {
            assert_eq!(slot(keyless), None);
        }
    }
}
