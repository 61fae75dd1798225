//! One server: a connection that is made on first use and replaced when it is lost, and the lines on it.
//!
//! At most one attempt to connect is in progress, however many callers wait for it. A server that leaves a call unanswered
//! for a whole deadline is silent: nothing else is sent to it until it answers a PING.

use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use redis::{Cmd, RedisResult, Value};
use tokio::runtime::Handle;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};

use super::connection::{Boxed, Connection, ConnectionOwner};
use super::dial::Dial;
use super::failure::{Failure, Fate};
use crate::clock::micros;
use crate::error::Act;
use crate::store::redis::protocol::ServerName;
use crate::store::redis::real_time::{self, Deadline, Late};

/// The limit on calls in flight to one server. It bounds what batches do not: refunds, resets and lone checks.
pub(crate) const LINES: usize = 256;

/// The time from a failed attempt, or from the start of the previous connection, to the next attempt. A server that comes
/// back is found at once, and one that refuses is not asked by each check.
pub(super) const BACKOFF: Duration = Duration::from_millis(50);

/// The same after the server rejected our credentials or settings: it logs such attempts.
const MISCONFIGURED_BACKOFF: Duration = Duration::from_millis(250);

/// The age below which a connection survives a reply that calls for another server: reconnecting to the wrong server
/// again and again would only add to its load.
const MIN_AGE_TO_GIVE_UP: Duration = Duration::from_millis(500);

/// The bounds of the time in which a PING has to be answered: more than the 200 ms after which Linux retransmits a lost
/// packet.
const MIN_PROBE: Duration = Duration::from_millis(300);
const MAX_PROBE: Duration = Duration::from_secs(5);

/// A server, as one runtime reaches it.
pub(crate) struct Node {
    dial: Box<dyn Dial>,
    /// The runtime that owns the connection. Background tasks run here, not on the caller's runtime, which may shut down or
    /// stall first.
    runtime: Handle,
    state: watch::Sender<NodeState>,
    /// A call waits here before it is sent, so that those that were never sent are distinguished from those that the server
    /// does not answer.
    places: Arc<Semaphore>,
    made_at: Instant,
    /// The time of the last reply, in microseconds since `made_at`, and the round trip before it.
    replied_at: AtomicU64,
    round_trip: AtomicU64,
}

enum NodeState {
    /// Not used yet, or the last attempt failed. Each call gets its failure until then.
    Down(Option<(Failure, Instant)>),
    /// An attempt is in progress. It will probably fail as the previous one did.
    Connecting(Option<Failure>),
    Up(Arc<Up>),
    /// A call was not answered for a deadline, and a PING is on its way.
    Silent(Arc<Up>),
}

/// What a call without a connection has to expect.
enum Outlook {
    Up(Arc<Up>),
    /// The last attempt failed, and the next one is not due yet.
    Fails(Failure),
    /// An attempt has to be started.
    IsDue,
    /// An attempt or a PING is in progress, and will probably fail in this way.
    Waits(Option<Failure>),
}

/// An established connection.
struct Up {
    connection: Connection,
    server: ServerName,
    /// When its attempt started. Identifies the connection.
    since: Instant,
    attempt: Arc<Attempt>,
    /// Whether a call got the reply to another one, so that no reply behind it can be trusted.
    is_out_of_sync: AtomicBool,
}

/// An attempt to connect, and the connection that came of it.
struct Attempt {
    node: Weak<Node>,
    since: Instant,
    /// Whether the connection was lost, perhaps before the node has it.
    is_lost: AtomicBool,
}

/// The right to send one call over an established connection. Given back on drop.
pub(crate) struct Line {
    node: Arc<Node>,
    up: Arc<Up>,
    /// Missing for a call that another node has redirected, and after [`Line::leave_place`].
    place: Option<OwnedSemaphorePermit>,
    /// Whether the server may have run the last command that was sent.
    pub(super) has_run: bool,
}

