//! What only a real Redis shows.

#[path = "../support/mod.rs"]
mod support;

mod connections;
mod failures;
mod numbers;
mod processes;
mod script;
mod work;

use tollgate::RedisStore;

use support::redis_server::RedisServer;

/// A store on a server, patient with a slow machine.
fn store_on(server: &RedisServer) -> RedisStore {
    RedisStore::open(&server.url())
        .expect("a URL")
        .deadline(std::time::Duration::from_secs(10))
}
