//! One connection that is kept: made when first used, given up when it serves no more, made again.
//!
//! A connection to one server that is silent is asked whether it is still there, and meanwhile nothing
//! is sent on it. It is asked as well, but used on, when a caller gives up so early that it cannot be
//! told from silence: so it does not matter how impatient callers are. That to a cluster goes on, since other nodes answer: the node is asked, and a new
//! connection takes the place of the old one when it is there.
//!
//! At most one attempt to connect is under way, whatever number of callers waits for it. A caller
//! waits for no longer than its own deadline; the attempt goes on without it.

use std::mem::discriminant;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use redis::{Cmd, RedisError, RedisResult, Value};
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::time;

use super::link::{Connector, Link};
use crate::store::redis::protocol::errors as error;

/// From a failed attempt, or from the last connection, to the next one: a server that comes back is
/// found at once, one that refuses is not asked by each check.
const PAUSE: Duration = Duration::from_millis(50);

/// For how long a server that refuses us as we are set up is believed: it writes such attempts down.
const PAUSE_OF_SETUP: Duration = Duration::from_millis(250);

/// How old a connection must be to be given up for what the server said: one that is made again and
/// again at the wrong server would only add to what is wrong.
const GIVE_UP_AFTER: Duration = Duration::from_millis(500);

/// How long a connection that is asked whether it is still there has for its answer, at least: more
/// than the 200 ms after which Linux sends a lost packet again.
const LEAST_PATIENCE: Duration = Duration::from_millis(300);
const MOST_PATIENCE: Duration = Duration::from_secs(5);

/// The connection of one runtime, as it is now.
#[derive(Debug)]
pub(crate) struct ReconnectingConnection {
    source: Arc<Connector>,
    /// Whose the connection is, whatever runtime it is that a caller is polled or dropped in: tasks that
    /// another one has may end, or stand still, while this one waits for what they do.
    runtime: Handle,
    /// For calls that take so long at most.
    deadline: Duration,
    state: watch::Sender<State>,
}

#[derive(Debug)]
enum State {
    /// Nobody has asked for it, or the last attempt failed.
    Absent(Option<Failure>),
    Connecting,
    Established(Arc<Established>),
    /// It has been silent for long, and is asked whether it is still there. Until that is known
    /// nothing else is sent: it would be executed when the server wakes, for nobody.
    Doubted(Arc<Established>),
}

#[derive(Debug)]
struct Failure {
    error: RedisError,
    believed_until: Instant,
}

/// A connection that was made.
#[derive(Debug)]
struct Established {
    link: Link,
    made: Instant,
    /// Whether it is being asked whether it is still there, while others go on.
    is_asked: AtomicBool,
}

impl Established {
    fn new(link: Link, made: Instant) -> Arc<Self> {
        Arc::new(Self {
            link,
            made,
            is_asked: AtomicBool::new(false),
        })
    }

    /// Whether it answers. An error of the server is an answer as well.
    async fn answers(&self, probe: &Cmd, patience: Duration) -> bool {
        let answer = time::timeout(patience, self.link.send(probe)).await;
        answer.is_ok_and(|answer| !answer.is_err_and(|error| is_loss(&error)))
    }
}

/// What one step of waiting for a connection comes to.
enum Step {
    Take(Arc<Established>),
    Fail(RedisError),
    Connect,
    Wait,
}

impl ReconnectingConnection {
    /// The connection of a runtime.
    pub(crate) fn new(source: Arc<Connector>, runtime: Handle, deadline: Duration) -> Self {
        let (state, _) = watch::channel(State::Absent(None));
        Self {
            source,
            runtime,
            deadline,
            state,
        }
    }

    /// The connection if it is there.
    pub(crate) fn get(self: &Arc<Self>, deadline: Duration) -> Option<Acquired> {
        match &*self.state.borrow() {
            State::Established(up) => Some(self.live(Arc::clone(up), deadline)),
            State::Absent(_) | State::Connecting | State::Doubted(_) => None,
        }
    }

    /// The connection as soon as it is there, or why there is none.
    pub(crate) async fn wait(self: &Arc<Self>, deadline: Duration) -> RedisResult<Acquired> {
        if let Some(live) = self.get(deadline) {
            return Ok(live);
        }
        let mut changes = self.state.subscribe();
        loop {
            let step = changes.borrow_and_update().step();
            match step {
                Step::Take(up) => return Ok(self.live(up, deadline)),
                Step::Fail(error) => return Err(error),
                Step::Connect => {
                    self.begin(|state| matches!(state, State::Absent(_)));
                }
                Step::Wait => {}
            }
            // The sender is in the slot.
            let _ = changes.changed().await;
        }
    }

    fn live(self: &Arc<Self>, up: Arc<Established>, deadline: Duration) -> Acquired {
        let slot = Arc::clone(self);
        Acquired { slot, up, deadline }
    }

