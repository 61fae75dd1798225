//! The attacks: one per file, and those on a server, or on processes, together.

mod all;
mod attack;
mod cancelled;
mod costs;
mod cut;
mod edges;
mod outage;
mod processes;
mod slots;
mod threads;
mod waits;

pub(crate) use all::ALL;
pub(crate) use attack::Attack;
