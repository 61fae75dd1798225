//! The keys that operators have blocked, and how a process learns what others have blocked.

mod block_list;
mod filter;

pub use block_list::BlockList;
#[cfg(feature = "redis")]
pub(super) use block_list::{RefreshTrigger, full};
