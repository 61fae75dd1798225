//! Connections to Redis: to a single server, to the master that Sentinel names, to a cluster.
//!
//! Knows the errors of the protocol, and nothing of checks.

mod acquired;
mod asked;
#[cfg(feature = "cluster")]
mod cluster;
mod link;
mod per_runtime;
mod pool;
mod port_probe;
mod reconnecting;
mod script_support;
#[cfg(feature = "sentinel")]
mod sentinel;
mod server_settings;
mod single;
mod state;
#[cfg(feature = "tls")]
pub(crate) mod tls;
#[cfg(feature = "tls")]
mod tls_files;

pub(crate) use acquired::{AcquiredConnection, Connection};
pub(crate) use asked::{last as last_asked, scope as noting_asked};
#[cfg(feature = "cluster")]
pub(crate) use cluster::Cluster;
pub(crate) use link::Connector;
pub(crate) use per_runtime::PerRuntime;
pub(crate) use pool::{ConnectionPool, KEYLESS, PerConnection};
#[cfg(feature = "sentinel")]
pub(crate) use sentinel::Sentinel;
pub(crate) use server_settings::ServerSettings;
pub(crate) use single::{CONCURRENT_COMMANDS, Server};
