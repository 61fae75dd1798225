//! The store in Redis: each check is decided in one atomic Lua call.
//!
//! The only room that knows the `redis` crate.

mod batch;
mod block_list;
mod client;
mod connection;
pub mod doctor;
mod protocol;
mod redis_store;
mod script;
#[cfg(test)]
#[path = "../../../tests/support/redis_server.rs"]
#[expect(dead_code, reason = "the tests of other folders use the rest")]
mod test_server;
#[cfg(test)]
mod tests;
mod url;

pub use redis_store::RedisStore;
