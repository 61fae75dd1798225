//! Calls that wait for units or slots: one line for each key, in which they are served in the order of their arrival.

mod lines;
mod place;

pub(crate) use lines::TooLate;
pub(in crate::limiter) use lines::{LINES, LineKey, Room, Ticket, WhyTooLate, Woken};
pub(crate) use place::{Place, Want};
pub(in crate::limiter) use place::{forget_room, wake_first};
