//! The commands of a store: what is sent to Redis, and how replies are read.

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use redis::{Cmd, Value};
use tokio::runtime::Handle;

use super::connection::{Acquired, ConnectionPool, KEYLESS, ReconnectingConnection};
use super::protocol::{
    BatchEntry, EntryReply, KeyNames, ListKeys, ServerName, decode_replies, encode_checks,
    encode_credit, encode_refund, encode_reset, errors as error,
};
use super::script::{Script, Scripts};
use crate::decision::Answer;
use crate::error::{Error, ErrorKind};
use crate::store::requests::{Credit, OwnedCheck, Refund, Reset, Subject};
use crate::telemetry::StoreMeter;

/// Sends the commands of one store.
#[derive(Clone)]
pub(super) struct Client {
    pub(super) connections: Arc<ConnectionPool>,
    pub(super) scripts: Arc<Scripts>,
    pub(super) names: KeyNames,
    pub(super) deadline: Duration,
    pub(super) meter: StoreMeter,
}

impl Client {
    /// Returns the index of the connection for a subject. It is always the same, so that the checks
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

    /// The deployment, for errors.
    pub(super) fn server(&self) -> &ServerName {
        self.connections.server()
    }

    /// Waits until a connection of the current runtime is established.
    pub(super) async fn acquire(&self, index: usize) -> Result<Acquired, Error> {
        let connections = self.connections.of_runtime(&current_runtime()?);
        self.acquire_from(connections.get(index)).await
    }

    /// Waits until a connection is established.
    async fn acquire_from(
        &self,
        connection: &Arc<ReconnectingConnection>,
    ) -> Result<Acquired, Error> {
        let acquired = connection.acquire(self.deadline).await;
        acquired.map_err(error::from_connect)
    }

