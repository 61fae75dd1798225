//! The commands of a store: what is sent to Redis, and how replies are read.

use std::fmt;
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use redis::{Cmd, Value};
use tokio::runtime::Handle;

use super::argument_clock::ArgumentClock;
use super::connection::{
    AcquiredConnection, Connection, ConnectionPool, KEYLESS, last_asked, noting_asked,
};
use super::protocol::{
    BatchEntry, EntryAnswers, KeyNames, ServerClock, ServerName, Value as CountedValue,
    decode_replies, encode_adjust, encode_checks, errors as error,
};
use super::script::{Script, Scripts};
use crate::decision::{Answers, Holding};
use crate::error::{Error, ErrorKind};
use crate::store::redis::real_time::{timeout, timeout_at};
use crate::store::requests::{Adjust, OwnedCheck, Subject};
use crate::telemetry::StoreMeter;

/// Sends the commands of one store.
#[derive(Clone)]
pub(super) struct Client {
    pub(super) connections: Arc<ConnectionPool>,
    pub(super) scripts: Arc<Scripts>,
    pub(super) names: KeyNames,
    pub(super) clock: ServerClock,
    pub(super) argument_clock: ArgumentClock,
    pub(super) deadline: Duration,
    pub(super) meter: StoreMeter,
}

impl Client {
    /// Returns the index of the connection for a key. It is always the same, so that the checks
    /// of one key share calls.
    pub(super) fn connection_index(&self, subject: Subject<'_>) -> usize {
        if self.connections.count().get() == 1 {
            return 0;
        }
        let number = if self.connections.is_cluster() {
            self.names.slot(subject).into()
        } else {
            let [number, _] = subject.fingerprint().halves();
            number
        };
        self.connections.index_for(number)
    }

    /// The server, for errors: the node of a cluster that the current call has asked last, or else the deployment.
    pub(super) fn server(&self) -> ServerName {
        last_asked().unwrap_or_else(|| self.connections.server().clone())
    }

    /// Waits until a connection of the current runtime is established.
    pub(super) async fn acquire(&self, index: usize) -> Result<AcquiredConnection, Error> {
        let connection = self.connection(index)?;
        let acquired = connection.acquire(self.deadline, None).await;
        acquired.map_err(error::from_connect)
    }

    /// Returns the connection of the current runtime with this index.
    fn connection(&self, index: usize) -> Result<Connection, Error> {
        let connections = self.connections.of_runtime(&current_runtime()?);
        Ok(connections.get(index).clone())
    }

    /// Returns the slot of a check on a cluster, where each node takes a limited number of checks at a time.
    fn slot(&self, check: Option<&OwnedCheck>) -> Option<u16> {
        let check = check.filter(|_| self.connections.is_cluster())?;
        Some(self.names.slot(check.check().subject))
    }

