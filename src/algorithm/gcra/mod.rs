//! The generic cell rate algorithm, and the list of refunded units that it needs.

mod gcra;
mod holes;

pub(super) use gcra::Gcra;
