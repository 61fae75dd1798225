//! Two figures that others have published, beside ours: shedding by priority, and local decisions. Prints tables;
//! `../README.md` has the sources and says how it is measured.
#![expect(
    clippy::float_arithmetic,
    clippy::cast_precision_loss,
    reason = "what is measured is shown to three digits"
)]

mod leases;
mod priority;
mod traffic;

#[expect(dead_code, reason = "a limit is judged by a part of it")]
#[path = "../../tests/support/spans.rs"]
mod spans;
#[path = "../support/mod.rs"]
mod support;

use std::time::Duration;

use tollgate::RedisStore;

use support::args::{Args, Usage};

#[tokio::main(worker_threads = 2)]
async fn main() -> Result<(), lexopt::Error> {
    let args = Args::parse(Usage {
        parts: &["priority", "leases"],
        option: None,
        rounds: 3,
        span: Duration::from_secs(2),
    })?;
    if args.has("priority") {
        priority::print(&args).await;
    }
    if args.has("leases") {
        leases::print(&args).await;
    }
    Ok(())
}

/// Opens a store as a process of its own would: with a connection of its own.
pub(crate) fn store(url: &str) -> RedisStore {
    let store = RedisStore::open(url).expect("a URL");
    // A slow machine is not what is measured.
    store.deadline(Duration::from_secs(10))
}

/// A part of a whole, in percent.
pub(crate) fn percent(part: u64, whole: u64) -> f64 {
    100.0 * part as f64 / whole.max(1) as f64
}

/// Returns by how much the most units of a window exceed the limit, in percent.
pub(crate) fn over(most: u64, limit: u32) -> f64 {
    percent(most.saturating_sub(limit.into()), limit.into())
}
