//! The doctor's session with a server.

use std::time::Duration;

use redis::{Cmd, Value};

use super::remedies::missing_permission;
use super::scratch_key::ScratchKey;
use crate::decision::Answer;
use crate::error::Error;
use crate::store::redis::client::Client;
use crate::store::redis::connection::KEYLESS;
use crate::store::redis::protocol::errors::malformed_reply;
use crate::store::redis::protocol::problems;
use crate::store::redis::protocol::{BatchEntry, KeyNames, ServerName};
use crate::store::requests::Check;

/// The time that each question may take if the store's deadline is shorter: a slow server should be
/// measured, not missed.
const MIN_TIMEOUT: Duration = Duration::from_secs(1);

/// Sends the doctor's questions, with a longer timeout than checks have, and past the batches and the
/// refusal cache of the store.
#[derive(Debug)]
pub(super) struct Session {
    client: Client,
    /// The deadline of checks.
    deadline: Duration,
}

impl Session {
    pub(super) fn new(client: &Client) -> Self {
        let deadline = client.deadline;
        let mut client = client.clone();
        client.deadline = deadline.max(MIN_TIMEOUT);
        Self { client, deadline }
    }

    pub(super) fn deadline(&self) -> Duration {
        self.deadline
    }

    /// The deployment, for errors.
    pub(super) fn server(&self) -> ServerName {
        self.client.server()
    }

    /// The connections of the store to each server.
    #[cfg(feature = "cluster")]
    pub(super) fn connections(&self) -> usize {
        self.client.connections.count().get()
    }

    /// Whether the connection follows the redirects of a cluster.
    pub(super) fn follows_redirects(&self) -> bool {
        self.client.connections.is_cluster()
    }

    pub(super) fn key_names(&self) -> &KeyNames {
        &self.client.names
    }

    pub(super) async fn query(&self, command: &Cmd) -> Result<Value, Error> {
        let query = self.client.query(KEYLESS, command);
        self.client.within_deadline(query).await
    }

    /// Sends one check in a call of its own.
    pub(super) async fn check(&self, check: Check<'_>) -> Result<Answer, Error> {
        let levels = [check.owned()];
        let entries = [BatchEntry::only(&levels)];
        let replies = async {
            let connection = self.client.acquire(KEYLESS).await?;
            self.client.decide(&connection, &entries).await
        };
        let replies = self.client.within_deadline(replies).await?;
        let answers = replies.into_iter().next().transpose()?;
        let answers = answers.into_iter().flatten().next();
        let answer = answers.and_then(|answers| answers.into_answers().next());
        answer.ok_or_else(|| malformed_reply("no answer", &self.client.server()))
    }

    /// Refunds all units of a check.
    pub(super) async fn refund(
        &self,
        key: &ScratchKey,
        answer: &Answer,
        units: u32,
    ) -> Result<(), Error> {
        let refund = key.subject().refund(answer, units, units);
        let refund = self.client.adjust(refund);
        self.client.within_deadline(refund).await
    }

    pub(super) async fn reset(&self, key: &ScratchKey) -> Result<(), Error> {
        let reset = self.client.adjust(key.reset());
        self.client.within_deadline(reset).await
    }

    /// Removes the stored keys of a scratch key by the first of three commands that the user may run. Returns
    /// false if the user may run none of them.
    pub(super) async fn remove(&self, key: &ScratchKey) -> bool {
        let names = self.key_names();
        // A time to live of zero removes a key.
        for (command, arguments) in [("UNLINK", &[][..]), ("DEL", &[]), ("PEXPIRE", &["0"])] {
            let mut replies = Vec::new();
            for command in key.commands(names, command, arguments) {
                replies.push(self.query(&command).await);
            }
            let mut errors = replies.iter().filter_map(|reply| reply.as_ref().err());
            if !errors.any(is_forbidden) {
                return true;
            }
        }
        false
    }
}

/// Whether a command failed because the user may not run it, or the server does not have it.
fn is_forbidden(error: &Error) -> bool {
    missing_permission(error).is_some() || problems::is_unknown_command(error.problem())
}
