//! A connection that reconnects: made on first use, replaced when it is lost.
//!
//! A connection to one server is probed when a command was not answered within its deadline.
//! Nothing else is sent on it until the probe is answered. A caller that gives up earlier triggers
//! a probe as well, but the connection stays in use meanwhile, so impatient callers do no harm.
//!
//! Each node of a cluster has such a connection.
//!
//! At most one attempt to connect is in progress, however many callers wait for it. A caller waits
//! until its own deadline; the attempt goes on without it.

use std::mem::discriminant;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use redis::{Cmd, RedisError, RedisResult, Value};
use tokio::runtime::Handle;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};

use super::link::Connector;
use super::script_support::{self, ScriptSupport};
use super::single::{CONCURRENT_COMMANDS, OnDisconnect};
use super::state::{
    ConnectionState, Established, Failure, RECONNECT_BACKOFF, Step, is_connection_lost,
};
use crate::store::redis::protocol::ServerName;
use crate::store::redis::protocol::errors::{self as error, ConnectError, Handshake};
use crate::store::redis::real_time;

/// The shortest time that a probe has for its answer: more than the 200 ms after which Linux
/// retransmits a lost packet.
const MIN_PROBE_TIMEOUT: Duration = Duration::from_millis(300);
const MAX_PROBE_TIMEOUT: Duration = Duration::from_secs(5);

/// One connection of one runtime, in its current state.
#[derive(Debug)]
pub(crate) struct ReconnectingConnection {
    connector: Arc<Connector>,
    /// The runtime that owns this connection. Background tasks run here, not on the caller's
    /// runtime, which may shut down or stall first.
    runtime: Handle,
    state: watch::Sender<ConnectionState>,
    /// Callers wait here before they send, so that those that were never sent are told apart from those that the server
    /// does not answer.
    turns: Arc<Semaphore>,
    made_at: Instant,
    /// The time of the last reply, in microseconds since this was made.
    replied_at: AtomicU64,
    /// The microseconds between the last command that was answered and its reply.
    round_trip: AtomicU64,
    scripts: ScriptSupport,
}

impl ReconnectingConnection {
    /// A connection owned by `runtime`. Does not connect yet.
    pub(super) fn new(connector: Arc<Connector>, runtime: Handle) -> Self {
        let (state, _) = watch::channel(ConnectionState::Absent(None));
        Self {
            connector,
            runtime,
            state,
            turns: Arc::new(Semaphore::new(CONCURRENT_COMMANDS)),
            made_at: Instant::now(),
            replied_at: AtomicU64::new(0),
            round_trip: AtomicU64::new(0),
            scripts: ScriptSupport::default(),
        }
    }

    /// The server, for errors.
    #[cfg(feature = "cluster")]
    pub(super) fn server(&self) -> &ServerName {
        self.connector.server()
    }

    /// Whether the server has replied to any command since then.
    pub(super) fn has_replied_since(&self, since: Instant) -> bool {
        let replied_at = Duration::from_micros(self.replied_at.load(Ordering::Relaxed));
        !replied_at.is_zero() && self.made_at + replied_at >= since
    }

    /// Returns the last round trip.
    pub(super) fn round_trip(&self) -> Duration {
        Duration::from_micros(self.round_trip.load(Ordering::Relaxed))
    }

    /// Takes a place among the calls in flight, if one is free.
    pub(super) fn try_take_turn(&self) -> Option<OwnedSemaphorePermit> {
        Arc::clone(&self.turns).try_acquire_owned().ok()
    }

    /// Waits for a place among the calls in flight.
    pub(super) async fn take_turn(&self) -> Option<OwnedSemaphorePermit> {
        // Never fails: nobody closes the semaphore.
        Arc::clone(&self.turns).acquire_owned().await.ok()
    }

    fn record_reply(&self, sent_at: Instant) {
        let micros = |time: Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        self.replied_at
            .store(micros(self.made_at.elapsed()), Ordering::Relaxed);
        self.round_trip
            .store(micros(sent_at.elapsed()), Ordering::Relaxed);
    }