impl NodeState {
    fn up(&self) -> Option<&Arc<Up>> {
        match self {
            Self::Up(up) | Self::Silent(up) => Some(up),
            Self::Down(_) | Self::Connecting(_) => None,
        }
    }

    fn has_begun_at(&self, since: Instant) -> bool {
        self.up().is_some_and(|up| up.since == since)
    }

    fn outlook(&self) -> Outlook {
        match self {
            Self::Up(up) => Outlook::Up(Arc::clone(up)),
            Self::Down(Some((failure, retry_at))) if Instant::now() < *retry_at => {
                Outlook::Fails(failure.clone())
            }
            Self::Down(_) => Outlook::IsDue,
            Self::Connecting(likely) => Outlook::Waits(likely.clone()),
            Self::Silent(_) => Outlook::Waits(None),
        }
    }

    fn failure(&self) -> Option<&Failure> {
        match self {
            Self::Down(failed) => failed.as_ref().map(|(failure, _)| failure),
            Self::Connecting(failure) => failure.as_ref(),
            Self::Up(_) | Self::Silent(_) => None,
        }
    }
}

impl Node {
    /// A server whose connection belongs to `runtime`. Does not connect yet.
    pub(super) fn new(dial: impl Dial + 'static, runtime: &Handle) -> Arc<Self> {
        Arc::new(Self {
            dial: Box::new(dial),
            runtime: runtime.clone(),
            state: watch::Sender::new(NodeState::Down(None)),
            places: Arc::new(Semaphore::new(LINES)),
            made_at: Instant::now(),
            replied_at: AtomicU64::new(0),
            round_trip: AtomicU64::new(0),
        })
    }

    pub(crate) fn server(&self) -> &ServerName {
        self.dial.server()
    }

    pub(crate) fn connected_server(&self) -> ServerName {
        match self.state.borrow().up() {
            Some(up) => up.server.clone(),
            None => self.server().clone(),
        }
    }

    #[cfg(feature = "cluster")]
    pub(super) fn address(&self) -> (&str, u16) {
        self.dial.address()
    }

    pub(crate) fn has_replied_since(&self, since: Instant) -> bool {
        let replied_at = Duration::from_micros(self.replied_at.load(Ordering::Relaxed));
        !replied_at.is_zero() && self.made_at + replied_at >= since
    }

    pub(crate) fn round_trip(&self) -> Duration {
        Duration::from_micros(self.round_trip.load(Ordering::Relaxed))
    }

    #[cfg(any(feature = "cluster", feature = "sentinel"))]
    pub(super) fn is_up(&self) -> bool {
        matches!(*self.state.borrow(), NodeState::Up(_))
    }

    pub(super) fn try_line(self: &Arc<Self>) -> Option<Line> {
        let NodeState::Up(up) = &*self.state.borrow() else {
            return None;
        };
        let place = Arc::clone(&self.places).try_acquire_owned().ok()?;
        Some(self.line_over(Arc::clone(up), Some(place)))
    }

    /// Waits for a line, or for the reason why there is none.
    pub(super) async fn line(self: &Arc<Self>, deadline: &mut Deadline) -> Result<Line, Failure> {
        if let Some(line) = self.try_line() {
            return Ok(line);
        }
        // A call learns why connecting fails before it waits for a place. Meanwhile the connection may be lost.
        self.up(deadline).await?;
        let place = deadline
            .wait(Arc::clone(&self.places).acquire_owned())
            .await
            .map_err(|late| self.unsent(late))?;
        let up = self.up(deadline).await?;
        Ok(self.line_over(up, place.ok()))
    }

    /// Waits for a line for a call that another node has redirected. It does not wait for a place: it may hold one of
    /// that node.
    #[cfg(feature = "cluster")]
    pub(super) async fn redirected_line(
        self: &Arc<Self>,
        deadline: &mut Deadline,
    ) -> Result<Line, Failure> {
        Ok(self.line_over(self.up(deadline).await?, None))
    }

