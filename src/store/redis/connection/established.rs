//! An established connection, and the signs that it is lost.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use redis::{Cmd, RedisError};
use tokio::time;

use super::link::Link;
use crate::store::redis::protocol::ServerName;

/// The age below which a connection survives an error reply that calls for another server:
/// reconnecting to the wrong server again and again would only add to its load.
const MIN_AGE_TO_GIVE_UP: Duration = Duration::from_millis(500);

/// An established connection.
#[derive(Debug)]
pub(crate) struct Established {
    pub(super) link: Link,
    /// The server, for errors: of a cluster, all its nodes.
    pub(super) server: ServerName,
    /// When its attempt started. Identifies the connection.
    pub(super) started_at: Instant,
    /// Whether it is probed while it stays in use.
    pub(super) is_probed: AtomicBool,
}

impl Established {
    pub(super) fn new(link: Link, server: ServerName, started_at: Instant) -> Arc<Self> {
        Arc::new(Self {
            link,
            server,
            started_at,
            is_probed: AtomicBool::new(false),
        })
    }

    /// Returns whether the server answers a probe. An error reply is an answer as well.
    pub(super) async fn answers(&self, probe: &Cmd, timeout: Duration) -> bool {
        let answer = time::timeout(timeout, self.link.send(probe)).await;
        answer.is_ok_and(|answer| !answer.is_err_and(|error| is_connection_lost(&error)))
    }

    pub(super) fn is_old_enough_to_give_up(&self) -> bool {
        self.started_at.elapsed() >= MIN_AGE_TO_GIVE_UP
    }
}

pub(super) fn is_connection_lost(error: &RedisError) -> bool {
    error.is_unrecoverable_error() || error.is_timeout()
}
