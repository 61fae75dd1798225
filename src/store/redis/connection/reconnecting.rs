//! A connection that reconnects: made on first use, replaced when it is lost.
//!
//! A connection to one server is probed when a command was not answered within its deadline.
//! Nothing else is sent on it until the probe is answered. A caller that gives up earlier triggers
//! a probe as well, but the connection stays in use meanwhile, so impatient callers do no harm.
//!
//! A connection to a cluster stays in use while one of its nodes is probed, because the other nodes
//! still answer. Its replacement takes over once it is established.
//!
//! At most one attempt to connect is in progress, however many callers wait for it. A caller waits
//! until its own deadline; the attempt goes on without it.

use std::mem::discriminant;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use redis::{Cmd, RedisError, RedisResult};
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::time;

use super::established::{Established, is_connection_lost};
use super::link::Connector;
use super::single::OnDisconnect;
use crate::store::redis::protocol::errors as error;

/// The time from a failed attempt, or from the start of the previous connection, to the next
/// attempt. A server that comes back is found at once, and one that refuses is not asked by each
/// check.
const RECONNECT_BACKOFF: Duration = Duration::from_millis(50);

/// The same after the server rejected our credentials or settings: it logs such attempts.
const MISCONFIGURED_BACKOFF: Duration = Duration::from_millis(250);

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
    /// The deadline of the calls that this connection is made for.
    deadline: Duration,
    state: watch::Sender<State>,
}

#[derive(Debug)]
enum State {
    /// Not used yet, or the last attempt failed.
    Absent(Option<Failure>),
    Connecting,
    Established(Arc<Established>),
    /// Silent, and probed. Nothing else is sent until the probe ends: a hung server would execute
    /// it after its callers have gone.
    Probing(Arc<Established>),
}

#[derive(Debug)]
struct Failure {
    error: RedisError,
    /// Until then, the error is returned without another attempt.
    retry_at: Instant,
}

/// The next step of a caller that waits for a connection.
enum Step {
    Take(Arc<Established>),
    Fail(RedisError),
    Connect,
    Wait,
}

impl ReconnectingConnection {
    /// A connection owned by `runtime`. Does not connect yet.
    pub(super) fn new(connector: Arc<Connector>, runtime: Handle, deadline: Duration) -> Self {
        let (state, _) = watch::channel(State::Absent(None));
        Self {
            connector,
            runtime,
            deadline,
            state,
        }
    }

    /// Returns the connection if it is established.
    pub(super) fn try_acquire(&self) -> Option<Arc<Established>> {
        match &*self.state.borrow() {
            State::Established(established) => Some(Arc::clone(established)),
            State::Absent(_) | State::Connecting | State::Probing(_) => None,
        }
    }

    /// Waits until the connection is established, or until an attempt fails.
    pub(super) async fn acquire(self: &Arc<Self>) -> RedisResult<Arc<Established>> {
        if let Some(established) = self.try_acquire() {
            return Ok(established);
        }
        let mut changes = self.state.subscribe();
        loop {
            let step = changes.borrow_and_update().step();
            match step {
                Step::Take(established) => return Ok(established),
                Step::Fail(error) => return Err(error),
                Step::Connect => {
                    self.start_connecting(|state| matches!(state, State::Absent(_)));
                }
                Step::Wait => {}
            }
            // Cannot fail: `self` holds the sender.
            let _ = changes.changed().await;
        }
    }

    /// Starts an attempt to connect if the state calls for one.
    fn start_connecting(self: &Arc<Self>, is_due: impl FnOnce(&State) -> bool) {
        let mut not_before = None;
        let starts = self.state.send_if_modified(|state| {
            let is_due = is_due(state);
            if is_due {
                let previous = state.connection();
                not_before = previous.map(|previous| previous.started_at + RECONNECT_BACKOFF);
                *state = State::Connecting;
            }
            is_due
        });
        if starts {
            self.runtime
                .spawn(ConnectionTask::new(self).connect(not_before));
        }
    }