    pub(crate) async fn ping(self: &Arc<Self>, deadline: &mut Deadline) -> Result<(), Failure> {
        let line = self.line(deadline).await?;
        line.ping(deadline.left()).await
    }

    pub(crate) async fn query(
        self: &Arc<Self>,
        command: &Cmd,
        deadline: &mut Deadline,
    ) -> Result<Value, Failure> {
        let line = self.line(deadline).await?;
        line.send(command, deadline.left()).await
    }

    fn line_over(self: &Arc<Self>, up: Arc<Up>, place: Option<OwnedSemaphorePermit>) -> Line {
        Line {
            node: Arc::clone(self),
            up,
            place,
            has_run: false,
        }
    }

    /// Returns what keeps this process from connecting, if it is not the server.
    pub(super) fn obstacle(&self) -> Option<Failure> {
        let cause = self
            .dial
            .obstacle()
            .filter(|_| self.state.borrow().up().is_none())?;
        Some(Failure::to_connect(self.server(), cause))
    }

    async fn up(self: &Arc<Self>, deadline: &mut Deadline) -> Result<Arc<Up>, Failure> {
        let mut states = self.state.subscribe();
        let mut half = Deadline::new(deadline.left() / 2);
        loop {
            let outlook = states.borrow_and_update().outlook();
            let likely = match outlook {
                Outlook::Up(up) => return Ok(up),
                Outlook::Fails(failure) => return Err(failure),
                Outlook::IsDue => {
                    self.connect(|state| matches!(state, NodeState::Down(_)));
                    continue;
                }
                Outlook::Waits(likely) => likely,
            };
            // A timeout would hide what is wrong with the set-up.
            let wait = match &likely {
                Some(failure) if failure.is_misconfigured() => &mut half,
                _ => &mut *deadline,
            };
            if let Err(late) = wait.wait(states.changed()).await {
                let known = self.obstacle().or(likely);
                return Err(known.unwrap_or_else(|| self.unsent(late)));
            }
        }
    }

    fn unsent(&self, late: Late) -> Failure {
        Failure::from_deadline(&self.connected_server(), late, Fate::NotRun)
    }

    /// Connects in the background if that was never tried, so that the first caller need not wait.
    #[cfg(feature = "cluster")]
    pub(super) fn connect_if_new(self: &Arc<Self>) {
        self.connect(|state| matches!(state, NodeState::Down(None)));
    }

    /// Replaces the lost connection that started at `since`. Connects now, so that the next caller need not wait.
    fn replace(self: &Arc<Self>, since: Instant) {
        if self.dial.reconnects() {
            self.connect(|state| state.has_begun_at(since));
        }
    }

    /// Replaces the connection because this server is not the one to ask, unless the connection is new.
    pub(super) fn give_up(self: &Arc<Self>) {
        let since = self.state.borrow().up().map(|up| up.since);
        if let Some(since) = since.filter(|since| since.elapsed() >= MIN_AGE_TO_GIVE_UP) {
            self.replace(since);
        }
    }

    fn connect(self: &Arc<Self>, is_due: impl FnOnce(&NodeState) -> bool) {
        let mut not_before = Instant::now();
        let starts = self.state.send_if_modified(|state| {
            let starts = is_due(state);
            if starts {
                not_before = state.up().map_or(not_before, |up| up.since + BACKOFF);
                *state = NodeState::Connecting(state.failure().cloned());
            }
            starts
        });
        if starts {
            let node = Arc::clone(self);
            self.runtime.spawn(async move {
                real_time::sleep_until(not_before).await;
                match node.dialed().await {
                    Ok(up) => {
                        node.state.send_replace(NodeState::Up(Arc::clone(&up)));
                        node.replace_if_lost(&up);
                    }
                    Err(failure) => {
                        let backoff = if failure.is_misconfigured() {
                            MISCONFIGURED_BACKOFF
                        } else {
                            BACKOFF
                        };
                        let failed = (failure, Instant::now() + backoff);
                        node.state.send_replace(NodeState::Down(Some(failed)));
                    }
                }
            });
        }
    }

