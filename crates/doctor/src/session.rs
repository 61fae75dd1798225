//! The doctor's session with a server.

use std::time::Duration;

use redis::{Cmd, Value};
use tollgate::store::Store;
use tollgate::store::protocol::{Answer, Change, Check};
use tollgate::{__doctor as hooks, Error, ErrorKind, RedisStore};

use crate::remedies::missing_permission;
use crate::scratch_key::ScratchKey;

/// The time that each question may take if the store's deadline is shorter: a slow server should be
/// measured, not missed.
const MIN_TIMEOUT: Duration = Duration::from_secs(1);

/// Sends the doctor's questions, with a longer timeout than checks have, and past the refusal cache of the store.
#[derive(Debug)]
pub(crate) struct Session {
    /// On the connections of the store that is examined.
    store: RedisStore,
    /// Those of the store that is examined.
    settings: hooks::Settings,
}

impl Session {
    pub(crate) fn new(store: &RedisStore) -> Self {
        let settings = hooks::settings(store);
        let timeout = settings.deadline.max(MIN_TIMEOUT);
        let store = store.fork().deadline(timeout);
        Self { store, settings }
    }

    pub(crate) fn settings(&self) -> &hooks::Settings {
        &self.settings
    }

    /// Sends a command without keys to one server.
    pub(crate) async fn query(&self, command: Cmd) -> Result<Value, Error> {
        hooks::query(&self.store, None, command).await
    }

    /// Sends a command to the server that has a stored key.
    pub(crate) async fn query_key(&self, key: &str, command: Cmd) -> Result<Value, Error> {
        hooks::query(&self.store, Some(key), command).await
    }

    /// Sends a command to each server. Returns the replies with the addresses.
    pub(crate) async fn query_all(&self, command: Cmd) -> Result<Vec<(String, Value)>, Error> {
        hooks::query_all(&self.store, command).await
    }

    /// Tries TIME in a script. The reply is the refusal, or an empty text.
    pub(crate) async fn try_time(&self) -> Result<Value, Error> {
        hooks::try_time(&self.store).await
    }

    /// Returns the stored keys of a scratch key.
    pub(crate) fn stored_keys(&self, key: &ScratchKey) -> Vec<String> {
        hooks::stored_keys(&self.store, key.subject())
    }

    /// Sends a command on each stored key of a scratch key, with arguments behind it.
    pub(crate) async fn query_each(
        &self,
        key: &ScratchKey,
        command: &str,
        arguments: &[&str],
    ) -> Vec<Result<Value, Error>> {
        let mut replies = Vec::new();
        for stored_key in self.stored_keys(key) {
            let mut query = redis::cmd(command);
            query.arg(&stored_key).arg(arguments);
            replies.push(self.query_key(&stored_key, query).await);
        }
        replies
    }

    /// Sends one check in a call of its own.
    pub(crate) async fn check(&self, check: Check<'_>) -> Result<Answer, Error> {
        let answers = self.store.check(&[check]).await?;
        let answer = answers.first().cloned();
        answer.ok_or_else(|| self.malformed_reply("no answer"))
    }

    /// Refunds all units of a check.
    pub(crate) async fn refund(
        &self,
        key: &ScratchKey,
        answer: &Answer,
        units: u32,
    ) -> Result<(), Error> {
        let refund = key.subject().refund(answer, units, units);
        self.store.adjust(refund).await
    }

    pub(crate) async fn reset(&self, key: &ScratchKey) -> Result<(), Error> {
        let reset = key.subject().adjust(Change::Reset);
        self.store.adjust(reset).await
    }

    /// Removes the stored keys of a scratch key by the first of three commands that the user may run. Returns
    /// false if the user may run none of them.
    pub(crate) async fn remove(&self, key: &ScratchKey) -> bool {
        // A time to live of zero removes a key.
        for (command, arguments) in [("UNLINK", &[][..]), ("DEL", &[]), ("PEXPIRE", &["0"])] {
            let replies = self.query_each(key, command, arguments).await;
            let mut errors = replies.iter().filter_map(|reply| reply.as_ref().err());
            if !errors.any(is_forbidden) {
                return true;
            }
        }
        false
    }

    /// The error of a reply that makes no sense.
    pub(crate) fn malformed_reply(&self, cause: &str) -> Error {
        let text = format!(
            "malformed reply from {}: {cause}; is it a Redis server, and does no proxy change its replies?",
            self.settings.server
        );
        Error::new(ErrorKind::InvalidReply, text)
    }
}

/// Whether a command failed because the user may not run it, or the server does not have it.
fn is_forbidden(error: &Error) -> bool {
    missing_permission(error).is_some() || hooks::is_unknown_command(hooks::problem(error))
}
