//! Levels with slots, in several groups.

use std::time::Duration;

use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};
use tollgate::{Acquired, Error, ErrorKind, FailurePolicy, Permit, Quota, RateLimiter};

use crate::grouped::Grouped;
use crate::used;

const LEASE: Duration = Duration::from_secs(5);

fn slots(store: &Grouped, name: &str) -> RateLimiter {
    let quota = Quota::in_flight(1).slot_lease(LEASE);
    RateLimiter::new(store.clone(), quota).name(name)
}

/// Acquires both levels in a task.
fn acquire_later(limiters: [&RateLimiter; 2]) -> JoinHandle<Result<Permit, Error>> {
    let limiters = limiters.map(RateLimiter::clone);
    tokio::spawn(async move {
        RateLimiter::acquire_all(limiters.each_ref().map(|limiter| limiter.level("ada"))).await
    })
}

#[tokio::test]
async fn a_rate_is_charged_after_the_wait_for_slots_of_another_group() {
    let store = Grouped::new();
    let jobs = slots(&store, "jobs2");
    let rate = RateLimiter::new(store.clone(), Quota::per_hour(10)).name("rate1");
    let held = jobs.acquire("ada").await.unwrap();
    let waiting = acquire_later([&rate, &jobs]);
    sleep(Duration::from_millis(100)).await;
    assert_eq!(used(&rate, "ada").await, 0);
    drop(held);
    let _permit = waiting.await.unwrap().unwrap();
    assert_eq!(used(&rate, "ada").await, 1);
}

#[tokio::test]
async fn slots_that_are_lost_while_another_group_is_asked_are_no_permit() {
    let store = Grouped::new();
    let one = slots(&store, "one1");
    let quota = Quota::in_flight(1).slot_lease(LEASE * 10);
    let other = RateLimiter::new(store.clone(), quota).name("other2");
    store.hold(2);
    let waiting = acquire_later([&one, &other]);
    sleep(Duration::from_millis(100)).await;
    assert_eq!(used(&one, "ada").await, 1);
    // No renewal is answered for longer than 0.8 of a lease.
    store.hold(1);
    sleep(LEASE).await;
    store.release();
    let ended = timeout(LEASE, waiting).await.expect("an answer");
    let error = ended.unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Timeout, "{error}");
}

#[tokio::test]
async fn a_call_that_waits_for_slots_of_one_group_holds_none_of_another() {
    let store = Grouped::new();
    let [one, other] = ["one1", "other2"].map(|name| slots(&store, name));
    let held = other.acquire("ada").await.unwrap();
    let waiting = acquire_later([&one, &other]);
    sleep(Duration::from_millis(100)).await;
    // But while it is asked again.
    let until_free = async {
        while used(&one, "ada").await > 0 {
            sleep(Duration::from_millis(1)).await;
        }
    };
    timeout(LEASE, until_free).await.expect("none is held");
    drop(held);
    drop(timeout(LEASE, waiting).await.unwrap().unwrap().unwrap());
}

#[tokio::test]
async fn a_call_that_leaves_before_a_later_group_refuses_it_keeps_nobody_waiting() {
    let store = Grouped::new();
    let [one, other] = ["one1", "other2"].map(|name| slots(&store, name));
    let held = other.acquire("ada").await.unwrap();
    store.take_log();
    store.hold(2);
    let waiting = acquire_later([&one, &other]);
    let mut asked = Vec::new();
    while !asked.contains(&"check other2".to_owned()) {
        sleep(Duration::from_millis(1)).await;
        asked.extend(store.take_log());
    }
    waiting.abort();
    assert!(waiting.await.unwrap_err().is_cancelled());
    store.release();
    // The refusal has come, and what it gives back.
    while used(&one, "ada").await > 0 {
        sleep(Duration::from_millis(1)).await;
    }
    held.release().await.unwrap();
    let free = async {
        // A refusal is repeated for up to 20 ms.
        while let Acquired::Refused(_) = other.try_acquire("ada").await.unwrap() {
            sleep(Duration::from_millis(1)).await;
        }
    };
    timeout(LEASE, free).await.expect("a free slot");
}

#[tokio::test]
async fn a_call_waits_for_slots_that_several_groups_fall_back_to() {
    let store = Grouped::new();
    let [one, other] = ["one1", "other2"].map(|name| {
        let limiter = slots(&store, name).on_failure(FailurePolicy::fall_back());
        limiter.max_wait(Duration::from_secs(10))
    });
    store.lose(1);
    store.lose(2);
    let levels = || [one.level("ada"), other.level("ada")];
    let held = RateLimiter::acquire_all(levels()).await.unwrap();
    let (waited, ()) = tokio::join!(RateLimiter::acquire_all(levels()), async {
        sleep(Duration::from_millis(200)).await;
        drop(held);
    });
    assert!(waited.is_ok());
}
