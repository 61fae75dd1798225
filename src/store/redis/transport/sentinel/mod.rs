//! The master that Redis Sentinel names.

mod master;
mod sentinel;
mod sentinels;

pub(super) use sentinels::Sentinels;
