//! One connection that is kept: made when first used, given up when it serves no more, made again.
//!
//! At most one attempt to connect is under way, whatever number of callers waits for it. A caller
//! waits for no longer than its own deadline; the attempt goes on without it.

use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use redis::{Cmd, RedisError, RedisResult, Value};
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::time;

use super::error;
use super::silence::Silence;
use super::source::{Link, Source};

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
pub(super) struct Slot {
    source: Arc<Source>,
    state: watch::Sender<State>,
}

#[derive(Debug)]
enum State {
    /// Nobody has asked for it, or the last attempt failed.
    Absent(Option<Failure>),
    Connecting,
    Up(Arc<Up>),
    /// It has been silent for long, and is asked whether it is still there. Until that is known
    /// nothing else is sent: it would be executed when the server wakes, for nobody.
    Doubted(Arc<Up>),
}

#[derive(Debug)]
struct Failure {
    error: RedisError,
    believed_until: Instant,
}

/// A connection that was made.
#[derive(Debug)]
struct Up {
    link: Link,
    made: Instant,
    silence: Silence,
}

/// What one step of waiting for a connection comes to.
enum Step {
    Take(Arc<Up>),
    Fail(RedisError),
    Connect,
    Wait,
}

impl Slot {
    pub(super) fn new(source: Arc<Source>) -> Self {
        let (state, _) = watch::channel(State::Absent(None));
        Self { source, state }
    }

    /// The connection if it is there.
    pub(super) fn get(self: &Arc<Self>, deadline: Duration) -> Option<Live> {
        match &*self.state.borrow() {
            State::Up(up) => Some(self.live(Arc::clone(up), deadline)),
            State::Absent(_) | State::Connecting | State::Doubted(_) => None,
        }
    }

    /// The connection as soon as it is there, or why there is none.
    pub(super) async fn wait(self: &Arc<Self>, deadline: Duration) -> RedisResult<Live> {
        if let Some(live) = self.get(deadline) {
            return Ok(live);
        }
        let mut changes = self.state.subscribe();
        loop {
            let step = changes.borrow_and_update().step();
            match step {
                Step::Take(up) => return Ok(self.live(up, deadline)),
                Step::Fail(error) => return Err(error),
                Step::Connect => self.begin(|state| matches!(state, State::Absent(_))),
                Step::Wait => {}
            }
            // The sender is in the slot.
            let _ = changes.changed().await;
        }
    }

    fn live(self: &Arc<Self>, up: Arc<Up>, deadline: Duration) -> Live {
        Live {
            slot: Arc::clone(self),
            up,
            deadline,
        }
    }

    /// Begins an attempt to connect, if the state is one that wants it.
    fn begin(self: &Arc<Self>, wants: impl FnOnce(&State) -> bool) {
        // Outside of any runtime there is nobody to connect; the next caller is in one.
        let Ok(runtime) = Handle::try_current() else {
            return;
        };
        let mut not_before = None;
        let begins = self.state.send_if_modified(|state| {
            let wants = wants(state);
            if wants {
                not_before = state.up().map(|up| up.made + PAUSE);
                *state = State::Connecting;
            }
            wants
        });
        if begins {
            runtime.spawn(Arc::clone(self).connect(not_before));
        }
    }

    async fn connect(self: Arc<Self>, not_before: Option<Instant>) {
        if let Some(not_before) = not_before {
            time::sleep_until(not_before.into()).await;
        }
        let slot = Arc::downgrade(&self);
        let made = Instant::now();
        let state = match self.source.connect(on_loss(slot, made)).await {
            Ok(link) => State::Up(Arc::new(Up {
                link,
                made,
                silence: Silence::new(),
            })),
            Err(error) => State::Absent(Some(Failure::new(error))),
        };
        self.state.send_replace(state);
    }

    /// A connection serves no more: the next one is made now, so that it is there when it is needed.
    fn lose(self: &Arc<Self>, made: Instant) {
        self.begin(|state| state.up().is_some_and(|up| up.made == made));
    }

    /// Asks a connection that has been silent whether it is still there.
    fn doubt(self: &Arc<Self>, up: &Arc<Up>, patience: Duration) {
        let Ok(runtime) = Handle::try_current() else {
            return;
        };
        let doubts = self.state.send_if_modified(|state| {
            let is_it = matches!(state, State::Up(now) if Arc::ptr_eq(now, up));
            if is_it {
                *state = State::Doubted(Arc::clone(up));
            }
            is_it
        });
        if doubts {
            runtime.spawn(Arc::clone(self).ask(Arc::clone(up), patience));
        }
    }

    async fn ask(self: Arc<Self>, up: Arc<Up>, patience: Duration) {
        let ping = redis::cmd("PING");
        let answer = time::timeout(patience, up.link.send(&ping)).await;
        // An error of the server is an answer as well.
        let is_there = answer.is_ok_and(|answer| !answer.is_err_and(|error| is_loss(&error)));
        if !is_there {
            return self.lose(up.made);
        }
        up.silence.answered();
        self.state.send_if_modified(|state| {
            let is_it = matches!(state, State::Doubted(now) if Arc::ptr_eq(now, &up));
            if is_it {
                *state = State::Up(up);
            }
            is_it
        });
    }
}

/// Tells a slot that the connection that was made then is lost.
fn on_loss(slot: Weak<Slot>, made: Instant) -> Box<dyn Fn() + Send + Sync> {
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
    fn up(&self) -> Option<&Arc<Up>> {
        match self {
            Self::Up(up) | Self::Doubted(up) => Some(up),
            Self::Absent(_) | Self::Connecting => None,
        }
    }

    fn step(&self) -> Step {
        match self {
            Self::Up(up) => Step::Take(Arc::clone(up)),
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
        let pause = if error::is_of_setup(&error) {
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
pub(super) struct Live {
    slot: Arc<Slot>,
    up: Arc<Up>,
    deadline: Duration,
}

impl Live {
    /// Sends a command, once.
    pub(super) async fn send(&self, command: &Cmd) -> RedisResult<Value> {
        let mut sent = Sent {
            on: self,
            at: self.up.silence.sending(),
            is_answered: false,
        };
        let reply = self.up.link.send(command).await;
        sent.is_answered = true;
        match &reply {
            Err(failure) if is_loss(failure) => self.slot.lose(self.up.made),
            _ => self.up.silence.answered(),
        }
        reply
    }

    /// Begins with a new connection, unless this one was made just now.
    pub(super) fn give_up(&self) {
        if self.up.made.elapsed() >= GIVE_UP_AFTER {
            self.slot.lose(self.up.made);
        }
    }
}

/// A command that was sent. If it is dropped before it was answered, the server may hang: neither
/// the kernel nor the client notices that, which takes the connection of one for good.
struct Sent<'a> {
    on: &'a Live,
    at: u64,
    is_answered: bool,
}

impl Drop for Sent<'_> {
    fn drop(&mut self) {
        let Live { slot, up, deadline } = self.on;
        if !self.is_answered && up.silence.of(self.at) >= *deadline / 2 {
            let patience = (*deadline).clamp(LEAST_PATIENCE, MOST_PATIENCE);
            slot.doubt(up, patience);
        }
    }
}
