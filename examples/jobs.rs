//! Jobs that share the daily quota of an upstream API: `cargo run --example jobs`
//!
//! The API grants 9 500 units a day; a search costs 100, a page of results 1. With
//! `TOLLGATE_STORE=redis://127.0.0.1:6379` all machines that run jobs share the quota.

use std::env;
use std::error::Error;
use std::time::Duration;

use tollgate::{Quota, RateLimiter, store};

const SEARCH: u32 = 100;
const PAGE: u32 = 1;
const PAGES: u32 = 7;

/// Longer than this no job waits: it ends, and is run again another day.
const PATIENCE: Duration = Duration::from_secs(5);

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let url = env::var("TOLLGATE_STORE").unwrap_or_else(|_| "memory:".into());
    let api = RateLimiter::new(store::from_url(&url)?, Quota::per_day(9_500)).name("video-api");

    let mut searches = 0;
    while job(&api).await? {
        searches += 1;
    }
    let spent = api.peek("key1").await?;
    println!(
        "{searches} searches done, {} units used, {} left",
        spent.used(),
        spent.remaining()
    );
    Ok(())
}

/// One search and the pages that it found. False when the quota is spent.
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

/// Takes units of the quota, after a short wait if need be.
async fn take(api: &RateLimiter, cost: u32) -> Result<bool, tollgate::Error> {
    loop {
        let decision = api.check_n("key1", cost).await?;
        if decision.is_allowed() {
            return Ok(true);
        }
        let wait = decision.retry_after().unwrap_or(Duration::MAX);
        if wait > PATIENCE {
            let (left, seconds) = (decision.remaining(), wait.as_secs());
            println!("{cost} units are not to be had, {left} are left, again in {seconds} s");
            return Ok(false);
        }
        tokio::time::sleep(wait).await;
    }
}
