//! A Redis server in memory, with the commands that the scripts call. It runs their Lua.

mod commands;
mod keyspace;
mod message_pack;
mod number;
mod packed_fields;
mod reply;
#[expect(
    clippy::module_inception,
    reason = "the main file of a module has its name"
)]
mod server;
mod sorted_sets;
mod strings;

pub use keyspace::{Keyspace, StoredKey};
pub use reply::{Reply, lost_connection};
pub use server::Server;
