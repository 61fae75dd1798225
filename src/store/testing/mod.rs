//! Tools for tests: a store that refuses, fails or hangs on demand.

mod test_store;
#[cfg(test)]
mod tests;

pub use test_store::{ReceivedCheck, TestStore};
