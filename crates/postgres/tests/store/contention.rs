//! Many callers that compete for few rows, as several processes do: each store has a pool and a queue of its own.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tollgate::store::{Answers, Check, Refund, Store, StoreFuture, StoreId, StoreParts};
use tollgate::{Algorithm, Quota, RateLimiter};
use tollgate_postgres::PostgresStore;

use crate::server::Server;
use adversary::{Traffic, Wait, is_kept};

#[path = "../../../../tests/checks/contention/adversary.rs"]
mod adversary;

fn promised(algorithm: Algorithm, limit: u32) -> u64 {
    match algorithm {
        Algorithm::FixedWindow => 2 * u64::from(limit),
        Algorithm::Gcra | Algorithm::SlidingCounter => 2 * u64::from(limit) - 1,
        _ => u64::from(limit),
    }
}

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

    fn check(&self, checks: &[Check<'_>], answers: &mut Answers) -> Option<StoreFuture> {
        self.own().check(checks, answers)
    }

    fn refund(&self, refund: Refund<'_>) -> StoreFuture<()> {
        self.own().refund(refund)
    }

    fn parts(&self) -> StoreParts {
        self.own().parts()
    }
}

/// The runtime of a thread, in which it waits for what the tasks of the stores send it.
struct Runtime(tokio::runtime::Runtime);

impl Runtime {
    fn new(_: usize) -> Self {
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        Self(runtime.enable_all().build().unwrap())
    }
}

impl Wait for Runtime {
    fn wait<T>(&self, future: impl Future<Output = T>) -> T {
        self.0.block_on(future)
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
    const LIMIT: u32 = 150;
    let server = Server::shared();
    let stores = Four::new(&server, "several_keys").await;
    let tasks = (0..16_usize).map(|task| {
        let stores = stores.clone();
        tokio::spawn(async move {
            let store = stores.own().clone();
            let limiter = |name| RateLimiter::new(store.clone(), Quota::per_day(LIMIT)).name(name);
            let (users, tenants) = (limiter("users"), limiter("tenants"));
            let mut admitted = [0; 4];
            for step in 0..60 {
                let (user, tenant) = ((task + step) % 3, (task * 7 + step) % 4);
                let (on_user, on_tenant) =
                    (users.on(format!("{user}")), tenants.on(format!("{tenant}")));
                let levels = if step % 2 == 0 {
                    [on_user, on_tenant]
                } else {
                    [on_tenant, on_user]
                };
                let decision = RateLimiter::check_all(levels).await.unwrap();
                admitted[tenant] += u32::from(decision.is_allowed());
            }
            admitted
        })
    });
    let mut admitted = [0; 4];
    for task in tasks.collect::<Vec<_>>() {
        for (sum, of_task) in admitted.iter_mut().zip(task.await.unwrap()) {
            *sum += of_task;
        }
    }
    let limiter = |name| RateLimiter::new(stores.own().clone(), Quota::per_day(LIMIT)).name(name);
    let mut used = [0, 0];
    for (index, name) in ["users", "tenants"].into_iter().enumerate() {
        for key in 0..4 {
            used[index] += limiter(name).peek(format!("{key}")).await.unwrap().used();
        }
    }
    let sum = admitted.iter().sum::<u32>();
    assert_eq!(used, [sum; 2]);
    // The three users were the scarce ones.
    assert_eq!(sum, 3 * LIMIT);
}
