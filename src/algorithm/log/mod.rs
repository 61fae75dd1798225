//! The log of units, and the tests of its rules against a list of all units.

mod columns;
mod log;
#[cfg(test)]
mod tests;

pub(super) use log::Log;
