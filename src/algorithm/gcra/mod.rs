//! The generic cell rate algorithm, and the list of units given back out of order that it needs.

mod gcra;
mod holes;

pub(super) use gcra::Gcra;
