//! Connections to Redis Cluster: the seed nodes, a connection for each node, the slot map, redirects.

mod cluster;
mod cluster_connection;
mod redirect;
mod slot_map;

pub(crate) use cluster::Cluster;
pub(super) use cluster_connection::{ClusterConnection, Patience};
