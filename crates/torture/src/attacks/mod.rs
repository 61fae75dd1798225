//! The attacks, one per file.

mod all;
mod attack;
mod cancelled;
mod clock;
mod costs;
mod cut;
mod edges;
mod emptied;
mod full;
mod killed;
mod outage;
mod paused;
mod processes;
mod skew;
mod slots;
mod threads;
mod waits;

pub(crate) use all::ALL;
pub(crate) use attack::Attack;
