//! Blocks keys that are refused too often: see [`BlockRule`](crate::BlockRule).

mod automatic_blocks;
mod block_counts;

pub(super) use automatic_blocks::AutomaticBlocks;
pub(super) use block_counts::BlockCounts;
