//! Calls to Redis: what is sent, and what its failure means.

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use redis::{Cmd, RedisResult, Value};

use super::connection::{Connection, ConnectionHandle, ConnectionIndex};
use super::protocol::{self, BatchEntry, EntryReply, KeyNames};
use super::script::{Script, Scripts};
use crate::error::{Error, ErrorKind};
use crate::store::redis::protocol::errors as error;
use crate::store::requests::Subject;
use crate::store::requests::{Credit, Refund, Reset};
use crate::telemetry::StoreMeter;

/// How a store calls Redis.
#[derive(Clone)]
pub(crate) struct Client {
    pub(crate) connection: Arc<Connection>,
    pub(crate) scripts: Arc<Scripts>,
    pub(crate) names: KeyNames,
    pub(crate) deadline: Duration,
    pub(crate) meter: StoreMeter,
}

impl Client {
    /// The connection of a way, if it is there.
    pub(crate) fn get(&self, way: ConnectionIndex) -> Option<ConnectionHandle> {
        self.connection.get(way, self.deadline)
    }

    /// The connection of a way, as soon as it is there.
    pub(crate) async fn wait(&self, way: ConnectionIndex) -> Result<ConnectionHandle, Error> {
        let live = self.connection.wait(way, self.deadline).await;
        live.map_err(error::from_redis)
    }

    /// The way of a subject's calls, which is always the same one: checks of one key share calls.
    pub(crate) fn way(&self, subject: Subject<'_>) -> ConnectionIndex {
        let connections = self.connection.count();
        if connections == 1 {
            return ConnectionIndex::default();
        }
        if self.connection.is_of_cluster() {
            return ConnectionIndex::of(self.names.slot(subject).into(), connections);
        }
        let [number, _] = subject.fingerprint().halves();
        ConnectionIndex::of(number, connections)
    }

    /// Decides over the checks of one call: what each entry came to; outside that, what befell the
    /// whole call.
    pub(crate) async fn decide(
        &self,
        live: &ConnectionHandle,
        entries: &[BatchEntry<'_>],
    ) -> Result<Vec<Result<EntryReply, Error>>, Error> {
        let script = &self.scripts.decide;
        let call = protocol::encode_checks(script, &self.names, entries);
        self.meter
            .called(entries.iter().map(|entry| entry.count).sum());
        let reply = run(live, script, call).await?;
        let asked = entries
            .iter()
            .map(|BatchEntry { check, count }| (check.quotas(), check.cost(), *count));
        let granted = protocol::decode_replies(reply, asked)?;
        let mut errors = granted.iter().filter_map(|granted| granted.as_ref().err());
        if errors.any(error::is_from_replica) {
            live.give_up();
        }
        Ok(granted)
    }

    /// Forgets what is charged to a key.
    pub(crate) fn reset(
        &self,
        reset: Reset<'_>,
    ) -> impl Future<Output = Result<(), Error>> + use<> {
        let mut command = redis::cmd("UNLINK");
        self.names.write(reset.subject, &mut command);
        let (client, way) = (self.clone(), self.way(reset.subject));
        async move { client.query(way, &command).await.map(drop) }
    }

    /// Takes units back.
    pub(crate) fn refund(
        &self,
        refund: &Refund<'_>,
    ) -> impl Future<Output = Result<(), Error>> + use<> {
        let call = protocol::encode_refund(&self.scripts.refund, &self.names, refund);
        let (client, way) = (self.clone(), self.way(refund.subject));
        async move {
            let live = client.wait(way).await?;
            run(&live, &client.scripts.refund, call).await.map(drop)
        }
    }

    /// Has fewer units count.
    pub(crate) fn credit(
        &self,
        give: &Credit<'_>,
    ) -> impl Future<Output = Result<(), Error>> + use<> {
        let call = protocol::encode_credit(&self.scripts.credit, &self.names, give);
        let (client, way) = (self.clone(), self.way(give.subject));
        async move {
            let live = client.wait(way).await?;
            run(&live, &client.scripts.credit, call).await.map(drop)
        }
    }

    /// Runs a script whose keys are of no subject.
    pub(crate) async fn run_anywhere(&self, script: &Script, call: Cmd) -> Result<Value, Error> {
        let live = self.wait(ConnectionIndex::default()).await?;
        run(&live, script, call).await
    }

    pub(crate) async fn query(&self, way: ConnectionIndex, command: &Cmd) -> Result<Value, Error> {
        let live = self.wait(way).await?;
        send(&live, command).await.map_err(error::from_redis)
    }

    /// What a call comes to that is not answered in time.
    pub(crate) fn late(&self) -> Error {
        Error::new(
            ErrorKind::Timeout,
            format!("Redis did not answer within {:?}", self.deadline),
        )
    }
}

/// Runs a call of a script. Where the server does not know the script, which may be at any time, it
/// has not run and is sent along.
async fn run(live: &ConnectionHandle, script: &Script, call: Cmd) -> Result<Value, Error> {
    let reply = match send(live, &call).await {
        Err(failure) if error::is_unknown_script(&failure) => {
            send(live, &script.by_text(&call)).await
        }
        reply => reply,
    };
    reply.map_err(error::from_redis)
}

async fn send(live: &ConnectionHandle, command: &Cmd) -> RedisResult<Value> {
    let reply = live.send(command).await;
    if let Err(failure) = &reply
        && error::is_replica(failure)
    {
        live.give_up();
    }
    reply
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            connection,
            scripts: _,
            names,
            deadline,
            meter: _,
        } = self;
        f.debug_struct("Client")
            .field("connection", connection)
            .field("names", names)
            .field("deadline", deadline)
            .finish_non_exhaustive()
    }
}