    /// Decides the checks of one call. Returns the reply to each entry, or the error of the whole
    /// call.
    pub(super) async fn decide(
        &self,
        connection: &AcquiredConnection,
        entries: &[BatchEntry<'_>],
    ) -> Result<Vec<Result<EntryAnswers, Error>>, Error> {
        self.meter
            .record_batch(entries.iter().map(|entry| entry.count).sum());
        let mut replies = match self.call(connection, entries).await {
            // A cluster that is moving the slot, and has only some of the keys, has not run the call. A full server has
            // written nothing, since it refuses the first write of a script or none. A call that one entry has failed was
            // not sent. So each entry goes in a call of its own: what can be decided does not wait for the slot or fail
            // with another, and what is refused is refused exactly.
            Err(error)
                if entries.len() > 1
                    && (error::is_moving(&error)
                        || error.kind() == ErrorKind::Full
                        || error.is_of_one_check()) =>
            {
                let mut replies = Vec::with_capacity(entries.len());
                for entry in entries {
                    replies.push(self.call_of_one(connection, entry).await);
                }
                replies
            }
            replies => replies?,
        };
        for (reply, entry) in replies.iter_mut().zip(entries) {
            let error = reply.as_ref().err();
            // The script wrote nothing for an entry without the window of a calendar. It is rare: the clock of this process
            // differs from the server's clock by more than a window.
            if let Some(time) = error.and_then(error::time_without_window) {
                self.clock.learn(time);
                *reply = self.call_of_one(connection, entry).await;
            }
        }
        let mut errors = replies.iter().filter_map(|reply| reply.as_ref().err());
        if errors.any(error::is_from_replica) {
            connection.give_up();
        }
        Ok(replies)
    }

    /// Decides an entry in a call of its own.
    async fn call_of_one(
        &self,
        connection: &AcquiredConnection,
        entry: &BatchEntry<'_>,
    ) -> Result<EntryAnswers, Error> {
        let replies = Box::pin(self.call(connection, &[*entry])).await?;
        let reply = replies.into_iter().next();
        reply.unwrap_or_else(|| Err(error::malformed_reply("no answer", &self.server())))
    }

    /// Sends one call.
    async fn call(
        &self,
        connection: &AcquiredConnection,
        entries: &[BatchEntry<'_>],
    ) -> Result<Vec<Result<EntryAnswers, Error>>, Error> {
        let (script, call, plan) = encode_checks(&self.scripts, &self.names, &self.clock, entries);
        let is_last = entries.len() == 1;
        let reply = self
            .eval(connection, script, &call, is_last, entries)
            .await?;
        decode_replies(reply, &connection.server(), entries, &plan)
    }

    /// Decides one check of these levels in a call of its own, within the deadline: over this connection, or
    /// over the connection of the current runtime.
    pub(super) async fn decide_alone(
        &self,
        levels: &[OwnedCheck],
        connection: Option<&Connection>,
    ) -> Result<Answers, Error> {
        current_runtime()?;
        let (first, since) = (levels.first(), Instant::now());
        let (slot, until) = (self.slot(first), since + self.deadline);
        let connection = match connection {
            Some(connection) => connection.clone(),
            None => {
                let index = first.map(|level| self.connection_index(level.check().subject));
                self.connection(index.unwrap_or(KEYLESS))?
            }
        };
        let replies = noting_asked(async {
            let mut progress = Progress::queued(since);
            let decided = async {
                let acquired = connection.acquire(self.deadline, slot).await;
                let acquired = acquired.map_err(error::from_connect)?;
                if Instant::now() + self.reply_margin(&connection, slot) >= until {
                    return Err(self.late_error(progress, &connection, slot));
                }
                progress.sent();
                self.decide(&acquired, &[BatchEntry::only(levels)]).await
            };
            let decided = timeout_at(until, pin!(decided)).await;
            decided.unwrap_or_else(|| Err(self.late_error(progress, &connection, slot)))
        })
        .await?;
        let answers = replies.into_iter().next().transpose()?;
        let answers = answers.into_iter().flatten().next();
        answers.ok_or_else(|| error::malformed_reply("no answer", &self.server()))
    }

    /// Changes the counts of a key.
    pub(super) fn adjust(
        &self,
        adjust: Adjust<'_>,
    ) -> impl Future<Output = Result<(), Error>> + use<> {
        let script = &self.scripts.refund;
        let call = encode_adjust(script, &self.names, &self.clock, adjust);
        let (client, index) = (self.clone(), self.connection_index(adjust.subject));
        async move {
            let Some(call) = call else {
                return Ok(());
            };
            let reply = client.run(index, &client.scripts.refund, call).await;
            if let Some(time) = reply.as_ref().err().and_then(error::time_without_window) {
                client.clock.learn(time);
            }
            reply.map(drop)
        }
    }

    /// Lists the holders of the slots of a key.
    pub(super) fn holders(
        &self,
        subject: Subject<'_>,
    ) -> impl Future<Output = Result<Vec<Holding>, Error>> + use<> {
        let mut call = self.scripts.holders.call(1, 0, 0);
        call.arg(self.names.value(subject, CountedValue::InFlight));
        let (client, index) = (self.clone(), self.connection_index(subject));
        async move {
            let reply = client.run(index, &client.scripts.holders, call).await?;
            let holders: Result<Vec<(Vec<u8>, u32, u64)>, _> = redis::from_redis_value(reply);
            let holders = holders.ok().and_then(|holders| {
                let holders = holders.into_iter().map(|(holder, slots, left)| {
                    let (holder, left) = (holder.try_into().ok()?, Duration::from_micros(left));
                    Some(Holding::new(holder, 0, slots, 0, left))
                });
                holders.collect()
            });
            holders.ok_or_else(|| error::malformed_reply("no holders of slots", &client.server()))
        }
    }

    /// Runs a script over the connection of an index.
    pub(super) async fn run(
        &self,
        index: usize,
        script: &Script,
        call: Cmd,
    ) -> Result<Value, Error> {
        let connection = self.acquire(index).await?;
        self.eval(&connection, script, &call, true, &[]).await
    }

    /// Sends a command over the connection of an index.
    pub(super) async fn query(&self, index: usize, command: &Cmd) -> Result<Value, Error> {
        let connection = self.acquire(index).await?;
        let reply = connection.send(command, true).await;
        reply.map_err(|failure| error::from_redis(failure, &connection.server()))
    }

    /// Applies the deadline to a call. Fails outside of a tokio runtime, which has no timer.
    pub(super) async fn within_deadline<T>(
        &self,
        call: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, Error> {
        current_runtime()?;
        // Boxed, because each block around a future stores it once more.
        let call = Box::pin(call);
        noting_asked(async {
            let answered = timeout(self.deadline, call).await;
            answered.unwrap_or_else(|| Err(self.timeout_error()))
        })
        .await
    }

    /// The error of a call that was not answered within the deadline.
    pub(super) fn timeout_error(&self) -> Error {
        error::timeout(&self.server(), self.deadline)
    }

    /// Returns the time before its deadline from which a check is not sent any more, because the reply would come
    /// too late: two round trips, but at most half of the deadline.
    ///
    /// Otherwise, a queue that is too long would hold only checks that nobody can answer in time. If the server
    /// is silent, its round trip is unknown, and checks are sent until their deadline.
    pub(super) fn reply_margin(&self, connection: &Connection, slot: Option<u16>) -> Duration {
        let half = self.deadline / 2;
        let recently = Instant::now().checked_sub(half);
        if recently.is_some_and(|recently| connection.has_replied_since(recently, slot)) {
            half.min(connection.round_trip(slot) * 2)
        } else {
            Duration::ZERO
        }
    }

    /// The error of a check that has reached its deadline.
    ///
    /// A check that waited here for at least half of it says nothing about a server that has answered other
    /// calls meanwhile.
    pub(super) fn late_error(
        &self,
        progress: Progress,
        connection: &Connection,
        slot: Option<u16>,
    ) -> Error {
        let Progress { since, sent_at } = progress;
        let waited = sent_at.unwrap_or_else(Instant::now) - since;
        if waited >= self.deadline / 2 && connection.has_replied_since(since, slot) {
            error::queue_timeout(&self.server(), self.deadline)
        } else {
            self.timeout_error()
        }
    }
}

/// How far a check has come before its deadline.
#[derive(Clone, Copy, Debug)]
pub(super) struct Progress {
    /// When the check was made.
    since: Instant,
    sent_at: Option<Instant>,
}

impl Progress {
    /// A check that waits for its turn.
    pub(super) fn queued(since: Instant) -> Self {
        let sent_at = None;
        Self { since, sent_at }
    }

    pub(super) fn sent(&mut self) {
        self.sent_at = Some(Instant::now());
    }

    pub(super) fn sent_at(since: Instant, sent_at: Instant) -> Self {
        let sent_at = Some(sent_at);
        Self { since, sent_at }
    }
}

/// Returns the current tokio runtime.
pub(super) fn current_runtime() -> Result<Handle, Error> {
    Handle::try_current().map_err(|_| {
        Error::new(
            ErrorKind::Misconfigured,
            "cannot use a RedisStore outside of a tokio runtime: call it from a task, or in `block_on`",
        )
    })
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            connections,
            scripts: _,
            names,
            clock: _,
            argument_clock: _,
            deadline,
            meter: _,
        } = self;
        f.debug_struct("Client")
            .field("connections", connections)
            .field("names", names)
            .field("deadline", deadline)
            .finish_non_exhaustive()
    }
}
