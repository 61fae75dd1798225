//! Slots in flight: the permits of this process, and the messages that tell the store of them.
//!
//! A table has the permits of one store by key. A message about a key states all slots that the table holds of it, so a
//! message that is lost, late or repeated cannot count a slot twice or lose one. At most one message about a key is under
//! way at a time. The rules of the store are in [`Holding`](crate::store::Holding).
//!
//! `held_key.rs` has what is held of one key, `state.rs` all keys and the checks that wait, and `table.rs` puts messages
//! together and takes in their replies: under one lock, without a clock, a task or a store. `sending.rs` has these.

mod acquire;
mod held_key;
mod message;
mod permit;
mod sending;
mod state;
mod table;

pub(super) use acquire::LimiterPermits;
pub(crate) use acquire::SlotsOfCheck;

pub use permit::{Acquired, Permit};
