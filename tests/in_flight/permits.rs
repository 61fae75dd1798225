//! Permits in memory: what they hold, who gets them, and in which order.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use tollgate::{Acquired, Error, ErrorKind, MemoryStore, Quota, RateLimiter};

use crate::support::several_processes::used;
use crate::taken;

fn of(limit: u32) -> RateLimiter {
    RateLimiter::new(MemoryStore::new(), Quota::in_flight(limit))
}

/// Waits until the store knows that nothing is held, which takes some milliseconds on an idle machine.
async fn until_free(limiter: &RateLimiter, key: &str) {
    let wait = async {
        while used(limiter, key).await > 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    let waited = tokio::time::timeout(Duration::from_secs(1), wait).await;
    assert!(waited.is_ok(), "slots of {key} stay taken");
}

#[tokio::test]
async fn a_key_has_as_many_permits_as_its_limit_and_dropping_one_gives_it_back() {
    let limiter = of(2);
    let first = taken(&limiter, "ada").await.unwrap();
    let second = taken(&limiter, "ada").await.unwrap();
    assert!(taken(&limiter, "ada").await.is_none());
    let other = taken(&limiter, "bob").await.unwrap();
    assert_eq!(used(&limiter, "ada").await, 2);
    drop(first);
    let third = taken(&limiter, "ada").await.unwrap();
    drop((second, third, other));
    until_free(&limiter, "ada").await;
    until_free(&limiter, "bob").await;
}

#[tokio::test]
async fn a_rate_and_slots_are_charged_together_or_not_at_all() {
    let quotas = [Quota::per_hour(3), Quota::in_flight(1)];
    let limiter = RateLimiter::new(MemoryStore::new(), quotas);
    let units = async || {
        let decision = limiter.peek("ada").await.unwrap();
        decision
            .quotas()
            .map(|quota| quota.used())
            .collect::<Vec<_>>()
    };
    let permit = taken(&limiter, "ada").await.unwrap();
    assert_eq!(units().await, [1, 1]);
    // The slot is missing.
    assert!(taken(&limiter, "ada").await.is_none());
    assert_eq!(units().await, [1, 1]);
    permit.release().await.unwrap();
    assert_eq!(units().await, [1, 0]);
    for used in 2..=3 {
        taken(&limiter, "ada")
            .await
            .unwrap()
            .release()
            .await
            .unwrap();
        assert_eq!(units().await, [used, 0]);
    }
    // The unit is missing.
    assert!(taken(&limiter, "ada").await.is_none());
    assert_eq!(units().await, [3, 0]);
}

#[tokio::test]
async fn a_check_that_would_hold_nothing_is_an_error() {
    let limiter = of(1);
    let error = limiter.check("ada").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Misconfigured);
    assert!(error.to_string().contains("acquire"), "{error}");
}

#[tokio::test]
async fn more_slots_than_the_limit_are_an_error() {
    let limiter = of(2);
    let levels = [limiter.level("ada").slots(3)];
    let error: Error = RateLimiter::acquire_all(levels).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::CostExceedsLimit);
    let permit = RateLimiter::acquire_all([limiter.level("ada").slots(2)])
        .await
        .unwrap();
    assert_eq!(used(&limiter, "ada").await, 2);
    drop(permit);
}

#[tokio::test]
async fn who_waits_gets_permits_in_the_order_of_arrival() {
    let limiter = of(1);
    let permit = limiter.acquire("ada").await.unwrap();
    let (sender, mut receiver) = tokio::sync::mpsc::unbounded_channel();
    for number in 0..20 {
        let (limiter, sender) = (limiter.clone(), sender.clone());
        tokio::spawn(async move {
            let permit = limiter.acquire("ada").await.unwrap();
            sender.send(number).unwrap();
            drop(permit);
        });
        tokio::task::yield_now().await;
    }
    drop((permit, sender));
    let mut order = Vec::new();
    while let Some(number) = receiver.recv().await {
        order.push(number);
    }
    assert_eq!(order, (0..20).collect::<Vec<_>>());
}

