//! What only a real Redis shows.

#[cfg(feature = "cluster")]
#[path = "../support/proxy.rs"]
mod proxy;
#[path = "../support/mod.rs"]
mod support;

mod acl;
mod admin;
mod batches;
mod cluster;
mod connections;
mod costs;
mod denials;
mod doctor;
mod failures;
mod gifts;
mod numbers;
mod processes;
mod recovery;
mod script;
#[cfg(feature = "sentinel")]
mod sentinel;
#[cfg(feature = "tls")]
mod tls;
mod work;

use support::store_on;