    /// Decides the checks of one call. Returns the reply to each entry, or the error of the whole
    /// call.
    pub(super) async fn decide(
        &self,
        connection: &Acquired,
        entries: &[BatchEntry<'_>],
    ) -> Result<Vec<Result<EntryReply, Error>>, Error> {
        self.meter
            .record_batch(entries.iter().map(|entry| entry.count).sum());
        let mut replies = self
            .call_decide(connection, entries, ListKeys::OfLargeLimits)
            .await?;
        if replies.iter().any(lacks_list_key) {
            self.decide_with_list_keys(connection, entries, &mut replies)
                .await;
        }
        let mut errors = replies.iter().filter_map(|reply| reply.as_ref().err());
        if errors.any(error::is_from_replica) {
            connection.give_up();
        }
        Ok(replies)
    }

    /// Decides the entries anew whose logs are lists of which the call did not have the keys.
    ///
    /// The script wrote nothing for them, so this is safe. It is rare: their limits were higher before.
    async fn decide_with_list_keys(
        &self,
        connection: &Acquired,
        entries: &[BatchEntry<'_>],
        replies: &mut [Result<EntryReply, Error>],
    ) {
        let (repeated, replies): (Vec<BatchEntry<'_>>, Vec<&mut Result<EntryReply, Error>>) =
            entries
                .iter()
                .zip(replies)
                .filter(|(_, reply)| lacks_list_key(reply))
                .unzip();
        let outcome = self.call_decide(connection, &repeated, ListKeys::All).await;
        match outcome {
            Ok(repeated) => {
                for (reply, new_reply) in replies.into_iter().zip(repeated) {
                    *reply = new_reply;
                }
            }
            Err(error) => {
                for reply in replies {
                    *reply = Err(error.clone());
                }
            }
        }
    }

    /// Sends a call with these list keys.
    async fn call_decide(
        &self,
        connection: &Acquired,
        entries: &[BatchEntry<'_>],
        lists: ListKeys,
    ) -> Result<Vec<Result<EntryReply, Error>>, Error> {
        let script = &self.scripts.decide;
        let encode = |lists| encode_checks(script, &self.names, entries, lists);
        let (call, mut runs) = encode(lists);
        let reply = match run(connection, script, call).await {
            // The server has only some of the keys, and has not run the call.
            Err(error) if lists != ListKeys::None && error::is_moving(&error) => {
                let (call, new_runs) = encode(ListKeys::None);
                runs = new_runs;
                run(connection, script, call).await?
            }
            reply => reply?,
        };
        decode_replies(reply, connection.server(), entries, &runs)
    }

    /// Decides one check of these levels in a call of its own: over this connection, or over that of the
    /// current runtime.
    pub(super) async fn decide_alone(
        &self,
        levels: &[OwnedCheck],
        connection: Option<&Arc<ReconnectingConnection>>,
    ) -> Result<Answer, Error> {
        let connection = match connection {
            Some(connection) => self.acquire_from(connection).await?,
            None => {
                let first = levels.first();
                let index = first.map(|level| self.connection_index(level.check().subject));
                self.acquire(index.unwrap_or(KEYLESS)).await?
            }
        };
        let entry = [BatchEntry::only(levels)];
        let replies = self.decide(&connection, &entry).await?;
        let reply = replies.into_iter().next().transpose()?;
        let answer = reply.and_then(EntryReply::into_last);
        answer.ok_or_else(|| error::malformed_reply("no answer", self.server()))
    }

    /// Forgets the units charged to a key.
    pub(super) fn reset(
        &self,
        reset: Reset<'_>,
    ) -> impl Future<Output = Result<(), Error>> + use<> {
        let call = |lists| encode_reset(&self.scripts.credit, &self.names, &reset, lists);
        let calls = [call(ListKeys::All), call(ListKeys::None)];
        let (client, index) = (self.clone(), self.connection_index(reset.subject));
        async move { client.change(index, &client.scripts.credit, calls).await }
    }

    /// Takes back units that a check charged.
    pub(super) fn refund(
        &self,
        refund: &Refund<'_>,
    ) -> impl Future<Output = Result<(), Error>> + use<> {
        let call = |lists| encode_refund(&self.scripts.refund, &self.names, refund, lists);
        let calls = [call(ListKeys::All), call(ListKeys::None)];
        let (client, index) = (self.clone(), self.connection_index(refund.subject));
        async move { client.change(index, &client.scripts.refund, calls).await }
    }

    /// Reduces the units that count against a key.
    pub(super) fn credit(
        &self,
        credit: &Credit<'_>,
    ) -> impl Future<Output = Result<(), Error>> + use<> {
        let call = |lists| encode_credit(&self.scripts.credit, &self.names, credit, lists);
        let calls = [call(ListKeys::All), call(ListKeys::None)];
        let (client, index) = (self.clone(), self.connection_index(credit.subject));
        async move { client.change(index, &client.scripts.credit, calls).await }
    }

    /// Runs a script that changes counts: with the keys of lists; without them if the server has not run
    /// the call, because it is moving their slot and has only some of the keys. Most have no list.
    async fn change(
        &self,
        index: usize,
        script: &Script,
        [with_lists, without]: [Cmd; 2],
    ) -> Result<(), Error> {
        let reply = match self.run(index, script, with_lists).await {
            Err(error) if error::is_moving(&error) => self.run(index, script, without).await,
            reply => reply,
        };
        reply.map(drop)
    }

    /// Runs a script over the connection of an index.
    pub(super) async fn run(
        &self,
        index: usize,
        script: &Script,
        call: Cmd,
    ) -> Result<Value, Error> {
        let connection = self.acquire(index).await?;
        run(&connection, script, call).await
    }

    /// Sends a command over the connection of an index.
    pub(super) async fn query(&self, index: usize, command: &Cmd) -> Result<Value, Error> {
        let connection = self.acquire(index).await?;
        let reply = connection.send(command).await;
        reply.map_err(|failure| error::from_redis(failure, connection.server()))
    }

    /// Applies the deadline to a call. Fails outside of a tokio runtime, which has no timer.
    pub(super) async fn within_deadline<T>(
        &self,
        call: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, Error> {
        current_runtime()?;
        let answered = tokio::time::timeout(self.deadline, call).await;
        answered.unwrap_or_else(|_| Err(self.timeout_error()))
    }

    /// The error of a call that was not answered within the deadline.
    pub(super) fn timeout_error(&self) -> Error {
        error::timeout(self.server(), self.deadline)
    }
}

/// Whether the script did not decide an entry because the call lacks the key of a list.
fn lacks_list_key(reply: &Result<EntryReply, Error>) -> bool {
    reply.as_ref().is_err_and(error::lacks_list_key)
}

/// Runs a script by its hash. A server that does not know the script, which may happen at any time,
/// has not run it, and gets its text.
async fn run(connection: &Acquired, script: &Script, call: Cmd) -> Result<Value, Error> {
    let reply = match connection.send(&call).await {
        Err(failure) if error::is_unknown_script(&failure) => {
            connection.send(&script.by_text(&call)).await
        }
        reply => reply,
    };
    match reply {
        Ok(reply) => Ok(reply),
        Err(failure) => {
            let refusal = Box::pin(connection.scripts_refusal()).await;
            let failure = refusal.unwrap_or(failure);
            Err(error::from_redis(failure, connection.server()))
        }
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