#[tokio::test]
async fn a_wait_ends_after_its_bound_and_a_cancelled_one_takes_nothing() {
    let limiter = of(1).max_wait(Duration::from_millis(60));
    let permit = limiter.acquire("ada").await.unwrap();
    let error = limiter.acquire("ada").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::MaxWait);
    let cancelled = tokio::time::timeout(Duration::from_millis(5), limiter.acquire("ada")).await;
    assert!(cancelled.is_err());
    drop(permit);
    assert!(taken(&limiter, "ada").await.is_some());
}

#[tokio::test]
async fn a_permit_of_rates_alone_waits_for_their_units_and_holds_no_slot() {
    let limiter = RateLimiter::new(
        MemoryStore::new(),
        Quota::new(1, Duration::from_millis(400)),
    );
    let ended = tokio::time::timeout(Duration::from_secs(10), async {
        let began = Instant::now();
        let first = limiter.acquire("ada").await.unwrap();
        let impatient = limiter.clone().max_wait(Duration::from_micros(1));
        let error = impatient.acquire("ada").await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::MaxWait);
        let second = limiter.acquire("ada").await.unwrap();
        assert!(began.elapsed() >= Duration::from_millis(400));
        assert_eq!((first.decision().used(), second.decision().used()), (1, 1));
    });
    ended.await.expect("an answer");
}

#[tokio::test]
async fn a_line_is_bounded() {
    let limiter = of(1).queue(1);
    let _permit = limiter.acquire("ada").await.unwrap();
    let waiting = tokio::spawn({
        let limiter = limiter.clone();
        async move { limiter.acquire("ada").await }
    });
    tokio::task::yield_now().await;
    tokio::time::sleep(Duration::from_millis(5)).await;
    let error = limiter.acquire("ada").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::MaxWait);
    waiting.abort();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn threads_never_hold_more_than_the_limit_and_nothing_is_left() {
    let limiter = of(3);
    let running = Arc::new(AtomicU32::new(0));
    let tasks: Vec<_> = (0..16_u64)
        .map(|task| {
            let (limiter, running) = (limiter.clone(), Arc::clone(&running));
            tokio::spawn(async move {
                for round in 0..200_u64 {
                    let wait = Duration::from_micros((task * 7 + round * 13) % 400);
                    let acquired = tokio::time::timeout(wait, limiter.acquire("ada")).await;
                    let Ok(permit) = acquired else { continue };
                    let permit = permit.unwrap();
                    assert!(running.fetch_add(1, Ordering::SeqCst) < 3);
                    tokio::task::yield_now().await;
                    running.fetch_sub(1, Ordering::SeqCst);
                    drop(permit);
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    until_free(&limiter, "ada").await;
}

#[tokio::test]
async fn levels_hold_their_slots_together() {
    let store = MemoryStore::new();
    let user = RateLimiter::new(store.clone(), Quota::in_flight(2)).name("user");
    let tenant = RateLimiter::new(store, Quota::in_flight(3)).name("tenant");
    let take = async |name: &str| {
        let levels = [user.level(name), tenant.level("acme")];
        RateLimiter::try_acquire_all(levels).await.unwrap()
    };
    let mut permits = Vec::new();
    for name in ["ada", "ada", "bob"] {
        let Acquired::Permit(permit) = take(name).await else {
            panic!("{name} is refused");
        };
        permits.push(permit);
    }
    // The user has room, the tenant has none.
    assert!(matches!(take("bob").await, Acquired::Refused(_)));
    assert_eq!(used(&user, "bob").await, 1);
    drop(permits.remove(0));
    // The tenant has room, this user has none: it had two, and one is left.
    let again = take("ada").await;
    assert!(matches!(again, Acquired::Permit(_)));
    drop((again, permits));
    until_free(&tenant, "acme").await;
}

#[tokio::test]
async fn a_full_store_takes_slots_back_if_another_key_of_the_check_has_no_room() {
    let store = MemoryStore::with_max_keys(1);
    let user = RateLimiter::new(store.clone(), Quota::in_flight(3)).name("user");
    let tenant = RateLimiter::new(store, Quota::in_flight(3)).name("tenant");
    let permit = user.acquire("ada").await.unwrap();
    for _ in 0..3 {
        let levels = [user.level("ada"), tenant.level("acme")];
        let error = RateLimiter::try_acquire_all(levels).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Full);
        assert_eq!(used(&user, "ada").await, 1);
    }
    drop(permit);
}
