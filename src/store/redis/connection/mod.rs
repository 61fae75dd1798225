//! Connections to Redis: to a single server, to the master that Sentinel names, to a cluster.
//!
//! Knows the errors of the protocol, and nothing of checks.

#[cfg(feature = "cluster")]
mod cluster;
mod established;
mod link;
mod per_runtime;
mod pool;
mod port_probe;
mod reconnecting;
mod script_support;
#[cfg(feature = "sentinel")]
mod sentinel;
mod single;
mod state;
#[cfg(feature = "tls")]
pub(crate) mod tls;

#[cfg(feature = "cluster")]
pub(crate) use cluster::Cluster;
pub(crate) use link::Connector;
pub(crate) use per_runtime::PerRuntime;
pub(crate) use pool::{ConnectionPool, KEYLESS, PerConnection};
pub(crate) use reconnecting::{Acquired, ReconnectingConnection};
#[cfg(feature = "sentinel")]
pub(crate) use sentinel::Sentinel;
pub(crate) use single::Server;
