//! The log of units, and the tests of its rules against a list of all units.

mod columns;
mod entries;
mod log;
#[cfg(test)]
mod tests;

pub(super) use log::Log;