    /// Begins an attempt to connect, if the state is one that wants it.
    fn begin(self: &Arc<Self>, wants: impl FnOnce(&State) -> bool) {
        let mut not_before = None;
        let begins = self.state.send_if_modified(|state| {
            let wants = wants(state);
            if wants {
                not_before = state.connection().map(|up| up.made + PAUSE);
                *state = State::Connecting;
            }
            wants
        });
        if begins {
            let duty = ConnectionTask::of(self);
            self.runtime.spawn(duty.connect(not_before));
        }
    }

    async fn make(self: &Arc<Self>) -> RedisResult<Arc<Established>> {
        let (slot, made) = (Arc::downgrade(self), Instant::now());
        let link = self
            .source
            .connect(self.deadline, on_loss(slot, made))
            .await?;
        Ok(Established::new(link, made))
    }

    /// A connection serves no more: the next one is made now, so that it is there when it is needed.
    fn lose(self: &Arc<Self>, made: Instant) {
        self.begin(|state| state.connection().is_some_and(|up| up.made == made));
    }

    /// Asks a connection that does not answer a command whether it is still there.
    fn doubt(self: &Arc<Self>, up: &Arc<Established>, deadline: Duration, command: &Cmd) {
        let Some(probe) = up.link.probe(command) else {
            return;
        };
        let patience = deadline.clamp(LEAST_PATIENCE, MOST_PATIENCE);
        let (slot, up) = (Arc::clone(self), Arc::clone(up));
        if up.link.is_of_cluster() {
            if !up.is_asked.swap(true, Ordering::Relaxed) {
                self.runtime.spawn(slot.ask_node(up, probe, patience));
            }
        } else if self.exchange(&up, State::Established, State::Doubted) {
            self.runtime
                .spawn(ConnectionTask::of(self).ask(up, probe, patience));
        }
    }

    /// Asks a connection to one server, without a doubt: a caller gave up too early to tell whether it is
    /// silent, and its answer is seen by nobody. Answers come in the order of the commands.
    fn look_at(self: &Arc<Self>, up: &Arc<Established>, deadline: Duration, command: &Cmd) {
        let Some(probe) = up.link.probe(command) else {
            return;
        };
        if up.is_asked.swap(true, Ordering::Relaxed) {
            return;
        }
        let (slot, up) = (Arc::clone(self), Arc::clone(up));
        self.runtime.spawn(async move {
            if !up.answers(&probe, deadline / 2).await {
                slot.doubt(&up, deadline, &probe);
            }
            up.is_asked.store(false, Ordering::Relaxed);
        });
    }

    /// Asks a node of a cluster. The client of one does not notice a node that hangs: it would ask it
    /// for ever, though another one has its slots by now. Until another one has, a new connection would
    /// only have all nodes wait for that one.
    async fn ask_node(self: Arc<Self>, up: Arc<Established>, probe: Cmd, patience: Duration) {
        if !up.answers(&probe, patience).await
            && up.made.elapsed() >= GIVE_UP_AFTER
            && let Ok(new) = self.make().await
            && new.answers(&probe, patience).await
        {
            self.exchange(&up, State::Established, |_| State::Established(new));
        }
        up.is_asked.store(false, Ordering::Relaxed);
    }

    /// Goes from one state of a connection to another one, if it is in that.
    fn exchange(
        &self,
        up: &Arc<Established>,
        from: impl Fn(Arc<Established>) -> State,
        to: impl FnOnce(Arc<Established>) -> State,
    ) -> bool {
        let from = discriminant(&from(Arc::clone(up)));
        self.state.send_if_modified(|state| {
            let is_it = state.connection().is_some_and(|now| Arc::ptr_eq(now, up));
            let is_it = is_it && discriminant(state) == from;
            if is_it {
                *state = to(Arc::clone(up));
            }
            is_it
        })
    }
}

/// A task in whose time others wait for what becomes of the connection.
struct ConnectionTask {
    slot: Arc<ReconnectingConnection>,
    is_done: bool,
}

impl ConnectionTask {
    fn of(slot: &Arc<ReconnectingConnection>) -> Self {
        let slot = Arc::clone(slot);
        let is_done = false;
        Self { slot, is_done }
    }

    async fn connect(mut self, not_before: Option<Instant>) {
        if let Some(not_before) = not_before {
            time::sleep_until(not_before.into()).await;
        }
        let state = match self.slot.make().await {
            Ok(up) => State::Established(up),
            Err(error) => State::Absent(Some(Failure::new(error))),
        };
        self.slot.state.send_replace(state);
        self.is_done = true;
    }

    async fn ask(mut self, up: Arc<Established>, probe: Cmd, patience: Duration) {
        if up.answers(&probe, patience).await {
            self.slot.exchange(&up, State::Doubted, State::Established);
        } else {
            self.slot.lose(up.made);
        }
        self.is_done = true;
    }
}

