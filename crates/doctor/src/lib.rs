#![doc = include_str!("../README.md")]
#![cfg_attr(
    not(test),
    deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::panic,
        clippy::indexing_slicing,
        clippy::print_stdout,
        clippy::print_stderr
    )
)]

mod capacity;
mod coverage;
mod durability;
mod examination;
mod info;
mod memory;
mod permissions;
mod remedies;
mod report;
mod scratch_key;
mod script_clock;
mod script_trial;
mod server;
mod session;
mod timing;

pub use examination::{examine, examine_url};
pub use report::{Finding, Report, Severity};
