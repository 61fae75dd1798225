//! Slots in flight: the permits of this process, and the messages that tell the store of them.
//!
//! A table has the permits of one store by key. A message about a key states all slots that the table holds of it, so a
//! message that is lost, late or repeated cannot count a slot twice or lose one. At most one message about a key is under
//! way at a time. The rules of the store are in [`Holding`](crate::store::Holding).

mod acquire;
mod messages;
mod permit;
mod table;

pub(super) use acquire::DEFAULT_MAX_WAIT;
pub(crate) use acquire::SlotsOfCheck;
pub(crate) use permit::Ticket;
pub use permit::{Acquired, Permit};
pub(super) use table::PermitTable;
