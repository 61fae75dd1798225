//! Why a call has no reply, and whether a server may have run it.

use std::sync::Arc;
use std::time::Duration;

use redis::{ErrorKind, RedisError, ServerErrorKind};

use crate::error::{Act, Error};
use crate::store::redis::protocol::ServerName;
use crate::store::redis::protocol::errors::{self as error, Handshake};
use crate::store::redis::real_time::Late;

/// The fate of a command without a reply that can be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    /// The command was never written to a socket, or the server says that it has not run it. Only such a command may be
    /// sent again.
    NotRun,
    /// The server has replied with an error.
    Answered,
    /// The command was written, and no reply came.
    Unknown,
}

/// The failure of a call.
#[derive(Clone, Debug)]
pub(crate) struct Failure {
    pub(crate) server: ServerName,
    pub(crate) cause: Cause,
    pub(crate) fate: Fate,
}

/// The cause of a failure.
#[derive(Clone, Debug)]
pub(crate) enum Cause {
    /// No reply, or no connection, within the deadline.
    Late(Late),
    /// The reply belongs to another call.
    OutOfSync { reconnects: bool },
    /// The application gave no credentials for a connection, for this reason.
    NoCredentials(Arc<str>),
    /// An error of the server or of the client, and the handshake that it ended.
    Error(RedisError, Handshake),
}

/// The reply of a cluster node that has not run a command.
#[cfg(feature = "cluster")]
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Redirect {
    /// Another node has the slot.
    Moved(String, u16),
    /// Another node has the keys of a slot that is moving.
    Ask(String, u16),
    /// The keys are on two nodes.
    TryAgain,
    /// No node serves the slot yet, or the reply does not name the one that does.
    Unserved,
}

impl From<RedisError> for Cause {
    fn from(error: RedisError) -> Self {
        Self::Error(error, Handshake::Unknown)
    }
}

impl Failure {
    fn new(server: &ServerName, cause: impl Into<Cause>, fate: Fate) -> Self {
        Self {
            server: server.clone(),
            cause: cause.into(),
            fate,
        }
    }

    pub(super) fn to_connect(server: &ServerName, cause: impl Into<Cause>) -> Self {
        Self::new(server, cause, Fate::NotRun)
    }

    pub(super) fn from_command(server: &ServerName, error: RedisError) -> Self {
        let fate = match error.kind() {
            ErrorKind::Server(
                ServerErrorKind::Ask
                | ServerErrorKind::ClusterDown
                | ServerErrorKind::CrossSlot
                | ServerErrorKind::Moved
                | ServerErrorKind::NoScript
                | ServerErrorKind::TryAgain,
            ) => Fate::NotRun,
            _ if error.code().is_some() => Fate::Answered,
            _ => Fate::Unknown,
        };
        Self::new(server, error, fate)
    }

    /// No reply, or no connection, within the deadline.
    pub(super) fn from_deadline(server: &ServerName, late: Late, fate: Fate) -> Self {
        Self::new(server, Cause::Late(late), fate)
    }

    /// A reply that belongs to another call. The server has received this one too, and may have run it.
    pub(super) fn out_of_sync(server: &ServerName, reconnects: bool) -> Self {
        Self::new(server, Cause::OutOfSync { reconnects }, Fate::Unknown)
    }

    pub(crate) fn into_error(self, deadline: Duration) -> Error {
        match self.cause {
            Cause::Late(late) => error::timeout(&self.server, deadline, late),
            Cause::OutOfSync { reconnects } => error::out_of_sync(&self.server, reconnects),
            Cause::NoCredentials(cause) => error::no_credentials(&self.server, &cause),
            Cause::Error(source, handshake) => error::from_redis(source, handshake, &self.server),
        }
    }

    pub(crate) fn error(&self) -> Option<&RedisError> {
        match &self.cause {
            Cause::Late(_) | Cause::OutOfSync { .. } | Cause::NoCredentials(_) => None,
            Cause::Error(error, _) => Some(error),
        }
    }

    pub(crate) fn act(&self) -> Act {
        self.error().map_or(Act::Nothing, error::find_act)
    }

    pub(crate) fn is_late(&self) -> bool {
        self.late().is_some()
    }

    pub(crate) fn late(&self) -> Option<Late> {
        match self.cause {
            Cause::Late(late) => Some(late),
            Cause::OutOfSync { .. } | Cause::NoCredentials(_) | Cause::Error(..) => None,
        }
    }

    pub(super) fn is_lost(&self) -> bool {
        self.error()
            .is_none_or(|error| error.is_unrecoverable_error() || error.is_timeout())
    }

    pub(super) fn is_misconfigured(&self) -> bool {
        self.error().is_some_and(error::is_misconfigured)
    }

