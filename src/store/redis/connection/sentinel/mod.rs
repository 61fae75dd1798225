//! Connections to the master that Redis Sentinel names.

mod client;
mod follower;
mod master;
mod sentinel;
mod voters;

pub(super) use follower::MasterWatcher;
pub(crate) use sentinel::Sentinel;
