//! Slots in flight: one busy key far from Redis, processes that wait for one key, and the cost in Redis beside the semaphore
//! of tutorials. Prints tables; README.md says how they are measured.
#![expect(
    clippy::float_arithmetic,
    clippy::cast_precision_loss,
    reason = "what is measured is shown to three digits"
)]

mod cost;
mod semaphore;
#[path = "../support/mod.rs"]
mod support;
mod tenant;
mod waiting;

use std::time::Duration;

use lexopt::{Arg, Parser, ValueExt};
use tokio::runtime::{Builder, Runtime};
use tollgate::RedisStore;

struct Args {
    parts: Vec<String>,
    rounds: usize,
    span: Duration,
    /// Where the callers of another process wait, which this one is.
    waits_at: Option<String>,
}

fn main() -> Result<(), lexopt::Error> {
    let mut args = Args {
        parts: Vec::new(),
        rounds: 7,
        span: Duration::from_secs(1),
        waits_at: None,
    };
    let mut parser = Parser::from_env();
    while let Some(arg) = parser.next()? {
        match arg {
            Arg::Long("rounds") => args.rounds = parser.value()?.parse::<usize>()?.max(1),
            Arg::Long("millis") => args.span = Duration::from_millis(parser.value()?.parse()?),
            Arg::Long("waits-at") => args.waits_at = Some(parser.value()?.string()?),
            // Cargo adds this for every bench.
            Arg::Long("bench") => {}
            Arg::Value(part) => args.parts.push(part.string()?),
            other => return Err(other.unexpected()),
        }
    }
    if let Some(url) = &args.waits_at {
        waiting::wait_at(url, args.span);
        return Ok(());
    }
    let has = |part: &str| args.parts.is_empty() || args.parts.iter().any(|named| named == part);
    if has("tenant") {
        tenant::compare(&args);
    }
    if has("waiting") {
        waiting::compare(&args);
    }
    if has("cost") {
        cost::compare(&args);
    }
    if has("holders") {
        cost::compare_holders(&args);
    }
    if has("renewal") {
        cost::compare_renewals(&args);
    }
    Ok(())
}

fn runtime() -> Runtime {
    let runtime = Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build();
    runtime.expect("a runtime")
}

/// Opens a store that is patient: a slow machine is not what is measured.
fn store(url: &str) -> RedisStore {
    let store = RedisStore::open(url).expect("a URL");
    store.deadline(Duration::from_secs(10))
}
