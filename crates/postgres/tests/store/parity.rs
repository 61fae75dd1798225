//! The store decides as the one in memory does, to the microsecond.

use std::path::PathBuf;
use std::time::Duration;

use proptest::prelude::RngExt;
use proptest::test_runner::{RngAlgorithm, TestRng};
use tollgate::store::TestClock;
use tollgate::{Decision, MemoryStore, Quotas, RateLimiter};
use tollgate_postgres::PostgresStore;

use crate::cases::some_or_all;
use crate::server::{Server, write_clock};

/// The two stores that are compared, with one clock.
struct Stores {
    postgres: PostgresStore,
    memory: MemoryStore,
    clock: TestClock,
    /// The file of the clock of Postgres.
    path: PathBuf,
}

impl Stores {
    async fn new(server: &Server, name: &str) -> Self {
        let store = server.store(name).await;
        let path = server.stop_clock(name).await;
        let clock = TestClock::new();
        write_clock(&path, clock.now_micros());
        Self {
            // The cache of refusals has the clock of this process.
            postgres: store.refusal_cache(Duration::ZERO),
            memory: MemoryStore::with_clock(clock.clone()),
            clock,
            path,
        }
    }

    /// The limiters of both stores, that of Postgres first.
    fn limiters(&self, name: &str, quotas: &str) -> [RateLimiter; 2] {
        let quotas: Quotas = quotas.parse().unwrap();
        [
            RateLimiter::new(self.postgres.clone(), quotas.clone()).name(name),
            RateLimiter::new(self.memory.clone(), quotas).name(name),
        ]
    }

    fn advance(&self, time: Duration) {
        self.clock.advance(time);
        write_clock(&self.path, self.clock.now_micros());
    }
}

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
    let stores = Stores::new(&server, "parity").await;
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
        let limiters = stores.limiters(&format!("list {index}"), list);
        let mut open: Vec<[Decision; 2]> = Vec::new();
        for step in 0..some_or_all(150, 12_500) {
            if random.random_bool(0.4) {
                stores.advance(Duration::from_micros(random.random_range(1..400_000)));
            }
            let (cost, act) = (random.random_range(0..4), random.random_range(0..20));
            if act == 0 {
                for limiter in &limiters {
                    limiter.admin().reset("ada").await.unwrap();
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

#[tokio::test]
async fn the_alternative_that_is_charged_is_that_of_the_store_in_memory() {
    const LISTS: [&str; 4] = [
        "6/second",
        "5/second fixed-window, 20/minute",
        "9 total:60s",
        "4/second gcra",
    ];
    let server = Server::shared();
    let stores = Stores::new(&server, "alternatives").await;
    let limiters = LISTS.map(|list| stores.limiters(list, list));
    let mut random = TestRng::from_seed(RngAlgorithm::ChaCha, &[11; 32]);
    let mut chosen = [0; 9];
    for step in 0..some_or_all(300, 100_000) {
        // A new user now and then, whose total is not used up.
        let user = format!("user {}", step / 60);
        if random.random_bool(0.4) {
            stores.advance(Duration::from_micros(random.random_range(1..400_000)));
        }
        let alternatives: Vec<Vec<(usize, u32)>> = (0..random.random_range(1..=8))
            .map(|_| {
                let first = random.random_range(0..LISTS.len());
                let levels = first..random.random_range(first..LISTS.len()) + 1;
                levels
                    .map(|level| (level, random.random_range(0..4)))
                    .collect()
            })
            .collect();
        let mut decisions = Vec::new();
        for store in [0, 1] {
            let asked = alternatives.iter().map(|levels| {
                let levels = levels.iter();
                levels.map(|(level, cost)| limiters[*level][store].level(&*user).cost(*cost))
            });
            decisions.push(RateLimiter::check_first(asked).await.unwrap());
        }
        let [postgres, memory] = <[Decision; 2]>::try_from(decisions).unwrap();
        assert_eq!(postgres.alternative(), memory.alternative(), "step {step}");
        assert_eq!(said(&postgres), said(&memory), "step {step}");
        chosen[postgres.alternative().unwrap_or(8)] += 1;
        if random.random_bool(0.2) {
            let used = random.random_range(0..5);
            for decision in [postgres, memory] {
                decision.settle(used).await.unwrap();
            }
        }
    }
    println!("{chosen:?} by the first alternative, the second, and so on; the last by none");
    assert!(chosen[0] > 0 && chosen[1] > 0 && chosen[2] > 0 && chosen[8] > 0);
}