    async fn dialed(self: &Arc<Self>) -> Result<Arc<Up>, Failure> {
        let since = Instant::now();
        let attempt = Arc::new(Attempt {
            node: Arc::downgrade(self),
            since,
            is_lost: AtomicBool::new(false),
        });
        let owner = Arc::clone(&attempt);
        let (connection, server) = self.dial.dial(owner).await?;
        Ok(Arc::new(Up {
            connection,
            server,
            since,
            attempt,
            is_out_of_sync: AtomicBool::new(false),
        }))
    }

    /// Replaces a connection that was lost before this node had it.
    fn replace_if_lost(self: &Arc<Self>, up: &Up) {
        if up.attempt.is_lost.load(Ordering::SeqCst) {
            self.replace(up.since);
        }
    }

    /// Asks a silent server for a PING. Nothing else is sent meanwhile: a hung server would execute it after its callers
    /// have gone.
    fn probe(self: &Arc<Self>, up: &Arc<Up>, deadline: Duration) {
        if !self.dial.reconnects() {
            return;
        }
        let silent = NodeState::Silent(Arc::clone(up));
        let is_silenced = self.turn(up.since, |state| matches!(state, NodeState::Up(_)), silent);
        if !is_silenced {
            return;
        }
        let node = Arc::clone(self);
        let up = Arc::clone(up);
        self.runtime.spawn(async move {
            let ping = redis::cmd("PING");
            let reply = up.connection.send(&ping);
            let limit = deadline.clamp(MIN_PROBE, MAX_PROBE);
            // An error of the server is an answer as well.
            let is_lost = match real_time::timeout(limit, reply).await {
                Some(Err(error)) => Failure::from_command(&up.server, error).is_lost(),
                Some(Ok(reply)) if !is_pong(&reply) => return node.end(&up),
                Some(Ok(_)) => false,
                None => true,
            };
            if is_lost {
                node.replace(up.since);
            } else {
                node.turn(up.since, |_| true, NodeState::Up(up));
            }
        });
    }

    /// Ends a connection that is out of sync, and replaces it. What waits on it fails with the next reply, or at the end of the
    /// connection: a server that gets a QUIT closes it.
    fn end(self: &Arc<Self>, up: &Arc<Up>) {
        if !self.dial.reconnects() || up.is_out_of_sync.swap(true, Ordering::Relaxed) {
            return;
        }
        self.replace(up.since);
        let up = Arc::clone(up);
        self.runtime.spawn(async move {
            let quit = redis::cmd("QUIT");
            real_time::timeout(MIN_PROBE, up.connection.send(&quit)).await
        });
    }

    /// Moves the connection that started at `since` from one state to another, if it is still in the first. Returns whether
    /// it was.
    fn turn(&self, since: Instant, from: impl FnOnce(&NodeState) -> bool, to: NodeState) -> bool {
        self.state.send_if_modified(|state| {
            let is_same = state.has_begun_at(since) && from(state);
            if is_same {
                *state = to;
            }
            is_same
        })
    }

    fn record_reply(&self, wait: &Deadline) {
        let replied_at = wait.waited_until();
        let round_trip = replied_at.saturating_duration_since(wait.began());
        let replied_at = replied_at.saturating_duration_since(self.made_at);
        self.replied_at.store(micros(replied_at), Ordering::Relaxed);
        self.round_trip.store(micros(round_trip), Ordering::Relaxed);
    }
}

impl ConnectionOwner for Attempt {
    fn lost(&self) {
        self.is_lost.store(true, Ordering::SeqCst);
        if let Some(node) = self.node.upgrade() {
            node.replace(self.since);
        }
    }

