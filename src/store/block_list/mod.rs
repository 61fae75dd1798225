//! The keys that operators have blocked, and how a process learns what others have blocked.

mod block_list;
mod filter;

#[cfg(feature = "redis")]
pub(super) use block_list::full;
pub use block_list::{BlockList, RefreshTrigger};
