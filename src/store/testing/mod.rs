//! A store for the tests of services: it refuses, fails and hangs on demand.

mod test_store;
#[cfg(test)]
mod tests;

pub use test_store::{Checked, TestStore};
