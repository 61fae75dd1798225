//! The store decides as the one in memory does, to the microsecond.

use std::time::Duration;

use proptest::prelude::RngExt;
use proptest::test_runner::{RngAlgorithm, TestRng};
use tollgate::store::TestClock;
use tollgate::{Decision, MemoryStore, Quotas, RateLimiter};

use crate::server::{Server, write_clock};

/// What a decision says, but for its source.
fn said(decision: &Decision) -> String {
    let quotas = decision.quotas().map(|quota| {
        let numbers = (quota.limit(), quota.used(), quota.remaining());
        (numbers, quota.retry_after(), quota.reset_after())
    });
    let quotas: Vec<_> = quotas.collect();
    format!(
        "{} {:?} {quotas:?}",
        decision.is_allowed(),
        decision.retry_after()
    )
}

#[tokio::test]
async fn decisions_are_those_of_the_store_in_memory() {
    let server = Server::shared();
    let store = server.store("parity").await;
    let path = server.stop_clock("parity").await;
    let clock = TestClock::new();
    write_clock(&path, clock.now_micros());
    // The cache of refusals has the clock of this process.
    let postgres = store.refusal_cache(Duration::ZERO);
    let memory = MemoryStore::with_clock(clock.clone());
    let mut random = TestRng::from_seed(RngAlgorithm::ChaCha, &[7; 32]);
    let (mut refused, mut admitted) = (0, 0);
    for (index, list) in [
        "9/second, 40/minute",
        "12/second a>=4 b<=5, 40/minute",
        "9/second sliding-buckets:7 a>=3",
        "9/second sorted-set-log, 6/second soft",
        "9/second sliding-counter, 30/minute gcra",
        "9/second fixed-window, 7/second sliding-counter soft",
        "20 total:10s, 9/second",
        "15 total:1s, 12 total:3s soft",
    ]
    .into_iter()
    .enumerate()
    {
        let quotas: Quotas = list.parse().unwrap();
        let name = format!("list {index}");
        let limiters = [
            RateLimiter::new(postgres.clone(), quotas.clone()).name(&*name),
            RateLimiter::new(memory.clone(), quotas).name(&*name),
        ];
        let mut open: Vec<[Decision; 2]> = Vec::new();
        for step in 0..150 {
            if random.random_bool(0.4) {
                let time = Duration::from_micros(random.random_range(1..400_000));
                clock.advance(time);
                write_clock(&path, clock.now_micros());
            }
            let (cost, act) = (random.random_range(0..4), random.random_range(0..20));
            if act == 0 {
                for limiter in &limiters {
                    limiter.reset("ada").await.unwrap();
                }
            } else if act == 1 {
                for limiter in &limiters {
                    limiter.admin().credit("ada", cost).await.unwrap();
                }
            } else if act < 5 && !open.is_empty() {
                let index = random.random_range(0..open.len());
                for decision in &mut open[index] {
                    let units = cost.min(decision.held());
                    decision.refund(units).await.unwrap();
                }
            }
            let share = ["a", "b", "c"][random.random_range(0..3_usize)];
            let mut decisions = Vec::new();
            for limiter in &limiters {
                let on = limiter.level("ada").cost(cost).share(share);
                decisions.push(RateLimiter::check_all([on]).await.unwrap());
            }
            let [postgres, memory] = <[Decision; 2]>::try_from(decisions).unwrap();
            assert_eq!(said(&postgres), said(&memory), "{list}, step {step}");
            if postgres.is_allowed() {
                admitted += 1;
                open.push([postgres, memory]);
            } else {
                refused += 1;
            }
        }
    }
    println!("{admitted} admitted, {refused} refused");
    assert!(admitted > 200 && refused > 100, "{admitted} {refused}");
}
