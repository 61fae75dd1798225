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

use tokio::runtime::{Builder, Runtime};
use tollgate::RedisStore;

use support::args::{Args, Usage};

/// The option of another process, whose callers wait at the server of the URL.
const WAITS_AT: &str = "waits-at";

fn main() -> Result<(), lexopt::Error> {
    let args = Args::parse(Usage {
        parts: &["tenant", "waiting", "cost", "holders", "renewal"],
        option: Some(WAITS_AT),
        rounds: 7,
        span: Duration::from_secs(1),
    })?;
    if let Some(url) = &args.option {
        waiting::wait_at(url, args.span);
        return Ok(());
    }
    if args.has("tenant") {
        tenant::compare(&args);
    }
    if args.has("waiting") {
        waiting::compare(&args);
    }
    if args.has("cost") {
        cost::compare(&args);
    }
    if args.has("holders") {
        cost::compare_holders(&args);
    }
    if args.has("renewal") {
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
