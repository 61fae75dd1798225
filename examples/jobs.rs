//! Jobs that share the daily quota of an upstream API: `cargo run --example jobs`
//!
//! The API grants 9 500 units per day. A search costs 100 units, a page of results 1 unit. With a Redis, the
//! jobs of all machines share the quota: `TOLLGATE_STORE=redis://127.0.0.1:6379 cargo run --example jobs`

#[path = "support/store.rs"]
mod store;

use std::error::Error;
use std::time::Duration;

use tollgate::{Quota, RateLimiter};

const SEARCH: u32 = 100;
const PAGE: u32 = 1;
const PAGES: u32 = 7;

/// The longest time that a job waits for units. After that it stops, to run again another day.
const MAX_WAIT: Duration = Duration::from_secs(5);

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let store = store::open(|redis| redis.prefix("jobs"))?;
    let api = RateLimiter::new(store, Quota::per_day(9_500)).name("video-api");

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
    loop {
        let decision = api.check_n("key1", cost).await?;
        if decision.is_allowed() {
            return Ok(true);
        }
        let wait = decision.retry_after().unwrap_or(Duration::MAX);
        if wait > MAX_WAIT {
            let (left, seconds) = (decision.remaining(), wait.as_secs());
            println!("{cost} units are not available: {left} left, retry in {seconds} s");
            return Ok(false);
        }
        tokio::time::sleep(wait).await;
    }
}
