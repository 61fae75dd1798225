//! Many callers that compete for few rows, as several processes do: each store has a pool and a queue of its own.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tollgate::store::Store;
use tollgate::store::protocol::{Adjust, Check, StoreFuture, StoreId, StoreParts};
use tollgate::{Algorithm, Quota, RateLimiter};
use tollgate_postgres::PostgresStore;

use crate::algorithms::promised;
use crate::server::Server;
use crate::several_processes::keep_every_level;
use adversary::{Traffic, is_kept};
use runtime::Runtime;

#[path = "../../../../tests/checks/contention/adversary.rs"]
mod adversary;
#[path = "../../../../tests/checks/contention/runtime.rs"]
mod runtime;

/// Four stores on one table. Each clone is the next of them.
struct Four {
    stores: Arc<Vec<PostgresStore>>,
    clones: Arc<AtomicUsize>,
    own: usize,
}

impl Four {
    async fn new(server: &Server, schema: &str) -> Self {
        let mut stores = Vec::new();
        for _ in 0..4 {
            stores.push(server.store(schema).await);
        }
        Self {
            stores: Arc::new(stores),
            clones: Arc::default(),
            own: 0,
        }
    }

    fn own(&self) -> &PostgresStore {
        &self.stores[self.own]
    }
}

impl Clone for Four {
    fn clone(&self) -> Self {
        Self {
            stores: Arc::clone(&self.stores),
            clones: Arc::clone(&self.clones),
            own: self.clones.fetch_add(1, Ordering::Relaxed) % self.stores.len(),
        }
    }
}

impl Store for Four {
    fn id(&self) -> StoreId {
        self.own().id()
    }

    fn check(&self, checks: &[Check<'_>]) -> StoreFuture {
        self.own().check(checks)
    }

    fn adjust(&self, adjust: Adjust<'_>) -> StoreFuture<()> {
        self.own().adjust(adjust)
    }

    fn refresh_blocks(&self, timeout: Duration) -> StoreFuture<()> {
        self.own().refresh_blocks(timeout)
    }

    fn parts(&self) -> StoreParts {
        self.own().parts()
    }
}

const TRAFFIC: [Traffic; 2] = [
    Traffic {
        threads: 12,
        limits: &[60],
        window: Duration::from_millis(200),
        duration: Duration::from_millis(1_000),
        work: Duration::ZERO,
        rest: Duration::ZERO,
        refunds: true,
    },
    Traffic {
        threads: 8,
        limits: &[60, 10],
        window: Duration::from_millis(300),
        duration: Duration::from_millis(1_200),
        work: Duration::from_micros(20),
        rest: Duration::from_millis(90),
        refunds: false,
    },
];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_span_holds_more_than_the_promise() {
    let server = Server::shared();
    for (number, algorithm) in Algorithm::ALL.iter().enumerate() {
        for (index, traffic) in TRAFFIC.iter().enumerate() {
            let stores = Four::new(&server, &format!("adversary_{number}_{index}")).await;
            let run = move || traffic.run(*algorithm, &stores, Runtime::new);
            let outcome = tokio::task::spawn_blocking(run).await.unwrap();
            is_kept(*algorithm, traffic, &outcome).unwrap();
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_twenty_checks_of_the_last_unit_one_is_admitted() {
    let server = Server::shared();
    let stores = Four::new(&server, "last_unit").await;
    let limiters: Vec<_> = (0..4)
        .map(|_| RateLimiter::new(stores.clone(), Quota::per_day(2)))
        .collect();
    for round in 0..1_000 {
        let key = format!("{round}");
        assert!(limiters[round % 4].check(&*key).await.unwrap().is_allowed());
        let checks = (0..20).map(|number| {
            let (limiter, key) = (limiters[number % 4].clone(), key.clone());
            tokio::spawn(async move { limiter.check(key).await.unwrap().is_allowed() })
        });
        let mut admitted = 0;
        for check in checks.collect::<Vec<_>>() {
            admitted += u32::from(check.await.unwrap());
        }
        assert_eq!(admitted, 1, "in round {round}");
    }
}

/// The keys of a check are named in any order, and the rows of a batch too.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn checks_of_several_keys_neither_deadlock_nor_charge_a_part() {
    let server = Server::shared();
    let stores = Four::new(&server, "several_keys").await.stores;
    keep_every_level([0, 1, 2].map(|store| stores[store].clone())).await;
}
