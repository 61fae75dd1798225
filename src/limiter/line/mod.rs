//! Calls that wait for units or slots: one line for each key, in which they are served in the order of their arrival.

mod line_key;
mod lines;
mod patience;
mod place;
mod standing;

pub(in crate::limiter) use line_key::LineKey;
pub(crate) use lines::TooLate;
pub(crate) use lines::WhyTooLate;
pub(in crate::limiter) use lines::{LINES, Room, SlotWait, Woken};
pub(crate) use place::{Place, Want};
pub(in crate::limiter) use place::{forget_room, wake_first};
pub(in crate::limiter) use standing::Ticket;
