//! Calls that wait for several keys: each stands where it lacks room, and none starves.

use std::time::Duration;

use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};
use tollgate::store::TestStore;
use tollgate::{
    Acquired, Error, ErrorKind, FailurePolicy, Permit, Quota, RateLimiter, RedisStore, Source,
};

use crate::support::node::Node;

const MILLI: Duration = Duration::from_millis(1);

/// Longer than a busy machine takes.
const PATIENCE: Duration = Duration::from_secs(30);

/// Acquires a slot of each limiter in a task.
fn acquire_later(limiters: &[&RateLimiter]) -> JoinHandle<Result<Permit, Error>> {
    let limiters: Vec<_> = limiters.iter().map(|limiter| (*limiter).clone()).collect();
    tokio::spawn(async move {
        RateLimiter::acquire_all(limiters.iter().map(|limiter| limiter.on("k"))).await
    })
}

/// Returns the permit that a call gets in time.
async fn granted(call: JoinHandle<Result<Permit, Error>>, of: &str) -> Permit {
    let ended = timeout(PATIENCE, call).await;
    ended.unwrap_or_else(|_| panic!("{of}")).unwrap().unwrap()
}

/// Lets a call wait for the only slot again and again, by the counts of this process. Returns how often another one that does not
/// wait takes the slot between the moment when the first one is told to ask and its next poll.
async fn slots_taken_from_those_told_to_ask(limiter: &RateLimiter) -> u32 {
    let mut taken = 0;
    for _ in 0..40 {
        let held = limiter.acquire("k").await.unwrap();
        assert_eq!(held.decision().source(), Source::Fallback);
        let waiting = acquire_later(&[limiter]);
        // Until it stands in line.
        sleep(5 * MILLI).await;
        drop(held);
        if let Acquired::Permit(_) = limiter.try_acquire("k").await.unwrap() {
            taken += 1;
        }
        drop(granted(waiting, "a call that waits").await);
    }
    taken
}

#[tokio::test]
async fn a_slot_is_for_the_call_that_was_told_to_ask_also_while_the_store_fails() {
    let store = TestStore::new();
    store.fail_all(ErrorKind::Unavailable);
    let limiter = RateLimiter::new(store, Quota::in_flight(1));
    let limiter = limiter.on_failure(FailurePolicy::fall_back());
    assert_eq!(slots_taken_from_those_told_to_ask(&limiter).await, 0);
}

#[tokio::test]
async fn a_slot_is_for_the_call_that_was_told_to_ask_also_while_redis_is_dead() {
    let mut node = Node::start(&[]);
    let store = RedisStore::open(&node.url()).unwrap();
    let limiter = RateLimiter::new(store, Quota::in_flight(1));
    let limiter = limiter.on_failure(FailurePolicy::fall_back());
    drop(limiter.acquire("k").await.unwrap());
    node.kill();
    loop {
        // Until the counts of this process decide.
        if let Ok(permit) = limiter.acquire("k").await
            && permit.decision().source() == Source::Fallback
        {
            break;
        }
    }
    assert_eq!(slots_taken_from_those_told_to_ask(&limiter).await, 0);
}