    fn renew(&self) -> Boxed<'_, Result<(), Failure>> {
        Box::pin(async {
            let Some(node) = self.node.upgrade() else {
                return Ok(());
            };
            let next = node.dialed().await?;
            // Calls in flight end over the old connection.
            node.turn(self.since, |_| true, NodeState::Up(Arc::clone(&next)));
            node.replace_if_lost(&next);
            Ok(())
        })
    }
}

impl Line {
    #[cfg(feature = "cluster")]
    pub(super) fn node(&self) -> &Arc<Node> {
        &self.node
    }

    pub(crate) fn server(&self) -> &ServerName {
        &self.up.server
    }

    /// Returns the server that may have run the last command: not one that said that it has not.
    pub(crate) fn asked(&self) -> Option<&Arc<Node>> {
        self.has_run.then_some(&self.node)
    }

    /// Gives the place back before the call ends, so that it may wait for another line.
    pub(crate) fn leave_place(&mut self) {
        self.place = None;
    }

    /// Sends a command, once.
    pub(super) async fn send(&self, command: &Cmd, deadline: Duration) -> Result<Value, Failure> {
        let reply = pin!(self.up.connection.send(command));
        self.replied(reply, deadline).await
    }

    /// Sends a command, once, to a node that is about to get the slot of its keys.
    #[cfg(feature = "cluster")]
    pub(super) async fn send_asking(
        &self,
        command: &Cmd,
        deadline: Duration,
    ) -> Result<Value, Failure> {
        let reply = pin!(self.up.connection.send_asking(command));
        self.replied(reply, deadline).await
    }

    /// Sends a PING. A reply that is no PONG belongs to another command.
    pub(super) async fn ping(&self, deadline: Duration) -> Result<(), Failure> {
        let reply = self.send(&redis::cmd("PING"), deadline).await?;
        if is_pong(&reply) {
            Ok(())
        } else {
            Err(self.out_of_sync())
        }
    }

    /// Ends the connection, after the reply to another command. Returns the failure of the call that got it.
    pub(crate) fn out_of_sync(&self) -> Failure {
        self.node.end(&self.up);
        Failure::out_of_sync(&self.up.server, self.node.dial.reconnects())
    }

    /// Waits for the reply to a command that is sent now, and takes it in, or that none came within the deadline.
    async fn replied(
        &self,
        reply: Pin<&mut impl Future<Output = RedisResult<Value>>>,
        deadline: Duration,
    ) -> Result<Value, Failure> {
        let Self { node, up, .. } = self;
        let mut wait = Deadline::new(deadline);
        let reply = wait.wait(reply).await;
        if up.is_out_of_sync.load(Ordering::Relaxed) {
            return Err(self.out_of_sync());
        }
        let error = match reply {
            Ok(Ok(reply)) => {
                node.record_reply(&wait);
                return Ok(reply);
            }
            Ok(Err(error)) => error,
            Err(late) => {
                node.probe(up, deadline);
                return Err(Failure::from_deadline(&up.server, late, Fate::Unknown));
            }
        };
        if error.code().is_some() {
            node.record_reply(&wait);
        }
        let failure = Failure::from_command(&up.server, error);
        if failure.act() == Act::Replica {
            node.give_up();
        }
        if failure.is_lost() {
            node.replace(up.since);
        }
        Err(failure)
    }
}

