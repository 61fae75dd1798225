//! The replies of cluster nodes that have not run a command.

use redis::{ErrorKind, RedisError, ServerErrorKind};

use super::slot_map::known_host;

/// The reply of a node that has not run a command.
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

impl Redirect {
    /// Returns the redirect that an error of the node at the host `asked` stands for. After any other error the
    /// command may have run.
    pub(super) fn of(error: &RedisError, asked: &str) -> Option<Self> {
        let ErrorKind::Server(kind) = error.kind() else {
            return None;
        };
        let node = || {
            let (node, _) = error.redirect_node()?;
            let (host, port) = node.rsplit_once(':')?;
            let host = known_host(host.trim_matches(['[', ']']), asked);
            Some((host.to_owned(), port.parse().ok()?))
        };
        let to = |redirect: fn(String, u16) -> Self| {
            node().map_or(Self::Unserved, |(host, port)| redirect(host, port))
        };
        match kind {
            ServerErrorKind::Moved => Some(to(Self::Moved)),
            ServerErrorKind::Ask => Some(to(Self::Ask)),
            ServerErrorKind::TryAgain => Some(Self::TryAgain),
            ServerErrorKind::ClusterDown => Some(Self::Unserved),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use redis::Value;

    use super::*;

    #[test]
    fn only_a_command_that_a_node_has_not_run_is_resent() {
        let moved = |host: &str| Some(Redirect::Moved(host.to_owned(), 7_001));
        for (code, detail, expected) in [
            ("MOVED", "12182 10.0.0.2:7001", moved("10.0.0.2")),
            ("MOVED", "12182 redis-2.local:7001", moved("redis-2.local")),
            ("MOVED", "12182 2001:db8::2:7001", moved("2001:db8::2")),
            // As `cluster-preferred-endpoint-type` says: `unknown-endpoint`, or `hostname` without one.
            ("MOVED", "12182 :7001", moved("10.0.0.1")),
            ("MOVED", "12182 ?:7001", moved("10.0.0.1")),
            (
                "ASK",
                "12182 ?:7001",
                Some(Redirect::Ask("10.0.0.1".to_owned(), 7_001)),
            ),
            ("MOVED", "12182", Some(Redirect::Unserved)),
            (
                "ASK",
                "12182 10.0.0.2:7001",
                Some(Redirect::Ask("10.0.0.2".to_owned(), 7_001)),
            ),
            ("TRYAGAIN", "Multiple keys", Some(Redirect::TryAgain)),
            (
                "CLUSTERDOWN",
                "Hash slot not served",
                Some(Redirect::Unserved),
            ),
            ("LOADING", "Redis is loading", None),
            ("READONLY", "You can't write", None),
            ("NOSCRIPT", "No matching script", None),
        ] {
            let reply = redis::parse_redis_value(format!("-{code} {detail}\r\n").as_bytes());
            let error = reply.and_then(Value::extract_error).unwrap_err();
            assert_eq!(
                Redirect::of(&error, "10.0.0.1"),
                expected,
                "{code} {detail}"
            );
        }
        for kind in [
            std::io::ErrorKind::BrokenPipe,
            std::io::ErrorKind::ConnectionReset,
            std::io::ErrorKind::TimedOut,
        ] {
            let error = RedisError::from(std::io::Error::from(kind));
            assert_eq!(Redirect::of(&error, ""), None, "{kind}");
        }
        let lost = RedisError::from((ErrorKind::ClusterConnectionNotFound, "no connections"));
        assert_eq!(Redirect::of(&lost, ""), None);
    }
}
