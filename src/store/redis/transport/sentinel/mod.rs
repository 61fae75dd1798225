//! The master that Redis Sentinel names.

mod client;
mod follower;
mod master;
mod sentinel;
mod voters;

pub(super) use sentinel::Sentinels;
