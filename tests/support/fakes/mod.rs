//! Stores that tests control. Take the first one that can do what the test needs:
//!
//! | store | what the test chooses |
//! |---|---|
//! | `tollgate::store::TestStore` | checks that are refused, fail or hang; the time; it keeps the checks that it got |
//! | `fake_store::FakeStore` | what a check or a change of units does, by a closure; all that is optional is missing |
//! | `moody::Moody` | as `TestStore`, for tests of the circuit breaker: a short deadline, a refusal cache, changes that fail alone |
//!
//! A store with a protocol of its own is in the file of its tests: groups of keys in `levels/grouped.rs`, two servers in
//! `failures/recorded.rs`, a shared block list in `outbound/fresh_list.rs`, late counts of refusals in `blocks/layer.rs`.

pub(crate) mod fake_store;
#[cfg(feature = "test-util")]
pub(crate) mod moody;
