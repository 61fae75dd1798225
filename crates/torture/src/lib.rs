#![doc = include_str!("../README.md")]
#![cfg_attr(
    not(test),
    deny(
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::panic,
        clippy::indexing_slicing
    )
)]

mod arena;
mod attacks;
mod case;
mod contestant;
mod entry;
mod external;
mod history;
mod lock;
mod oracle;
mod program;
mod proxy;
mod random;
mod results;
mod serve;
mod server;
mod tollgate;

pub use contestant::{Bound, Contestant, Description, Failure, Offer, Reply, Setup, Verdict};
pub use entry::Entry;
pub use program::main;
pub use tollgate::contestants;
