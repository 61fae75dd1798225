//! A job that does not poll its checks while it does something else.

use std::time::{Duration, Instant};

use futures_util::StreamExt;
use futures_util::stream::{self, FuturesUnordered};
use tollgate::{Quota, RateLimiter, RedisStore};

use crate::support::cluster::Cluster;
use crate::support::decided;

/// More than the lines of three nodes.
const AT_ONCE: usize = 1_000;

/// A check that waits for a line until then fails.
const DEADLINE: Duration = Duration::from_secs(2);

/// The time that the job takes for each check, in which it polls no other.
const PAUSE: Duration = Duration::from_secs(3);

fn limiter(url: &str) -> RateLimiter {
    let store = RedisStore::open(url).unwrap().deadline(DEADLINE);
    RateLimiter::new(store, Quota::per_hour(1_000_000))
}

/// Runs a job that begins many checks, and takes a while for each that is decided. Checks other keys meanwhile, and returns
/// how many checks of each failed and how many there were.
async fn checks_beside_a_slow_job(limiter: &RateLimiter) -> [(Vec<String>, usize); 2] {
    const LASTS: Duration = Duration::from_secs(7);
    let began = Instant::now();
    let job = {
        let limiter = limiter.clone();
        tokio::spawn(async move {
            let checks = stream::iter(0..).map(|number| {
                let limiter = limiter.clone();
                async move { limiter.check(format!("job:{number}")).await }
            });
            let mut checks = checks.buffer_unordered(AT_ONCE);
            let (mut failed, mut count) = (Vec::new(), 0);
            while began.elapsed() < LASTS
                && let Some(outcome) = checks.next().await
            {
                count += 1;
                failed.extend(outcome.err().map(|error| error.to_string()));
                // As a job does that writes each item somewhere. Nothing polls the other checks meanwhile.
                tokio::time::sleep(PAUSE).await;
            }
            (failed, count)
        })
    };
    let others = (0..8).map(|task| {
        let limiter = limiter.clone();
        tokio::spawn(async move {
            let (mut failed, mut count) = (Vec::new(), 0);
            while began.elapsed() < LASTS {
                count += 1;
                let outcome = limiter.check(format!("other:{task}:{count}")).await;
                failed.extend(outcome.err().map(|error| error.to_string()));
                tokio::time::sleep(Duration::from_millis(3)).await;
            }
            (failed, count)
        })
    });
    let mut others: FuturesUnordered<_> = others.collect();
    let mut beside = (Vec::new(), 0);
    while let Some(of_task) = others.next().await {
        let (failed, count) = of_task.unwrap();
        beside.0.extend(failed);
        beside.1 += count;
    }
    [beside, job.await.unwrap()]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn checks_that_nobody_polls_hold_no_lines_of_healthy_nodes() {
    let cluster = Cluster::of_masters(3, &[]);
    let limiter = limiter(&cluster.url());
    for number in 0..20 {
        let _ = decided(&limiter, &format!("first:{number}")).await;
    }
    for (failed, count) in checks_beside_a_slow_job(&limiter).await {
        println!("{} of {count} checks failed", failed.len());
        assert!(count > 2, "{count}");
        assert_eq!(failed.first(), None, "{} of {count}", failed.len());
    }
}
