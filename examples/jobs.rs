//! Jobs in eight regions that share the daily quota of an upstream API: `cargo run --example jobs`
//!
//! The upstream grants 10 000 units a day to one API key. A search costs 100 units, a page of results 1 unit. With a
//! Redis, the jobs of all machines share the quota: `TOLLGATE_STORE=redis://127.0.0.1:6379 cargo run --example jobs`
//!
//! The jobs survive an outage: start them before Redis, or restart Redis meanwhile.

#[path = "support/store.rs"]
mod store;

use std::error::Error;
use std::time::Duration;

use tokio::task::JoinSet;
use tollgate::{DecisionView, FailurePolicy, Quota, RateLimiter, Store};

/// The API key at the upstream. All regions use it, so they share its count.
const API_KEY: &str = "key1";

/// 500 units below what the upstream grants. The margin covers a day that the upstream begins at another hour, pages
/// that pass uncounted while Redis is down, and other users of the API key.
const UNITS_A_DAY: u32 = 9_500;

/// Searches stop here, so that they leave units for pages.
const SEARCHES_A_DAY: u32 = 80;

const SEARCH: u32 = 100;
const PAGES: u32 = 7;
const REGIONS: u32 = 8;

/// The longest time that a job waits for units, or for Redis. If the next units are further away, the jobs stop at
/// once, to run again another day.
const MAX_WAIT: Duration = Duration::from_secs(600);

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let upstream = Upstream::new(store::open(|redis| redis.prefix("jobs"))?);
    let mut regions = JoinSet::new();
    for _ in 0..REGIONS {
        regions.spawn(region(upstream.clone()));
    }
    let mut searches = 0;
    while let Some(region) = regions.join_next().await {
        searches += region??;
    }
    let usage = upstream.reads.peek(API_KEY).await?;
    println!(
        "{searches} searches in {REGIONS} regions, {} units used, {} left",
        usage.used(),
        usage.remaining()
    );
    Ok(())
}

/// Searches until the quota is used up, and returns the number of searches.
async fn region(upstream: Upstream) -> Result<u32, tollgate::Error> {
    let mut searches = 0;
    while upstream.search().await? {
        searches += 1;
        for _ in 0..PAGES {
            if !upstream.page().await? {
                return Ok(searches);
            }
        }
    }
    Ok(searches)
}

/// The limits of the upstream.
#[derive(Clone)]
struct Upstream {
    /// The units of the day. Admits while Redis is down: a page costs one unit, and a few too many do no harm.
    reads: RateLimiter,
    /// The same units: same store, name and quota. Waits while Redis is down: a search costs a hundred units.
    expensive: RateLimiter,
    /// A narrower limit, in the same check as the units.
    searches: RateLimiter,
}

impl Upstream {
    fn new(store: impl Store + Clone) -> Self {
        let units = RateLimiter::new(store.clone(), Quota::per_day(UNITS_A_DAY)).name("units");
        let searches = RateLimiter::new(store, Quota::per_day(SEARCHES_A_DAY)).name("searches");
        let closed = |limiter: RateLimiter| {
            let limiter = limiter.on_failure(FailurePolicy::closed());
            limiter.wait_through_outages()
        };
        Self {
            reads: units.clone().on_failure(FailurePolicy::open()),
            expensive: closed(units),
            searches: closed(searches),
        }
    }

    /// Takes the units of a search, and waits for them if the wait is short. Both levels are charged, or none.
    async fn search(&self) -> Result<bool, tollgate::Error> {
        let levels = [
            self.expensive.level(API_KEY).cost(SEARCH),
            self.searches.level(API_KEY),
        ];
        let decision = RateLimiter::until_all_ready(levels, MAX_WAIT).await?;
        Ok(told(&decision))
    }

    async fn page(&self) -> Result<bool, tollgate::Error> {
        let decision = self.reads.until_ready(API_KEY, 1, MAX_WAIT).await?;
        Ok(told(&decision))
    }
}

/// Prints a refusal, and returns whether the units were admitted.
fn told(decision: &DecisionView) -> bool {
    if !decision.is_allowed() {
        let refusing = decision
            .levels()
            .find(|level| level.is_asked() && !level.is_allowed());
        let limiter = refusing.map_or("units", |level| level.limiter());
        let wait = decision.retry_after().unwrap_or(Duration::MAX);
        println!("no {limiter} left, retry in {} s", wait.as_secs());
    }
    decision.is_allowed()
}
