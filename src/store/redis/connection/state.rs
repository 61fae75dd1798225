//! The states of a connection that reconnects, and the signs that an established one is lost.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use redis::{Cmd, RedisError};

use super::link::Link;
use crate::store::redis::protocol::ServerName;
use crate::store::redis::protocol::errors::{self as error, ConnectError};
use crate::store::redis::real_time;

/// The time from a failed attempt, or from the start of the previous connection, to the next
/// attempt. A server that comes back is found at once, and one that refuses is not asked by each
/// check.
pub(super) const RECONNECT_BACKOFF: Duration = Duration::from_millis(50);

/// The same after the server rejected our credentials or settings: it logs such attempts.
const MISCONFIGURED_BACKOFF: Duration = Duration::from_millis(250);

#[derive(Debug)]
pub(super) enum ConnectionState {
    /// Not used yet, or the last attempt failed.
    Absent(Option<Failure>),
    /// An attempt is in progress. The error comes from the previous one, if the set-up was wrong.
    Connecting(Option<ConnectError>),
    Established(Arc<Established>),
    /// Silent, and probed. Nothing else is sent until the probe ends: a hung server would execute
    /// it after its callers have gone.
    Probing(Arc<Established>),
}

#[derive(Debug)]
pub(super) struct Failure {
    error: ConnectError,
    /// Until then, the error is returned without another attempt.
    retry_at: Instant,
}

/// The next step of a caller that waits for a connection.
pub(super) enum Step {
    Take(Arc<Established>),
    Fail(ConnectError),
    Connect,
    /// Wait for the attempt or the probe in progress. The error is the likely outcome, if there is one.
    Wait(Option<ConnectError>),
}

impl ConnectionState {
    /// The connection that there is, probed or not.
    pub(super) fn connection(&self) -> Option<&Arc<Established>> {
        match self {
            Self::Established(established) | Self::Probing(established) => Some(established),
            Self::Absent(_) | Self::Connecting(_) => None,
        }
    }

    /// The error of the last attempt, if the set-up was wrong.
    pub(super) fn misconfiguration(&self) -> Option<ConnectError> {
        match self {
            Self::Absent(Some(failure)) if error::is_misconfigured(&failure.error.error) => {
                Some(failure.error.clone())
            }
            _ => None,
        }
    }

    pub(super) fn step(&self) -> Step {
        match self {
            Self::Established(established) => Step::Take(Arc::clone(established)),
            Self::Absent(failure) => match failure.as_ref().and_then(Failure::until_retry) {
                Some(error) => Step::Fail(error),
                None => Step::Connect,
            },
            Self::Connecting(previous) => Step::Wait(previous.clone()),
            Self::Probing(_) => Step::Wait(None),
        }
    }
}

impl Failure {
    pub(super) fn new(error: ConnectError) -> Self {
        let backoff = if error::is_misconfigured(&error.error) {
            MISCONFIGURED_BACKOFF
        } else {
            RECONNECT_BACKOFF
        };
        Self {
            error,
            retry_at: Instant::now() + backoff,
        }
    }

    /// Returns the error, unless another attempt is due.
    pub(super) fn until_retry(&self) -> Option<ConnectError> {
        (Instant::now() < self.retry_at).then(|| self.error.clone())
    }
}

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
        let answer = real_time::timeout(timeout, self.link.send(probe)).await;
        answer.is_some_and(|answer| !answer.is_err_and(|error| is_connection_lost(&error)))
    }

    pub(super) fn is_old_enough_to_give_up(&self) -> bool {
        self.started_at.elapsed() >= MIN_AGE_TO_GIVE_UP
    }
}

pub(super) fn is_connection_lost(error: &RedisError) -> bool {
    error.is_unrecoverable_error() || error.is_timeout()
}
