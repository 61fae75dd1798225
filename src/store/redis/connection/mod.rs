//! Connections to Redis: to one server, to the master that Sentinel names, to a cluster.

#[cfg(feature = "cluster")]
mod cluster;
mod handle;
mod link;
mod per_runtime;
mod pool;
mod reconnecting;
#[cfg(feature = "sentinel")]
mod sentinel;
mod single;
#[cfg(feature = "tls")]
pub(crate) mod tls;

#[cfg(feature = "cluster")]
pub(crate) use cluster::Cluster;
pub(crate) use handle::{Connection, ConnectionHandle, ConnectionIndex};
pub(crate) use link::Connector;
pub(crate) use per_runtime::PerRuntime;
#[cfg(feature = "sentinel")]
pub(crate) use sentinel::Sentinel;
pub(crate) use single::Server;