    async fn connect(self: &Arc<Self>) -> RedisResult<Arc<Established>> {
        let started_at = Instant::now();
        let on_disconnect = reconnect_on_disconnect(Arc::downgrade(self), started_at);
        let link = self.connector.connect(self.deadline, on_disconnect).await?;
        Ok(Established::new(link, started_at))
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
    /// is new. A connection to a cluster finds the masters on its own.
    pub(super) fn give_up(self: &Arc<Self>, established: &Established) {
        if !established.link.is_cluster() && established.is_old_enough_to_give_up() {
            self.reconnect(established.started_at);
        }
    }

    /// Handles the failure of a command.
    pub(super) fn on_failure(
        self: &Arc<Self>,
        established: &Arc<Established>,
        failure: &RedisError,
        deadline: Duration,
        command: &Cmd,
    ) {
        if is_connection_lost(failure) {
            if established.link.is_cluster() {
                // It reconnects to its nodes on its own, if it can.
                self.probe(established, deadline, command);
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
        command: &Cmd,
    ) {
        if established.link.is_cluster() || waited >= deadline / 2 {
            self.probe(established, deadline, command);
        } else {
            self.probe_in_use(established, deadline, command);
        }
    }

    /// Probes a connection that did not answer a command. One to a single server is not used
    /// meanwhile.
    fn probe(self: &Arc<Self>, established: &Arc<Established>, deadline: Duration, command: &Cmd) {
        let Some(probe) = established.link.probe_for(command) else {
            return;
        };
        let timeout = deadline.clamp(MIN_PROBE_TIMEOUT, MAX_PROBE_TIMEOUT);
        let (connection, established) = (Arc::clone(self), Arc::clone(established));
        if established.link.is_cluster() {
            if !established.is_probed.swap(true, Ordering::Relaxed) {
                self.runtime
                    .spawn(connection.probe_node(established, probe, timeout));
            }
        } else if self.transition(&established, State::Established, State::Probing) {
            self.runtime
                .spawn(ConnectionTask::new(self).probe(established, probe, timeout));
        }
    }

    /// Probes a connection to a single server that stays in use: a caller gave up too early to tell
    /// whether the server is silent. Replies come in the order of the commands, so the probe covers
    /// that command.
    fn probe_in_use(
        self: &Arc<Self>,
        established: &Arc<Established>,
        deadline: Duration,
        command: &Cmd,
    ) {
        let Some(probe) = established.link.probe_for(command) else {
            return;
        };
        if established.is_probed.swap(true, Ordering::Relaxed) {
            return;
        }
        let (connection, established) = (Arc::clone(self), Arc::clone(established));
        self.runtime.spawn(async move {
            if !established.answers(&probe, deadline / 2).await {
                connection.probe(&established, deadline, &probe);
            }
            established.is_probed.store(false, Ordering::Relaxed);
        });
    }

    /// Probes one node of a cluster. The cluster client does not notice a node that hangs: it would
    /// keep sending to it after another node took over its slots. Before that, a new connection
    /// would only make all nodes wait for the hung one, so it has to answer the probe before it
    /// takes over.
    async fn probe_node(
        self: Arc<Self>,
        established: Arc<Established>,
        probe: Cmd,
        timeout: Duration,
    ) {
        if !established.answers(&probe, timeout).await
            && established.is_old_enough_to_give_up()
            && let Ok(new) = self.connect().await
            && new.answers(&probe, timeout).await
        {
            self.transition(&established, State::Established, |_| {
                State::Established(new)
            });
        }
        established.is_probed.store(false, Ordering::Relaxed);
    }

    /// Moves from one state of a connection to another, if it is still in the first. Returns
    /// whether it was.
    fn transition(
        &self,
        established: &Arc<Established>,
        from: impl Fn(Arc<Established>) -> State,
        to: impl FnOnce(Arc<Established>) -> State,
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
            time::sleep_until(not_before.into()).await;
        }
        let state = match self.connection.connect().await {
            Ok(established) => State::Established(established),
            Err(error) => State::Absent(Some(Failure::new(error))),
        };
        self.connection.state.send_replace(state);
        self.is_done = true;
    }

    async fn probe(mut self, established: Arc<Established>, probe: Cmd, timeout: Duration) {
        if established.answers(&probe, timeout).await {
            self.connection
                .transition(&established, State::Probing, State::Established);
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
            let failure = Failure::new(error::runtime_has_ended());
            let state = State::Absent(Some(failure));
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

impl State {
    /// The connection that there is, probed or not.
    fn connection(&self) -> Option<&Arc<Established>> {
        match self {
            Self::Established(established) | Self::Probing(established) => Some(established),
            Self::Absent(_) | Self::Connecting => None,
        }
    }

    fn step(&self) -> Step {
        match self {
            Self::Established(established) => Step::Take(Arc::clone(established)),
            Self::Absent(Some(failure)) if Instant::now() < failure.retry_at => {
                Step::Fail(failure.error.clone())
            }
            Self::Absent(_) => Step::Connect,
            Self::Connecting | Self::Probing(_) => Step::Wait,
        }
    }
}

impl Failure {
    fn new(error: RedisError) -> Self {
        let backoff = if error::is_of_setup(&error) {
            MISCONFIGURED_BACKOFF
        } else {
            RECONNECT_BACKOFF
        };
        Self {
            error,
            retry_at: Instant::now() + backoff,
        }
    }
}

#[cfg(test)]
impl ReconnectingConnection {
    #[cfg(feature = "cluster")]
    pub(super) fn deadline(&self) -> Duration {
        self.deadline
    }

    /// Returns a function that tells whether the state has changed since now.
    pub(super) fn watch_state(&self) -> impl Fn() -> bool + use<> {
        let states = self.state.subscribe();
        move || states.has_changed().unwrap()
    }
}
