#![doc = include_str!("../README.md")]
#![deny(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing
)]

mod case;
mod leases;
mod line;
mod name;
mod slot_line;
mod slots;

pub use case::{Case, Counterexample, Report};

/// Returns the cases of all models: first the protocol as it is, in several sizes, then with one planted fault each.
#[must_use]
pub fn cases() -> Vec<Case> {
    let all = [
        slots::cases(),
        leases::cases(),
        line::cases(),
        slot_line::cases(),
    ];
    all.into_iter().flatten().collect()
}