/// Whether this is the reply to a PING. Proxies may write it as another kind of text.
fn is_pong(reply: &Value) -> bool {
    redis::from_redis_value_ref::<String>(reply).is_ok_and(|text| text == "PONG")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::redis::test_server::RedisServer;
    use crate::store::redis::transport::connection::GivenConnection;
    use crate::store::redis::transport::dial::Server;

    const DEADLINE: Duration = Duration::from_millis(100);

    fn node(url: &str) -> Arc<Node> {
        let info = redis::IntoConnectionInfo::into_connection_info(url).unwrap();
        Node::new(Server::new(info, None), &Handle::current())
    }

    fn since(node: &Node) -> Option<Instant> {
        node.state.borrow().up().map(|up| up.since)
    }

    fn runtime() -> tokio::runtime::Runtime {
        tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap()
    }

    fn patience() -> Deadline {
        Deadline::new(Duration::from_secs(5))
    }

    #[tokio::test]
    async fn a_server_that_is_slower_than_the_deadline_keeps_its_connection() {
        let server = RedisServer::start();
        let node = node(&server.url());
        let line = node.line(&mut patience()).await.unwrap();
        let before = since(&node);
        let mut slow = redis::cmd("BLPOP");
        slow.arg("nothing").arg(0.2);
        let failure = line.send(&slow, DEADLINE).await.unwrap_err();
        assert!(failure.is_late() && failure.fate == Fate::Unknown);
        assert!(node.try_line().is_none());
        node.line(&mut patience()).await.unwrap();
        assert_eq!(since(&node), before);
    }

    /// Its first connection is lost before the node has it.
    struct LostAtOnce(AtomicU64);

    impl GivenConnection for LostAtOnce {
        fn send<'a>(&self, _: &'a Cmd) -> Boxed<'a, RedisResult<Value>> {
            Box::pin(async { Ok(Value::Okay) })
        }
    }

    impl Dial for Arc<LostAtOnce> {
        fn server(&self) -> &ServerName {
            &ServerName::UNKNOWN
        }

        fn dial(
            &self,
            owner: Arc<dyn ConnectionOwner>,
        ) -> Boxed<'_, Result<(Connection, ServerName), Failure>> {
            Box::pin(async move {
                if self.0.fetch_add(1, Ordering::SeqCst) == 0 {
                    owner.lost();
                }
                let given: Arc<dyn GivenConnection> = self.clone();
                Ok((Connection::Given(given), ServerName::UNKNOWN))
            })
        }
    }

    #[tokio::test]
    async fn a_connection_that_is_lost_before_it_is_used_is_replaced() {
        let dial = Arc::new(LostAtOnce(AtomicU64::new(0)));
        let node = Node::new(Arc::clone(&dial), &Handle::current());
        node.connect(|state| matches!(state, NodeState::Down(None)));
        let mut states = node.state.subscribe();
        let replaced = states.wait_for(|state| {
            state
                .up()
                .is_some_and(|up| !up.attempt.is_lost.load(Ordering::SeqCst))
        });
        let replaced = real_time::timeout(Duration::from_secs(5), replaced).await;
        assert!(replaced.is_some());
        assert_eq!(dial.0.load(Ordering::SeqCst), 2);
    }

    #[tokio::test]
    async fn calls_beyond_the_lines_of_a_server_are_not_sent() {
        let server = RedisServer::start();
        let node = node(&server.url());
        let mut lines = vec![node.line(&mut patience()).await.unwrap()];
        lines.extend((1..LINES).map(|_| node.try_line().unwrap()));
        assert!(node.try_line().is_none());
        let failure = node.line(&mut Deadline::new(DEADLINE)).await.err().unwrap();
        assert!(failure.is_late() && failure.fate == Fate::NotRun);
        lines.pop();
        assert!(node.try_line().is_some());
    }

    #[test]
    fn a_wait_for_a_connection_of_a_runtime_that_ends_is_over_with_its_deadline() {
        // It accepts connections, and never replies.
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("redis://{}", listener.local_addr().unwrap());
        let own = runtime();
        let other = runtime();
        let node = own.block_on(async {
            let node = node(&url);
            assert!(node.line(&mut Deadline::new(DEADLINE)).await.is_err());
            node
        });
        drop(own);
        for _ in 0..3 {
            let line = async { node.line(&mut Deadline::new(DEADLINE)).await.err() };
            let failure = other.block_on(line).unwrap();
            assert_eq!(failure.fate, Fate::NotRun);
        }
    }
}
