//! Calls that wait for several keys: each stands where it lacks room, and none starves.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use tokio::join;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{sleep, timeout};
use tollgate::store::TestStore;
use tollgate::{
    Acquired, Error, ErrorKind, FailurePolicy, Key, MemoryStore, Permit, Quota, RateLimiter,
    RedisStore, Source, Store,
};

use crate::support::node::Node;
use crate::support::redis_server::RedisServer;
use crate::support::store_on;

const MILLI: Duration = Duration::from_millis(1);

/// Longer than a busy machine takes.
const PATIENCE: Duration = Duration::from_secs(30);

/// Longer than any call waits for a unit an hour.
const FOREVER: Duration = Duration::from_secs(100 * 3_600);

/// In memory, and in Redis.
fn stores(server: &RedisServer) -> [Arc<dyn Store>; 2] {
    let redis = store_on(server).deadline(PATIENCE);
    [Arc::new(MemoryStore::new()), Arc::new(redis)]
}

/// Acquires a slot of each limiter in a task.
fn acquire_later(limiters: &[&RateLimiter]) -> JoinHandle<Result<Permit, Error>> {
    let limiters: Vec<_> = limiters.iter().map(|limiter| (*limiter).clone()).collect();
    tokio::spawn(async move {
        RateLimiter::acquire_all(limiters.iter().map(|limiter| limiter.level("k"))).await
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
    let further = limiter.clone().queue(1);
    let mut taken = 0;
    for _ in 0..40 {
        let held = limiter.acquire("k").await.unwrap();
        assert_eq!(held.decision().source(), Source::Fallback);
        let waiting = acquire_later(&[limiter]);
        // Until it stands in line: then a further call finds the queue full, and does not wait.
        while timeout(5 * MILLI, further.acquire("k")).await.is_err() {}
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

/// The call for both keys stands at `free` first, and before all others.
#[tokio::test]
async fn a_call_that_lacks_one_key_holds_up_nobody_at_its_other_key() {
    let server = RedisServer::start();
    for store in stores(&server) {
        for order in [[0, 1], [1, 0]] {
            let limiter = |name: &str| {
                let limiter = RateLimiter::new(Arc::clone(&store), Quota::in_flight(1));
                limiter.name(format!("{name}{order:?}")).max_wait(FOREVER)
            };
            let (free, taken) = (limiter("free"), limiter("taken"));
            let held = free.acquire("k").await.unwrap();
            let kept = taken.acquire("k").await.unwrap();
            let both = order.map(|index| [&free, &taken][index]);
            let waiting = acquire_later(&both);
            sleep(50 * MILLI).await;
            let behind = acquire_later(&[&free]);
            sleep(50 * MILLI).await;
            drop(held);
            drop(granted(behind, "one behind a call for both keys").await);
            // Also after the second for which the call for both keys lets others pass in any case.
            sleep(1_500 * MILLI).await;
            for _ in 0..3 {
                drop(granted(acquire_later(&[&free]), "one after a second").await);
            }
            assert!(!waiting.is_finished());
            drop(kept);
            drop(granted(waiting, "the call for both keys").await);
        }
    }
}

/// Lets four callers ask for a key again and again until they are aborted.
fn stream(limiter: &RateLimiter, calls: &mut JoinSet<()>) {
    for _ in 0..4 {
        let limiter = limiter.clone();
        calls.spawn(async move {
            loop {
                let permit = limiter.acquire("k").await.unwrap();
                sleep(7 * MILLI).await;
                drop(permit);
            }
        });
    }
}

/// Each of its keys has room again and again, but never both in the same moment if others take it.
#[tokio::test]
async fn a_call_for_two_keys_does_not_starve_beside_calls_for_each_of_them() {
    let server = RedisServer::start();
    let rate = || Quota::new(1, 20 * MILLI);
    let kinds = [
        [Quota::in_flight(1), Quota::in_flight(1)],
        [rate(), rate()],
        [rate(), Quota::in_flight(1)],
    ];
    for store in stores(&server) {
        for (kind, quotas) in kinds.iter().enumerate() {
            let limiters = [0, 1].map(|index| {
                let limiter = RateLimiter::new(Arc::clone(&store), quotas[index].clone());
                limiter.name(format!("{kind}{index}")).max_wait(FOREVER)
            });
            let mut calls = JoinSet::new();
            limiters
                .iter()
                .for_each(|limiter| stream(limiter, &mut calls));
            for turn in 0..3 {
                sleep(20 * MILLI).await;
                let both = acquire_later(&limiters.each_ref());
                let of = format!("call {turn} for both keys of kind {kind}");
                drop(granted(both, &of).await);
            }
            calls.abort_all();
        }
    }
}

/// Whenever one of its keys has room, a call for that key alone has just taken the other one.
#[tokio::test]
async fn a_call_whose_keys_never_have_room_in_one_moment_is_served() {
    let server = RedisServer::start();
    for store in stores(&server) {
        let limiters = ["one", "other"].map(|name| {
            let limiter = RateLimiter::new(Arc::clone(&store), Quota::in_flight(1));
            limiter.name(name).max_wait(FOREVER)
        });
        let mut held = Vec::new();
        for limiter in &limiters {
            held.push(Some(limiter.acquire("k").await.unwrap()));
        }
        let both = acquire_later(&limiters.each_ref());
        sleep(50 * MILLI).await;
        let mut next = limiters.each_ref().map(|limiter| acquire_later(&[limiter]));
        let end = Instant::now() + PATIENCE / 2;
        for index in [0, 1].into_iter().cycle() {
            drop(held[index].take());
            // The next one has the slot, or it is kept for the call for both keys.
            if let Ok(permit) = timeout(100 * MILLI, &mut next[index]).await {
                held[index] = Some(permit.unwrap().unwrap());
                next[index] = acquire_later(&[&limiters[index]]);
            }
            // The next one stands in line.
            sleep(5 * MILLI).await;
            if both.is_finished() {
                break;
            }
            assert!(Instant::now() < end, "others had the slots every time");
        }
        drop(both.await.unwrap().unwrap());
    }
}

/// Lets each call of a tenant ask for a slot of the tenant and one of the level that tenants share, both by this key. Returns the
/// calls that are served in this time.
async fn served(tenant: &RateLimiter, shared: &RateLimiter, key: &str, time: Duration) -> u32 {
    let served = Arc::new(AtomicU32::new(0));
    let mut calls = JoinSet::new();
    for _ in 0..4 {
        let served = Arc::clone(&served);
        let tenant = tenant.clone();
        let shared = shared.clone();
        let key = Key::from(key);
        calls.spawn(async move {
            loop {
                let levels = [tenant.level(&key), shared.level(&key)];
                let permit = RateLimiter::acquire_all(levels).await.unwrap();
                sleep(10 * MILLI).await;
                drop(permit);
                served.fetch_add(1, Ordering::SeqCst);
            }
        });
    }
    sleep(time).await;
    calls.abort_all();
    served.load(Ordering::SeqCst)
}

/// The calls of the tenant at its limit come first, and wait for longer than calls let others pass in any case.
#[tokio::test]
async fn a_tenant_at_its_own_limit_stops_no_other_one_at_the_level_that_they_share() {
    let server = RedisServer::start();
    let redis = || -> Arc<dyn Store> { Arc::new(store_on(&server).deadline(PATIENCE)) };
    let memory: Arc<dyn Store> = Arc::new(MemoryStore::new());
    // The last two stand for two processes: each has permits and lines of its own.
    let stores = [[Arc::clone(&memory), memory], [redis(), redis()]];
    for (number, [here, there]) in stores.into_iter().enumerate() {
        for own in [Quota::in_flight(1), Quota::per_hour(1)] {
            let limiters = |store: &Arc<dyn Store>| {
                let limiter = |name: &str, quota: Quota| {
                    let limiter = RateLimiter::new(Arc::clone(store), quota);
                    limiter.name(format!("{name}{own}")).max_wait(FOREVER)
                };
                let tenant = limiter("tenant", own.clone());
                let other = limiter("other", Quota::in_flight(2));
                (tenant, other, limiter("shared", Quota::in_flight(2)))
            };
            let in_one = limiters(&here);
            let in_other = limiters(&there);
            let (tenant, _, shared) = &in_one;
            let _kept = tenant.acquire("full").await.unwrap();
            let mut waiting = JoinSet::new();
            for _ in 0..8 {
                let (tenant, shared) = (tenant.clone(), shared.clone());
                waiting.spawn(async move {
                    let levels = [tenant.level("full"), shared.level("all")];
                    RateLimiter::acquire_all(levels).await.map(drop)
                });
            }
            sleep(50 * MILLI).await;
            // Another level, where no such tenant waits, at the same time: a busy machine slows both down.
            for (process, (_, other, shared)) in [("here", &in_one), ("there", &in_other)] {
                let time = Duration::from_secs(3);
                let (beside, alone) = join!(
                    served(other, shared, "all", time),
                    served(other, shared, "calm", time)
                );
                println!("{number}, {own}, {process}: {beside} beside it, {alone} without it");
                assert!(2 * beside > alone, "{beside} calls, and {alone} without it");
            }
            assert!(waiting.try_join_next().is_none());
        }
    }
}