    /// Returns the connection, for calls of this deadline, if it is established.
    pub(super) fn try_acquire(self: &Arc<Self>, deadline: Duration) -> Option<AcquiredServer> {
        match &*self.state.borrow() {
            ConnectionState::Established(established) => Some(self.acquired(established, deadline)),
            ConnectionState::Absent(_)
            | ConnectionState::Connecting(_)
            | ConnectionState::Probing(_) => None,
        }
    }

    /// Waits until the connection is established, for calls of this deadline, or until an attempt
    /// fails. After a wrong set-up, half of the deadline is waited for another attempt, because a
    /// timeout would hide what is wrong.
    pub(super) async fn acquire(
        self: &Arc<Self>,
        deadline: Duration,
    ) -> Result<AcquiredServer, ConnectError> {
        if let Some(acquired) = self.try_acquire(deadline) {
            return Ok(acquired);
        }
        let mut changes = self.state.subscribe();
        let wait_until = Instant::now() + deadline / 2;
        loop {
            let step = changes.borrow_and_update().step();
            match step {
                Step::Take(established) => return Ok(self.acquired(&established, deadline)),
                Step::Fail(error) => return Err(error),
                Step::Connect => {
                    self.start_connecting(|state| matches!(state, ConnectionState::Absent(_)));
                }
                Step::Wait(None) => {}
                Step::Wait(Some(previous)) => {
                    let changed = real_time::timeout_at(wait_until, changes.changed()).await;
                    if changed.is_none() {
                        return Err(previous);
                    }
                    continue;
                }
            }
            // Cannot fail: `self` holds the sender.
            let _ = changes.changed().await;
        }
    }

    fn acquired(
        self: &Arc<Self>,
        established: &Arc<Established>,
        deadline: Duration,
    ) -> AcquiredServer {
        AcquiredServer {
            connection: Arc::clone(self),
            established: Arc::clone(established),
            deadline,
        }
    }

    /// Connects in the background if that was never tried, so that the first caller need not wait.
    #[cfg(feature = "cluster")]
    pub(super) fn connect_if_new(self: &Arc<Self>) {
        self.start_connecting(|state| matches!(state, ConnectionState::Absent(None)));
    }

    /// Starts an attempt to connect if the state calls for one.
    fn start_connecting(self: &Arc<Self>, is_due: impl FnOnce(&ConnectionState) -> bool) {
        let mut not_before = None;
        let starts = self.state.send_if_modified(|state| {
            let is_due = is_due(state);
            if is_due {
                let previous = state.connection();
                not_before = previous.map(|previous| previous.started_at + RECONNECT_BACKOFF);
                *state = ConnectionState::Connecting(state.misconfiguration());
            }
            is_due
        });
        if starts {
            self.runtime
                .spawn(ConnectionTask::new(self).connect(not_before));
        }
    }

    async fn connect(self: &Arc<Self>) -> Result<Arc<Established>, ConnectError> {
        let started_at = Instant::now();
        let on_disconnect = reconnect_on_disconnect(Arc::downgrade(self), started_at);
        let connected = self.connector.connect(on_disconnect);
        let (link, server) = connected.await?;
        let established = Established::new(link, server, started_at);
        // Calls would only end this connection, too.
        match self.scripts_refusal(&established).await {
            Some(refusal) => Err(ConnectError {
                server: established.server.clone(),
                error: refusal,
                handshake: Handshake::Unknown,
            }),
            None => Ok(established),
        }
    }

    /// Asks the server whether it knows EVALSHA, if its replies leave a doubt. Returns its error if not.
    async fn scripts_refusal(&self, established: &Established) -> Option<RedisError> {
        if !self.scripts.is_doubted() {
            return None;
        }
        let probe = script_support::probe();
        let reply = real_time::timeout(MIN_PROBE_TIMEOUT, established.link.send(&probe)).await;
        let reply = reply?;
        self.scripts.note(&probe, &reply, false);
        reply.err().filter(error::is_unknown_command)
    }

    /// Replaces the lost connection that started at `lost`. Connects now, so that the next caller
    /// need not wait.
    fn reconnect(self: &Arc<Self>, lost: Instant) {
        self.start_connecting(|state| {
            let current = state.connection();
            current.is_some_and(|current| current.started_at == lost)
        });
    }

