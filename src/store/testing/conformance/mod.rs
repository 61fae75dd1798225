//! The conformance kit: the rules that every store keeps, run against any store.

#[expect(
    clippy::module_inception,
    reason = "a room's main file is named like the room"
)]
mod conformance;
mod returned_units;
mod rules;
mod threads;

pub use conformance::{Conformance, Outcome, Report};
