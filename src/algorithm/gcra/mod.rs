//! The generic cell rate algorithm, and its list of refunded units.

mod gcra;
mod holes;

pub(super) use gcra::Gcra;
