//! Calls to Redis: what is sent, and what its failure means.

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use redis::{Cmd, RedisResult, Value};

use super::call::{self, Entry, Granted};
use super::connection::Connection;
use super::error;
use super::names::Names;
use super::script::{Script, Scripts};
use crate::store::{Refund, Reset};
use crate::{Error, ErrorKind};

/// How a store calls Redis.
#[derive(Clone)]
pub(super) struct Client {
    pub(super) connection: Arc<Connection>,
    pub(super) scripts: Arc<Scripts>,
    pub(super) names: Names,
    pub(super) deadline: Duration,
}

impl Client {
    /// Decides over the checks of one call: what each entry came to; outside that, what befell the
    /// whole call.
    pub(super) async fn decide(
        &self,
        entries: &[Entry<'_>],
    ) -> Result<Vec<Result<Granted, Error>>, Error> {
        let script = &self.scripts.decide;
        let call = call::decide(script, &self.names, entries);
        let reply = self.run(script, call).await?;
        let asked = entries
            .iter()
            .map(|Entry { check, count }| (check.quotas(), check.cost(), *count));
        call::decode(reply, asked)
    }

    /// Forgets what is charged to a key.
    pub(super) fn reset(
        &self,
        reset: Reset<'_>,
    ) -> impl Future<Output = Result<(), Error>> + use<> {
        let mut command = redis::cmd("UNLINK");
        self.names.write(reset.subject, &mut command);
        let client = self.clone();
        async move { client.query(&command).await.map(drop) }
    }

    /// Takes units back.
    pub(super) fn refund(
        &self,
        refund: &Refund<'_>,
    ) -> impl Future<Output = Result<(), Error>> + use<> {
        let call = call::refund(&self.scripts.refund, &self.names, refund);
        let client = self.clone();
        async move { client.run(&client.scripts.refund, call).await.map(drop) }
    }

    pub(super) async fn query(&self, command: &Cmd) -> Result<Value, Error> {
        self.send(command).await.map_err(error::from_redis)
    }

    /// Runs a call of a script. Where the server does not know the script, which may be at any
    /// time, it has not run and is sent along.
    async fn run(&self, script: &Script, call: Cmd) -> Result<Value, Error> {
        let reply = match self.send(&call).await {
            Err(failure) if error::is_unknown_script(&failure) => {
                self.send(&script.by_text(&call)).await
            }
            reply => reply,
        };
        reply.map_err(error::from_redis)
    }

    async fn send(&self, command: &Cmd) -> RedisResult<Value> {
        let reply = self.connection.send(command).await;
        if let Err(failure) = &reply
            && error::is_of_setup(failure)
        {
            self.connection.give_up();
        }
        reply
    }

    /// What a call comes to that is not answered in time.
    pub(super) fn late(&self) -> Error {
        Error::new(
            ErrorKind::Timeout,
            format!("Redis did not answer within {:?}", self.deadline),
        )
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            connection,
            scripts: _,
            names,
            deadline,
        } = self;
        f.debug_struct("Client")
            .field("connection", connection)
            .field("names", names)
            .field("deadline", deadline)
            .finish_non_exhaustive()
    }
}