    /// Returns the redirect that this failure stands for. `asked` is the host of the node that was asked.
    #[cfg(feature = "cluster")]
    pub(super) fn redirect(&self, asked: &str) -> Option<Redirect> {
        let error = self.error()?;
        let ErrorKind::Server(kind) = error.kind() else {
            return None;
        };
        // The node that MOVED or ASK names.
        let node = error.redirect_node().and_then(|(node, _)| {
            let (host, port) = node.rsplit_once(':')?;
            let host = known_host(host.trim_matches(['[', ']']), asked);
            Some((host.to_owned(), port.parse().ok()?))
        });
        match (kind, node) {
            (ServerErrorKind::Moved, Some((host, port))) => Some(Redirect::Moved(host, port)),
            (_, Some((host, port))) => Some(Redirect::Ask(host, port)),
            (ServerErrorKind::TryAgain, _) => Some(Redirect::TryAgain),
            (ServerErrorKind::Moved | ServerErrorKind::Ask | ServerErrorKind::ClusterDown, _) => {
                Some(Redirect::Unserved)
            }
            _ => None,
        }
    }
}

/// Returns the host of a node that another node names: the host `asked` of that other node if it does not know one.
#[cfg(feature = "cluster")]
pub(super) fn known_host<'a>(host: &'a str, asked: &'a str) -> &'a str {
    match host {
        "" | "?" | "0.0.0.0" | "::" => asked,
        host => host,
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use redis::Value;

    use super::*;

    fn reply(text: &str) -> Failure {
        let reply = redis::parse_redis_value(format!("-{text}\r\n").as_bytes());
        let error = reply.and_then(Value::extract_error).unwrap_err();
        Failure::from_command(&ServerName::UNKNOWN, error)
    }

    #[test]
    fn only_what_a_server_says_it_has_not_run_may_be_sent_again() {
        for (text, fate) in [
            ("MOVED 12182 10.0.0.2:7001", Fate::NotRun),
            ("ASK 12182 10.0.0.2:7001", Fate::NotRun),
            ("TRYAGAIN Multiple keys", Fate::NotRun),
            ("CLUSTERDOWN Hash slot not served", Fate::NotRun),
            ("CROSSSLOT Keys in request", Fate::NotRun),
            ("NOSCRIPT No matching script", Fate::NotRun),
            ("LOADING Redis is loading", Fate::Answered),
            ("READONLY You can't write", Fate::Answered),
            ("ERR unknown", Fate::Answered),
        ] {
            assert_eq!(reply(text).fate, fate, "{text}");
        }
        for kind in [
            io::ErrorKind::BrokenPipe,
            io::ErrorKind::ConnectionReset,
            io::ErrorKind::TimedOut,
        ] {
            let lost = Failure::from_command(&ServerName::UNKNOWN, io::Error::from(kind).into());
            assert_eq!(lost.fate, Fate::Unknown, "{kind}");
            assert!(lost.is_lost(), "{kind}");
        }
    }

    #[cfg(feature = "cluster")]
    #[test]
    fn a_redirect_without_a_host_is_to_the_host_that_was_asked() {
        let moved = |host: &str| Some(Redirect::Moved(host.to_owned(), 7_001));
        let ask = |host: &str| Some(Redirect::Ask(host.to_owned(), 7_001));
        for (text, expected) in [
            ("MOVED 12182 10.0.0.2:7001", moved("10.0.0.2")),
            ("MOVED 12182 redis-2.local:7001", moved("redis-2.local")),
            ("MOVED 12182 2001:db8::2:7001", moved("2001:db8::2")),
            // As `cluster-preferred-endpoint-type` says: `unknown-endpoint`, or `hostname` without one.
            ("MOVED 12182 :7001", moved("10.0.0.1")),
            ("MOVED 12182 ?:7001", moved("10.0.0.1")),
            ("ASK 12182 ?:7001", ask("10.0.0.1")),
            ("ASK 12182 10.0.0.2:7001", ask("10.0.0.2")),
            ("MOVED 12182", Some(Redirect::Unserved)),
            ("TRYAGAIN Multiple keys", Some(Redirect::TryAgain)),
            ("CLUSTERDOWN Hash slot not served", Some(Redirect::Unserved)),
            ("LOADING Redis is loading", None),
            ("READONLY You can't write", None),
            ("NOSCRIPT No matching script", None),
        ] {
            assert_eq!(reply(text).redirect("10.0.0.1"), expected, "{text}");
        }
        let lost = RedisError::from((ErrorKind::ClusterConnectionNotFound, "no connections"));
        let lost = Failure::from_command(&ServerName::UNKNOWN, lost);
        assert_eq!(lost.redirect(""), None);
    }
}
