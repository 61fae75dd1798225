//! The attacks, one per file.

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

mod attack;

pub(crate) use attack::{ALL, Attack};
