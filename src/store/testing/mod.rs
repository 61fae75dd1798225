//! A store for the tests of services: it refuses and fails on request.

mod test_store;
#[cfg(test)]
mod tests;

pub use test_store::{Checked, TestStore};