    /// Reconnects because the server said that another one should be asked, unless this connection
    /// is new.
    pub(super) fn give_up(self: &Arc<Self>, established: &Established) {
        if !established.link.reconnects_on_its_own() && established.is_old_enough_to_give_up() {
            self.reconnect(established.started_at);
        }
    }

    /// Handles the failure of a command.
    pub(super) fn on_failure(
        self: &Arc<Self>,
        established: &Arc<Established>,
        failure: &RedisError,
        deadline: Duration,
    ) {
        if is_connection_lost(failure) {
            if established.link.reconnects_on_its_own() {
                // If it can.
                self.probe(established, deadline);
            } else {
                self.reconnect(established.started_at);
            }
        }
        if error::is_replica(failure) {
            self.give_up(established);
        }
    }

    /// Handles a caller that gave up on a command after `waited`. The server may hang, which
    /// neither the kernel nor the client would notice: they take its connection for good.
    pub(super) fn on_unanswered(
        self: &Arc<Self>,
        established: &Arc<Established>,
        waited: Duration,
        deadline: Duration,
    ) {
        if waited >= deadline / 2 {
            self.probe(established, deadline);
        } else {
            self.probe_in_use(established, deadline);
        }
    }

    /// Probes a connection that did not answer a command. One to a single server is not used
    /// meanwhile.
    fn probe(self: &Arc<Self>, established: &Arc<Established>, deadline: Duration) {
        let Some(probe) = established.link.probe() else {
            return;
        };
        let timeout = deadline.clamp(MIN_PROBE_TIMEOUT, MAX_PROBE_TIMEOUT);
        if self.transition(
            established,
            ConnectionState::Established,
            ConnectionState::Probing,
        ) {
            let established = Arc::clone(established);
            self.runtime
                .spawn(ConnectionTask::new(self).probe(established, probe, timeout));
        }
    }

    /// Probes a connection to a single server that stays in use: a caller gave up too early to tell
    /// whether the server is silent. Replies come in the order of the commands, so the probe covers
    /// that command.
    fn probe_in_use(self: &Arc<Self>, established: &Arc<Established>, deadline: Duration) {
        let Some(probe) = established.link.probe() else {
            return;
        };
        if established.is_probed.swap(true, Ordering::Relaxed) {
            return;
        }
        let (connection, established) = (Arc::clone(self), Arc::clone(established));
        self.runtime.spawn(async move {
            if !established.answers(&probe, deadline / 2).await {
                connection.probe(&established, deadline);
            }
            established.is_probed.store(false, Ordering::Relaxed);
        });
    }

    /// Moves from one state of a connection to another, if it is still in the first. Returns
    /// whether it was.
    fn transition(
        &self,
        established: &Arc<Established>,
        from: impl Fn(Arc<Established>) -> ConnectionState,
        to: impl FnOnce(Arc<Established>) -> ConnectionState,
    ) -> bool {
        let from = discriminant(&from(Arc::clone(established)));
        self.state.send_if_modified(|state| {
            let current = state.connection();
            let is_same = current.is_some_and(|current| Arc::ptr_eq(current, established))
                && discriminant(state) == from;
            if is_same {
                *state = to(Arc::clone(established));
            }
            is_same
        })
    }
}

/// An established connection that a caller sends on. It is not replaced under the caller.
pub(super) struct AcquiredServer {
    connection: Arc<ReconnectingConnection>,
    established: Arc<Established>,
    /// The deadline of the calls: decides when an unanswered command is silence.
    deadline: Duration,
}

impl AcquiredServer {
    /// Sends a command, once.
    pub(super) async fn send(&self, command: &Cmd) -> RedisResult<Value> {
        let exchange = self.established.link.send(command);
        self.exchange(command, exchange).await
    }

    /// Sends a command, once, to a node that is about to get the slot of its keys.
    #[cfg(feature = "cluster")]
    pub(super) async fn send_asking(&self, command: &Cmd) -> RedisResult<Value> {
        let exchange = self.established.link.send_asking(command);
        self.exchange(command, exchange).await
    }

