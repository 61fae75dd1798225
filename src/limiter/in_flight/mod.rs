//! Slots in flight: the permits of this process, and the messages that tell the store of them.
//!
//! A table has the permits of one store by key. A message about a key states all slots that the table holds of it, so a
//! message that is lost, late or repeated cannot count a slot twice or lose one. At most one message about a key is under
//! way at a time. The rules of the store are in [`Holding`](crate::store::protocol::Holding).
//!
//! `table.rs` has the state, which one lock protects, and `held_key.rs` what is held of one key. `state.rs` puts messages
//! together and takes in their replies. `request.rs` has what callers ask, `held_slots.rs` gives slots back, and `keeper.rs`
//! sends the messages. A call that waits stands in the [line](super::line) of its key.

mod acquire;
mod held_key;
mod held_of_key;
mod held_slots;
mod keeper;
mod limiter_permits;
mod message;
mod permit;
mod request;
mod state;
mod table;
#[cfg(test)]
mod tests;

pub(super) use limiter_permits::LimiterPermits;
pub use permit::{Acquired, Permit};
pub(super) use request::SlotsOfCheck;
pub(super) use state::REPEATED;
pub(crate) use table::HeldSlots;
