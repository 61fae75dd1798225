//! The store in Redis: each check is decided in one atomic Lua call.
//!
//! The only room that knows the `redis` crate. Its parts know each other in this order: hooks,
//! `redis_store`, `block_list` and batch, `eval`, client and url, breakers, transport, `argument_clock`, protocol, script,
//! `real_time`.

mod argument_clock;
mod batch;
mod block_list;
mod breakers;
mod client;
mod eval;
#[doc(hidden)]
pub mod hooks;
mod open;
mod protocol;
mod real_time;
mod redis_store;
mod script;
mod settings;
#[cfg(test)]
#[path = "../../../tests/support/redis_server.rs"]
#[expect(dead_code, reason = "other tests use the rest")]
mod test_server;
#[cfg(test)]
mod tests;
mod transport;
mod url;

pub use protocol::HashTags;
pub use redis_store::RedisStore;
pub use transport::Credentials;