impl Drop for ConnectionTask {
    /// Before its end, it is the runtime that ends, and the connection with it. Who still waits, in
    /// another one, would do so for ever.
    fn drop(&mut self) {
        if !self.is_done {
            let failure = Failure::new(error::runtime_has_ended());
            self.slot.state.send_replace(State::Absent(Some(failure)));
        }
    }
}

/// Tells a slot that the connection that was made then is lost.
fn on_loss(slot: Weak<ReconnectingConnection>, made: Instant) -> Box<dyn Fn() + Send + Sync> {
    Box::new(move || {
        if let Some(slot) = slot.upgrade() {
            slot.lose(made);
        }
    })
}

fn is_loss(error: &RedisError) -> bool {
    error.is_unrecoverable_error() || error.is_timeout()
}

impl State {
    /// The connection that is there, be it doubted.
    fn connection(&self) -> Option<&Arc<Established>> {
        match self {
            Self::Established(up) | Self::Doubted(up) => Some(up),
            Self::Absent(_) | Self::Connecting => None,
        }
    }

    fn step(&self) -> Step {
        match self {
            Self::Established(up) => Step::Take(Arc::clone(up)),
            Self::Absent(Some(failure)) if Instant::now() < failure.believed_until => {
                Step::Fail(failure.error.clone())
            }
            Self::Absent(_) => Step::Connect,
            Self::Connecting | Self::Doubted(_) => Step::Wait,
        }
    }
}

impl Failure {
    fn new(error: RedisError) -> Self {
        let pause = if error::is_misconfigured(&error) {
            PAUSE_OF_SETUP
        } else {
            PAUSE
        };
        Self {
            error,
            believed_until: Instant::now() + pause,
        }
    }
}

/// A connection that is in use.
#[derive(Debug)]
pub(crate) struct Acquired {
    slot: Arc<ReconnectingConnection>,
    up: Arc<Established>,
    deadline: Duration,
}

impl Acquired {
    /// Sends a command, once.
    pub(crate) async fn send(&self, command: &Cmd) -> RedisResult<Value> {
        let mut sent = Sent {
            on: self,
            command,
            at: Instant::now(),
            is_answered: false,
        };
        let reply = self.up.link.send(command).await;
        sent.is_answered = true;
        if let Err(failure) = &reply
            && is_loss(failure)
        {
            self.lose(command);
        }
        reply
    }

    /// Begins with a new connection, unless this one was made just now. That to a cluster looks for
    /// the masters by itself.
    pub(crate) fn give_up(&self) {
        if !self.up.link.is_of_cluster() && self.up.made.elapsed() >= GIVE_UP_AFTER {
            self.slot.lose(self.up.made);
        }
    }

    fn lose(&self, command: &Cmd) {
        let Self { slot, up, deadline } = self;
        if up.link.is_of_cluster() {
            // It connects to its nodes again by itself, if it can.
            slot.doubt(up, *deadline, command);
        } else {
            slot.lose(up.made);
        }
    }
}

/// A command that was sent. If it is dropped before it was answered, the server may hang: neither
/// the kernel nor the client notices that, which takes the connection of one for good.
struct Sent<'a> {
    on: &'a Acquired,
    command: &'a Cmd,
    at: Instant,
    is_answered: bool,
}

impl Drop for Sent<'_> {
    fn drop(&mut self) {
        let Acquired { slot, up, deadline } = self.on;
        if self.is_answered {
            return;
        }
        // A node of a cluster is only asked.
        if up.link.is_of_cluster() || self.at.elapsed() >= *deadline / 2 {
            slot.doubt(up, *deadline, self.command);
        } else {
            slot.look_at(up, *deadline, self.command);
        }
    }
}

#[cfg(all(test, feature = "cluster"))]
impl ReconnectingConnection {
    pub(crate) fn deadline(&self) -> Duration {
        self.deadline
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::task::Poll;

    use super::*;
    use crate::store::redis::test_server::RedisServer;
    use crate::store::redis::url as address;

    /// Sends a command, and does not wait for its answer.
    async fn send_and_give_up(live: &Acquired) {
        let command = redis::cmd("PING");
        let mut sent = pin!(live.send(&command));
        std::future::poll_fn(|context| {
            assert!(sent.as_mut().poll(context).is_pending());
            Poll::Ready(())
        })
        .await;
    }

    #[tokio::test]
    async fn commands_that_are_given_up_early_cast_no_doubt_on_a_connection_that_answers() {
        let server = RedisServer::start();
        let (source, deadline) = (
            address::source(&server.url()).unwrap(),
            Duration::from_secs(1),
        );
        let slot = Arc::new(ReconnectingConnection::new(
            Arc::new(source),
            Handle::current(),
            deadline,
        ));
        let live = slot.wait(deadline).await.unwrap();
        let states = slot.state.subscribe();
        for _ in 0..3 {
            send_and_give_up(&live).await;
            // Nobody else uses the connection for so long that it would be silent if it had not answered.
            time::sleep(deadline * 6 / 10).await;
        }
        assert!(!states.has_changed().unwrap());
    }
}
