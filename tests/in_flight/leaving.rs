//! Calls that leave at any point: in line, while they ask, between two groups. Nobody waits for them.

use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tollgate::{Acquired, MemoryStore, Quota, RateLimiter, Store};

use crate::support::redis_server::RedisServer;
use crate::support::store_on;

const USERS: u32 = 3;
const SLOTS: u32 = 4;

/// Longer than a busy machine takes.
const PATIENCE: Duration = Duration::from_secs(30);

fn user(number: u32) -> String {
    format!("user:{}", number % USERS)
}

/// Calls of one or two keys, for slots and units, until their patience ends.
async fn leave_at_any_point(limiter: RateLimiter, tenant: RateLimiter, task: u32) {
    for round in 0..40 {
        let seed = task * 7_919 + round * 104_729;
        let name = user(seed);
        let patience = match seed % 5 {
            0 => PATIENCE,
            _ => Duration::from_micros(u64::from(seed % 4_001)),
        };
        let slots = 1 + seed % 2;
        let call = async {
            let of_user = limiter.level(name.as_str());
            match seed % 3 {
                0 => drop(
                    RateLimiter::acquire_all([of_user.slots(slots)])
                        .await
                        .unwrap(),
                ),
                _ => {
                    let levels = [of_user, tenant.level("acme").slots(slots)];
                    let permit = RateLimiter::acquire_all(levels).await.unwrap();
                    sleep(Duration::from_micros(200)).await;
                    drop(permit);
                }
            }
        };
        let _ = timeout(patience, call).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_that_leave_at_any_point_keep_nobody_waiting() {
    let server = RedisServer::start();
    let stores: [Arc<dyn Store>; 3] = [
        Arc::new(MemoryStore::new()),
        Arc::new(store_on(&server).prefix("one")),
        // The keys are groups of their own.
        Arc::new(store_on(&server).prefix("groups").by_slot()),
    ];
    for store in stores {
        let quotas = [Quota::in_flight(SLOTS), Quota::per_second(2_000)];
        let limiter = RateLimiter::new(Arc::clone(&store), quotas).name("user");
        let tenant = RateLimiter::new(store, Quota::in_flight(SLOTS)).name("tenant");
        let mut tasks = JoinSet::new();
        for task in 0..16 {
            tasks.spawn(leave_at_any_point(limiter.clone(), tenant.clone(), task));
        }
        while let Some(ended) = timeout(PATIENCE, tasks.join_next()).await.expect("an end") {
            ended.unwrap();
        }
        // Slots that calls got and did not take are given back. Then all are free: also for those who do not wait.
        let keys = (0..USERS).map(user).map(|name| (&limiter, name));
        for (limiter, key) in keys.chain([(&tenant, "acme".to_owned())]) {
            let all = async {
                let take =
                    || RateLimiter::try_acquire_all([limiter.level(key.as_str()).slots(SLOTS)]);
                while let Acquired::Refused(_) = take().await.unwrap() {
                    sleep(Duration::from_millis(5)).await;
                }
            };
            let free = timeout(Duration::from_secs(5), all).await;
            assert!(free.is_ok(), "the slots of {key} are not free: {limiter:?}");
        }
    }
}
