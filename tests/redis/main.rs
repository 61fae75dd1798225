//! What only the Redis store has: its script and stored bytes, permissions, connections and batches.

#[path = "../support/state.rs"]
mod state;
#[path = "../support/mod.rs"]
mod support;

mod acl;
mod admin;
mod appended;
mod batches;
mod connections;
mod costs;
mod credentials;
mod credits;
mod numbers;
mod oracle;
mod paused_time;
mod processes;
mod refusal_cache;
mod replies;
mod script;
mod settings;
mod shared_names;
#[cfg(target_os = "linux")]
mod simulated;
mod stored;
mod tenants;
mod texts;
#[cfg(feature = "tls")]
mod tls;
mod together;
mod urls;
mod work;
