//! Jobs that share the daily quota of an upstream API: `cargo run --example jobs`
//!
//! The API grants 9 500 units per day. A search costs 100 units, a page of results 1 unit. With a Redis, the
//! jobs of all machines share the quota: `TOLLGATE_STORE=redis://127.0.0.1:6379 cargo run --example jobs`
//!
//! The jobs survive an outage: start them before Redis, or restart Redis meanwhile.

#[path = "support/store.rs"]
mod store;

use std::error::Error;
use std::time::Duration;

use tollgate::{Quota, RateLimiter};

const SEARCH: u32 = 100;
const PAGE: u32 = 1;
const PAGES: u32 = 7;

/// The longest time that a job waits for units, or for Redis. If the next units are further away, the jobs stop at
/// once, to run again another day.
const MAX_WAIT: Duration = Duration::from_secs(600);

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let store = store::open(|redis| redis.prefix("jobs"))?;
    let api = RateLimiter::new(store, Quota::per_day(9_500))
        .name("video-api")
        .wait_through_outages(true);

    let mut searches = 0;
    while job(&api).await? {
        searches += 1;
    }
    let usage = api.peek("key1").await?;
    println!(
        "{searches} searches done, {} units used, {} left",
        usage.used(),
        usage.remaining()
    );
    Ok(())
}

/// Runs one search and reads its pages of results. Returns false if the quota is exhausted.
async fn job(api: &RateLimiter) -> Result<bool, tollgate::Error> {
    if !take(api, SEARCH).await? {
        return Ok(false);
    }
    for _ in 0..PAGES {
        if !take(api, PAGE).await? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Takes units from the quota, and waits for them if the wait is short.
async fn take(api: &RateLimiter, cost: u32) -> Result<bool, tollgate::Error> {
    let decision = api.until_ready("key1", cost, MAX_WAIT).await?;
    if !decision.is_allowed() {
        let wait = decision.retry_after().unwrap_or(Duration::MAX);
        let (left, seconds) = (decision.remaining(), wait.as_secs());
        println!("{cost} units are not available: {left} left, retry in {seconds} s");
    }
    Ok(decision.is_allowed())
}
