//! The name of a server in errors.

use std::fmt;
use std::sync::Arc;

/// The name of a cluster in errors, without its address.
pub(crate) const CLUSTER: &str = "Redis Cluster";

/// The name of a node of a cluster in errors.
pub(crate) const CLUSTER_NODE: &str = "the Redis Cluster node";

/// The name of a sentinel in errors.
#[cfg(feature = "sentinel")]
pub(crate) const SENTINEL: &str = "Redis Sentinel";

/// A server or a deployment as errors name it: `Redis at 127.0.0.1:6379`. Holds no user and no password.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct ServerName {
    what: &'static str,
    /// Missing for a connection of the application.
    address: Option<Arc<str>>,
}

impl ServerName {
    pub(crate) fn new(what: &'static str, address: &str) -> Self {
        Self {
            what,
            address: Some(address.into()),
        }
    }

    /// The server of a connection that the application has made.
    pub(crate) const UNKNOWN: Self = Self {
        what: "Redis",
        address: None,
    };

    /// Returns the address, unless the application has made the connection.
    pub(crate) fn address(&self) -> Option<&str> {
        self.address.as_deref()
    }

    pub(crate) fn is_cluster(&self) -> bool {
        [CLUSTER, CLUSTER_NODE].contains(&self.what)
    }
}

impl fmt::Display for ServerName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.what)?;
        match &self.address {
            Some(address) => write!(f, " at {address}"),
            None => Ok(()),
        }
    }
}
