//! The way to Redis: a single server, the master that Sentinel names, a cluster.
//!
//! Knows the names, the times and the errors of the protocol, and nothing of checks.

#[cfg(feature = "cluster")]
mod cluster;
mod connection;
mod credentials;
mod deployment;
mod dial;
mod failure;
mod node;
mod per_runtime;
#[cfg(feature = "sentinel")]
mod sentinel;
mod stream;
#[cfg(feature = "tls")]
pub(crate) mod tls;
#[cfg(feature = "tls")]
mod tls_files;
mod transport;

pub(crate) use credentials::CredentialSource;
pub use credentials::Credentials;
pub(crate) use deployment::{Deployment, Servers};
pub(crate) use dial::Server;
pub(crate) use failure::Failure;
pub(crate) use node::{LINES, Line, Node};
pub(crate) use per_runtime::PerRuntime;
pub(crate) use transport::Route;
