//! The keys that operators have blocked, and how a process gets the blocks of other processes.

mod block_list;
mod filter;
mod refreshes;

pub use block_list::BlockList;
pub(in crate::store) use block_list::{SharedReading, has_room};
