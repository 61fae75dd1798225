//! Calls that wait for units or slots: one line for each key, in which they are served in the order of their arrival.

mod lines;
mod place;

pub(in crate::limiter) use lines::{LINES, LineKey, Room, Ticket, Wants, Woken};
pub(crate) use place::{Place, TooLate, Want};
pub(in crate::limiter) use place::{forget_room, wake_first};
