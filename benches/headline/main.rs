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

use lexopt::{Arg, Parser, ValueExt};
use tollgate::RedisStore;

pub(crate) struct Args {
    parts: Vec<String>,
    /// How often each row is measured.
    pub(crate) rounds: usize,
    /// How long a row is measured, after a warm-up of a quarter of it.
    pub(crate) span: Duration,
}

#[tokio::main(worker_threads = 2)]
async fn main() -> Result<(), lexopt::Error> {
    let args = Args::parse()?;
    if args.has("priority") {
        priority::print(&args).await;
    }
    if args.has("leases") {
        leases::print(&args).await;
    }
    Ok(())
}

impl Args {
    /// `[priority | leases]… [--rounds N] [--millis N]`; both parts unless one is named.
    fn parse() -> Result<Self, lexopt::Error> {
        let mut args = Self {
            parts: Vec::new(),
            rounds: 3,
            span: Duration::from_secs(2),
        };
        let mut parser = Parser::from_env();
        while let Some(arg) = parser.next()? {
            match arg {
                Arg::Long("rounds") => args.rounds = parser.value()?.parse::<usize>()?.max(1),
                Arg::Long("millis") => args.span = Duration::from_millis(parser.value()?.parse()?),
                // Cargo adds this for every bench.
                Arg::Long("bench") => {}
                Arg::Value(part) => args.parts.push(part.string()?),
                other => return Err(other.unexpected()),
            }
        }
        Ok(args)
    }

    fn has(&self, part: &str) -> bool {
        self.parts.is_empty() || self.parts.iter().any(|named| named == part)
    }
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
