//! Tests that need a real Redis.

#[cfg(feature = "cluster")]
#[path = "../support/proxy.rs"]
mod proxy;
#[path = "../support/state.rs"]
mod state;
#[path = "../support/mod.rs"]
mod support;

mod acl;
mod admin;
mod appended;
mod batches;
mod blocking;
mod cluster;
#[cfg(feature = "cluster")]
mod cluster_errors;
#[cfg(feature = "cluster")]
mod cluster_failures;
#[cfg(feature = "cluster")]
mod cluster_moves;
#[cfg(feature = "cluster")]
mod cluster_seeds;
mod connections;
mod costs;
mod credits;
mod distance;
mod doctor;
mod failures;
mod leases;
mod levels;
mod numbers;
mod oracle;
mod outage_log;
mod processes;
mod recovery;
mod refusal_cache;
mod script;
#[cfg(feature = "sentinel")]
mod sentinel;
mod settings;
mod shared_names;
mod stored;
mod tenants;
mod texts;
#[cfg(feature = "tls")]
mod tls;
mod together;
mod work;

use support::store_on;
