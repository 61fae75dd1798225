//! Two processes that admit a busy key from memory and share one limit: `cargo run --example lease`
//!
//! It needs a Redis, by default at `redis://127.0.0.1:6379`. `TOLLGATE_STORE` sets another URL. Two stores stand
//! for the two processes. Eight tasks of each check the same key for a second: without a lease, with a lease, and
//! with a lease far above the limit.

use std::env;
use std::error::Error;
use std::time::{Duration, Instant};

use tokio::task::JoinSet;
use tollgate::{Algorithm, Quota, RateLimiter, RedisStore, Source};

type BoxError = Box<dyn Error + Send + Sync>;

const KEY: &str = "everyone";
const WINDOW: Duration = Duration::from_secs(10);
const LEASE: Duration = Duration::from_millis(500);
const TASKS: u32 = 8;

/// Shorter than the window, so all admissions of a run count against one limit.
const RUN: Duration = Duration::from_secs(1);

#[tokio::main]
async fn main() -> Result<(), BoxError> {
    let url = env::var("TOLLGATE_STORE").unwrap_or_else(|_| "redis://127.0.0.1:6379".into());
    println!(
        "{:<22}{:>13}{:>16}  {:<22} of them from memory",
        "", "decisions/s", "calls/decision", "admitted by both"
    );
    for (title, limit, lease) in [
        ("without a lease", 2_000_000, Duration::ZERO),
        ("with a lease", 2_000_000, LEASE),
        ("far above the limit", 5_000, LEASE),
    ] {
        let quota = Quota::new(limit, WINDOW).with_algorithm(Algorithm::SlidingBuckets(60));
        let processes = [
            process(&url, title, &quota, lease)?,
            process(&url, title, &quota, lease)?,
        ];
        processes[0].admin().reset(KEY).await?;

        let calls_before = calls(&url)?;
        let seen = check_for_a_second(&processes).await?;
        let calls = calls(&url)?.saturating_sub(calls_before);
        let per_decision = format!("0.{:04}", (calls * 10_000 / seen.decisions).min(9_999));
        let admitted = format!("{} of {limit}", seen.admitted);
        let from_memory = seen.from_memory * 100 / seen.admitted.max(1);
        println!(
            "{title:<22}{:>13}{per_decision:>16}  {admitted:<22} {from_memory:>3} %",
            seen.decisions
        );
        assert!(seen.admitted <= limit.into(), "more than the limit");

        // As at the end of a graceful shutdown: the other process can use what this one did not.
        for process in processes {
            process.release().await?;
        }
    }
    Ok(())
}

/// Creates the limiter of one process, with connections of its own.
fn process(url: &str, name: &str, quota: &Quota, lease: Duration) -> Result<RateLimiter, BoxError> {
    let store = RedisStore::open(url)?
        .prefix("lease")
        .deadline(Duration::from_secs(1));
    let limiter = RateLimiter::new(store, quota.clone()).name(name);
    Ok(limiter.lease(lease))
}

/// The decisions of a run.
#[derive(Default)]
struct Seen {
    decisions: u64,
    admitted: u64,
    from_memory: u64,
}

async fn check_for_a_second(processes: &[RateLimiter]) -> Result<Seen, BoxError> {
    let end = Instant::now() + RUN;
    let mut tasks = JoinSet::new();
    for process in processes {
        for _ in 0..TASKS {
            tasks.spawn(check_until(process.clone(), end));
        }
    }
    let mut all = Seen::default();
    while let Some(seen) = tasks.join_next().await {
        let seen = seen??;
        all.decisions += seen.decisions;
        all.admitted += seen.admitted;
        all.from_memory += seen.from_memory;
    }
    Ok(all)
}

async fn check_until(limiter: RateLimiter, end: Instant) -> Result<Seen, tollgate::Error> {
    let mut seen = Seen::default();
    while Instant::now() < end {
        let decision = limiter.check(KEY).await?;
        seen.decisions += 1;
        seen.admitted += u64::from(decision.is_allowed());
        seen.from_memory += u64::from(decision.source() == Source::Lease);
        // A decision from memory does not wait, and a task that never waits stops all others of its thread.
        tokio::task::yield_now().await;
    }
    Ok(seen)
}

/// Returns how many scripts this Redis has run.
fn calls(url: &str) -> Result<u64, BoxError> {
    let mut connection = redis::Client::open(url)?.get_connection()?;
    let stats: String = redis::cmd("INFO")
        .arg("commandstats")
        .query(&mut connection)?;
    let calls = stats.lines().find_map(|line| {
        let (calls, _) = line
            .strip_prefix("cmdstat_evalsha:calls=")?
            .split_once(',')?;
        calls.parse().ok()
    });
    Ok(calls.unwrap_or(0))
}
