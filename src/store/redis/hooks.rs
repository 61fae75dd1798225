//! The parts of a store that the package `tollgate-doctor` reads, under the hidden path `tollgate::__doctor`.
//!
//! For `crates/doctor` only. Any release may change or remove them: they are no part of the public API.

use std::borrow::Cow;
use std::num::NonZeroU16;
use std::time::Duration;

use redis::{Cmd, Value};

use super::batch::MAX_IN_FLIGHT;
pub use super::protocol::errors::{known_code, remedies};
use super::protocol::{Count, errors};
use super::redis_store::RedisStore;
use super::script;
use super::transport::LINES;
use crate::error::{Act, Error};
use crate::store::requests::Subject;

/// The calls of batches in flight to one target.
pub const BATCHES_IN_FLIGHT: usize = MAX_IN_FLIGHT;

/// The commands in flight to one server.
pub const COMMANDS_IN_FLIGHT: usize = LINES;

/// The settings of a store.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Settings {
    /// The deployment as errors name it: `Redis at 127.0.0.1:6379`. Has no user and no password.
    pub server: String,
    /// Whether the store follows the redirects of a cluster.
    pub follows_redirects: bool,
    /// The deadline of a check.
    pub deadline: Duration,
    /// In its stored form.
    pub prefix: String,
    /// The number of hash tags, if keys share them.
    pub hash_tags: Option<NonZeroU16>,
}

/// Returns the settings of a store.
#[must_use]
pub fn settings(store: &RedisStore) -> Settings {
    let settings = &store.shared.settings;
    Settings {
        server: settings.deployment.name.to_string(),
        follows_redirects: settings.deployment.is_cluster(),
        deadline: settings.deadline,
        prefix: settings.names.prefix().to_owned(),
        hash_tags: settings.names.tags(),
    }
}

/// Returns the stored keys that count the quotas of a subject.
#[must_use]
pub fn stored_keys(store: &RedisStore, subject: Subject<'_>) -> Vec<String> {
    let names = &store.shared.settings.names;
    Count::all(subject)
        .into_iter()
        .map(|count| names.value(subject, count.name))
        .collect()
}

/// Tries TIME in a script, within the deadline of the store. The reply is the refusal, or an empty text.
///
/// # Errors
///
/// Returns an error if the server does not answer in time, or replies with an error.
pub async fn try_time(store: &RedisStore) -> Result<Value, Error> {
    let blocks = store.shared.settings.names.block_list();
    query(store, Some(&blocks), script::time_trial(&blocks)).await
}

/// Sends a command to the server that has a key, within the deadline of the store.
///
/// # Errors
///
/// Returns an error if the server does not answer in time, or replies with an error.
pub async fn query(store: &RedisStore, key: Option<&str>, command: Cmd) -> Result<Value, Error> {
    let client = store.client()?;
    let slot = key.and_then(|key| client.key_slot(key));
    client
        .start(slot, move |client, route| async move {
            client.query(&route, &command).await
        })
        .await
}

/// Sends a command to each server, within the deadline of the store. Returns the replies with the addresses.
///
/// # Errors
///
/// Returns an error if a server does not answer in time, or replies with an error.
pub async fn query_all(store: &RedisStore, command: Cmd) -> Result<Vec<(String, Value)>, Error> {
    let replies = store.client()?.query_all(command).await?;
    Ok(replies
        .into_iter()
        .map(|(server, reply)| {
            let address = server.address().unwrap_or_default();
            (address.to_owned(), reply)
        })
        .collect())
}

/// Returns the text of an error without its remedy.
#[must_use]
pub fn problem(error: &Error) -> &str {
    error.problem()
}

/// Returns the remedy of an error, if it is kept apart from the text.
#[must_use]
pub fn remedy(error: &Error) -> Option<&Cow<'static, str>> {
    error.remedy()
}

/// Returns whether a server says that the user may not run a command.
#[must_use]
pub fn is_forbidden_command(message: &str) -> bool {
    errors::find_act_in_text(message) == Act::ForbiddenCommand
}

/// Returns whether a server says that the user may not access the names of the keys.
#[must_use]
pub fn are_forbidden_keys(message: &str) -> bool {
    errors::find_act_in_text(message) == Act::ForbiddenKeys
}

/// Returns whether a server says that it does not have a command.
#[must_use]
pub fn is_unknown_command(message: &str) -> bool {
    errors::find_act_in_text(message) == Act::UnknownCommand
}