    async fn exchange(
        &self,
        command: &Cmd,
        exchange: impl Future<Output = RedisResult<Value>>,
    ) -> RedisResult<Value> {
        let Self {
            connection,
            established,
            deadline,
        } = self;
        let mut in_flight = InFlight {
            acquired: self,
            sent_at: Instant::now(),
            is_answered: false,
        };
        let reply = exchange.await;
        in_flight.is_answered = true;
        let may_be_lost = !established.link.reconnects_on_its_own();
        connection.scripts.note(command, &reply, may_be_lost);
        if !matches!(&reply, Err(failure) if failure.code().is_none()) {
            connection.record_reply(in_flight.sent_at);
        }
        if let Err(failure) = &reply {
            connection.on_failure(established, failure, *deadline);
        }
        reply
    }

    /// Returns the error of a server that does not know EVALSHA, if calls have failed without a reply so far. That
    /// error tells more than theirs.
    pub(super) async fn scripts_refusal(&self) -> Option<RedisError> {
        let Self {
            connection,
            deadline,
            ..
        } = self;
        if !connection.scripts.is_doubted() {
            return None;
        }
        match connection.acquire(*deadline).await {
            Ok(acquired) => connection.scripts_refusal(&acquired.established).await,
            Err(failure) => Some(failure.error).filter(error::is_unknown_command),
        }
    }

    /// The server, for errors.
    pub(super) fn server(&self) -> &ServerName {
        &self.established.server
    }

    /// Reconnects before the next call, because this server is not the one to ask. Does nothing to
    /// a connection of the application.
    pub(super) fn give_up(&self) {
        self.connection.give_up(&self.established);
    }
}

/// A command in flight. Has the connection probed if it is dropped before the reply.
struct InFlight<'a> {
    acquired: &'a AcquiredServer,
    sent_at: Instant,
    is_answered: bool,
}

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        if !self.is_answered {
            let AcquiredServer {
                connection,
                established,
                deadline,
            } = self.acquired;
            let waited = self.sent_at.elapsed();
            connection.on_unanswered(established, waited, *deadline);
        }
    }
}

/// A background task whose result callers wait for.
struct ConnectionTask {
    connection: Arc<ReconnectingConnection>,
    is_done: bool,
}

impl ConnectionTask {
    fn new(connection: &Arc<ReconnectingConnection>) -> Self {
        Self {
            connection: Arc::clone(connection),
            is_done: false,
        }
    }

    async fn connect(mut self, not_before: Option<Instant>) {
        if let Some(not_before) = not_before {
            real_time::sleep(not_before.saturating_duration_since(Instant::now())).await;
        }
        let state = match self.connection.connect().await {
            Ok(established) => ConnectionState::Established(established),
            Err(error) => ConnectionState::Absent(Some(Failure::new(error))),
        };
        self.connection.state.send_replace(state);
        self.is_done = true;
    }

    async fn probe(mut self, established: Arc<Established>, probe: Cmd, timeout: Duration) {
        if established.answers(&probe, timeout).await {
            self.connection.transition(
                &established,
                ConnectionState::Probing,
                ConnectionState::Established,
            );
        } else {
            self.connection.reconnect(established.started_at);
        }
        self.is_done = true;
    }
}

impl Drop for ConnectionTask {
    /// Fails the callers on other runtimes when this one shuts down, and the connection with it.
    /// They would wait forever otherwise.
    fn drop(&mut self) {
        if !self.is_done {
            let server = self.connection.connector.server().clone();
            let failure = Failure::new(error::runtime_has_ended(server));
            let state = ConnectionState::Absent(Some(failure));
            self.connection.state.send_replace(state);
        }
    }
}

fn reconnect_on_disconnect(
    connection: Weak<ReconnectingConnection>,
    started_at: Instant,
) -> OnDisconnect {
    Box::new(move || {
        if let Some(connection) = connection.upgrade() {
            connection.reconnect(started_at);
        }
    })
}

#[cfg(test)]
impl ReconnectingConnection {
    /// Returns a function that tells whether the state has changed since now.
    pub(super) fn watch_state(&self) -> impl Fn() -> bool + use<> {
        let states = self.state.subscribe();
        move || states.has_changed().unwrap()
    }
}

#[cfg(test)]
mod tests;
