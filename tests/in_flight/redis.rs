//! Permits on Redis: over several processes, and while it fails.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use tollgate::{Acquired, FailurePolicy, Permit, Quota, RateLimiter, RedisStore};

use crate::support::node::Node;
use crate::support::redis_server::{RedisServer, run};

/// A limiter with a table of permits of its own, as another process has.
fn process(url: &str, quota: Quota) -> RateLimiter {
    let store = RedisStore::open(url)
        .unwrap()
        .deadline(Duration::from_secs(5));
    RateLimiter::new(store, quota)
}

async fn taken(limiter: &RateLimiter) -> Option<Permit> {
    match limiter.try_acquire("ada").await.unwrap() {
        Acquired::Permit(permit) => Some(permit),
        Acquired::Refused(_) => None,
    }
}

async fn used(limiter: &RateLimiter) -> u32 {
    limiter.peek("ada").await.unwrap().used()
}

/// Waits until as many slots are used, also while the server starts.
async fn until_used(limiter: &RateLimiter, expected: u32, patience: Duration) -> Duration {
    let began = Instant::now();
    loop {
        let used = limiter.peek("ada").await.map(|decision| decision.used());
        if used.as_ref().is_ok_and(|used| *used == expected) {
            return began.elapsed();
        }
        assert!(began.elapsed() < patience, "{used:?}, expected {expected}");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

#[tokio::test]
async fn processes_share_the_slots_of_a_key() {
    let server = RedisServer::start();
    let [one, other] = [(); 2].map(|()| process(&server.url(), Quota::in_flight(2)));
    let first = taken(&one).await.unwrap();
    let second = taken(&other).await.unwrap();
    assert!(taken(&one).await.is_none() && taken(&other).await.is_none());
    first.release().await.unwrap();
    assert_eq!(used(&other).await, 1);
    let third = taken(&other).await.unwrap();
    drop((second, third));
    let took = until_used(&one, 0, Duration::from_secs(2)).await;
    println!("known after {took:?}");
}

#[tokio::test]
async fn an_operator_sees_which_processes_hold_the_slots_of_a_key() {
    let server = RedisServer::start();
    let lease = Duration::from_secs(60);
    let quota = Quota::in_flight(5);
    let one = process(&server.url(), quota.clone());
    let other = process(&server.url(), quota.slot_lease(lease));
    let _first = taken(&one).await.unwrap();
    let _rest = [taken(&other).await.unwrap(), taken(&other).await.unwrap()];
    let [seen, seen_by_other] = [
        one.admin().peek("ada").await.unwrap(),
        other.admin().peek("ada").await.unwrap(),
    ];
    let slots = seen.holders.iter().map(|holding| holding.held);
    assert_eq!(slots.collect::<Vec<_>>(), [2, 1]);
    let holders: Vec<_> = seen.holders.iter().map(|of| Some(of.holder)).collect();
    assert_eq!(holders, [seen_by_other.own_holder, seen.own_holder]);
    let [of_other, own] = [seen.holders[0].lease, seen.holders[1].lease];
    assert!(of_other > lease / 2 && of_other <= lease, "{of_other:?}");
    assert!(own > Duration::from_secs(5) && own <= Duration::from_secs(15));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn processes_never_hold_more_than_the_limit_and_nothing_is_left() {
    const LIMIT: u32 = 5;
    let server = RedisServer::start();
    let running = Arc::new(AtomicU32::new(0));
    let most = Arc::new(AtomicU32::new(0));
    let processes: Vec<_> = (0..3)
        .map(|_| process(&server.url(), Quota::in_flight(LIMIT)))
        .collect();
    let mut tasks = Vec::new();
    for (number, limiter) in processes.iter().enumerate() {
        for task in 0..8_u64 {
            let (limiter, running, most) =
                (limiter.clone(), Arc::clone(&running), Arc::clone(&most));
            tasks.push(tokio::spawn(async move {
                let mut acquired = 0;
                for round in 0..60_u64 {
                    // Some are cancelled.
                    let wait = Duration::from_micros(
                        500 + (task * 997 + round * 613 + number as u64 * 71) % 9_000,
                    );
                    let Ok(permit) = tokio::time::timeout(wait, limiter.acquire("ada")).await
                    else {
                        continue;
                    };
                    let permit = permit.unwrap();
                    let now = running.fetch_add(1, Ordering::SeqCst) + 1;
                    most.fetch_max(now, Ordering::SeqCst);
                    tokio::time::sleep(Duration::from_micros(300)).await;
                    running.fetch_sub(1, Ordering::SeqCst);
                    acquired += 1;
                    drop(permit);
                }
                acquired
            }));
        }
    }
    let mut acquired = 0;
    for task in tasks {
        acquired += task.await.unwrap();
    }
    let most = most.load(Ordering::SeqCst);
    let left = until_used(&processes[0], 0, Duration::from_secs(2)).await;
    println!("{acquired} permits, at most {most} at the same time, nothing left after {left:?}");
    assert!(
        acquired > 200 && most <= LIMIT,
        "{acquired} permits, {most} at the same time"
    );
}

#[tokio::test]
async fn the_slots_of_a_process_that_is_gone_return_within_one_lease() {
    let server = RedisServer::start();
    let quota = Quota::in_flight(1).slot_lease(Duration::from_secs(5));
    // Its runtime ends without a word, as a process that is killed does.
    let killed = std::thread::spawn({
        let (url, quota) = (server.url(), quota.clone());
        move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .unwrap();
            let permit = runtime.block_on(async { taken(&process(&url, quota)).await.unwrap() });
            drop(runtime);
            std::mem::forget(permit);
        }
    });
    killed.join().unwrap();
    let other = process(&server.url(), quota);
    let began = Instant::now();
    assert!(taken(&other).await.is_none());
    let permit = other.acquire("ada").await.unwrap();
    let took = began.elapsed();
    println!("free after {took:?}");
    assert!(took < Duration::from_millis(5_200), "{took:?}");
    drop(permit);
}

#[tokio::test]
async fn a_permit_is_renewed_while_it_is_held() {
    let server = RedisServer::start();
    let quota = Quota::in_flight(1).slot_lease(Duration::from_secs(5));
    let [one, other] = [(); 2].map(|()| process(&server.url(), quota.clone()));
    let permit = taken(&one).await.unwrap();
    let lost = tokio::time::timeout(Duration::from_secs(7), permit.lost()).await;
    assert!(lost.is_err(), "the permit is lost");
    assert!(taken(&other).await.is_none());
}

#[tokio::test]
async fn slots_that_the_server_has_forgotten_are_stated_again() {
    let server = RedisServer::start();
    let limiter = process(&server.url(), Quota::in_flight(100));
    let mut permits = Vec::new();
    for _ in 0..30 {
        permits.push(taken(&limiter).await.unwrap());
    }
    run(&mut server.connect(), &["FLUSHALL"]);
    // Another key tells that data was lost.
    let other = limiter.try_acquire("bob").await.unwrap();
    drop(other);
    let next = taken(&limiter).await.unwrap();
    let took = until_used(&limiter, 31, Duration::from_secs(1)).await;
    println!("known after {took:?}");
    drop((next, permits));
    until_used(&limiter, 0, Duration::from_secs(1)).await;
}

#[tokio::test]
async fn permits_given_while_redis_is_away_count_when_it_is_back() {
    let mut node = Node::start(&["--appendonly", "yes"]);
    let quota = Quota::in_flight(4).slot_lease(Duration::from_secs(5));
    let store = RedisStore::open(&node.url()).unwrap();
    let limiter = RateLimiter::new(store, quota.clone()).on_failure(FailurePolicy::fall_back());
    let before = taken(&limiter).await.unwrap();
    node.kill();
    let mut permits = Vec::new();
    for _ in 0..3 {
        permits.push(taken(&limiter).await.expect("the table has room"));
    }
    assert!(
        taken(&limiter).await.is_none(),
        "above the limit of this process"
    );
    node.restart();
    let other = process(&node.url(), quota);
    let took = until_used(&other, 4, Duration::from_secs(4)).await;
    println!("known {took:?} after the restart");
    drop((before, permits));
    until_used(&other, 0, Duration::from_secs(4)).await;
}

#[tokio::test]
async fn a_server_that_stays_away_makes_permits_lost() {
    let mut node = Node::start(&[]);
    let quota = Quota::in_flight(1).slot_lease(Duration::from_secs(5));
    let limiter = process(&node.url(), quota);
    let permit = taken(&limiter).await.unwrap();
    node.kill();
    let began = Instant::now();
    permit.lost().await;
    let took = began.elapsed();
    println!("lost after {took:?}");
    assert!(
        took > Duration::from_millis(2_000) && took < Duration::from_millis(4_200),
        "{took:?}"
    );
    // Lost is final, though it still counts.
    node.restart();
    tokio::time::sleep(Duration::from_secs(1)).await;
    permit.lost().await;
    assert_eq!(
        until_used(&limiter, 1, Duration::from_secs(3))
            .await
            .as_secs()
            / 3,
        0
    );
    drop(permit);
    until_used(&limiter, 0, Duration::from_secs(3)).await;
}

#[test]
fn another_runtime_goes_on_when_that_of_a_message_or_of_the_timers_ends() {
    let server = RedisServer::start();
    let quota = Quota::in_flight(2).slot_lease(Duration::from_secs(5));
    let limiter = process(&server.url(), quota.clone());
    let runtime = || {
        tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap()
    };
    let [first, second] = [(); 2].map(|()| runtime());
    let one = first.block_on(taken(&limiter)).unwrap();
    let two = second.block_on(taken(&limiter)).unwrap();
    drop(first);
    second.block_on(async {
        tokio::time::sleep(Duration::from_secs(6)).await;
        let other = process(&server.url(), quota);
        assert_eq!(used(&other).await, 2, "not renewed");
        drop((one, two));
        until_used(&other, 0, Duration::from_secs(2)).await;
    });
}

#[tokio::test]
async fn who_waits_asks_every_25_ms_whatever_keys_and_callers_wait() {
    let server = RedisServer::start();
    let other = process(&server.url(), Quota::in_flight(1));
    let _held = taken(&other).await.unwrap();
    let store = RedisStore::open(&server.url()).unwrap();
    let user = RateLimiter::new(store.clone(), Quota::in_flight(2)).name("user");
    let full = RateLimiter::new(store, Quota::in_flight(1));
    let waiting: Vec<_> = (0..20)
        .map(|number| {
            let (user, full) = (user.clone(), full.clone());
            tokio::spawn(async move {
                let key = (number % 7).to_string();
                RateLimiter::acquire_all([user.on(key), full.on("ada")]).await
            })
        })
        .collect();
    let mut connection = server.connect();
    let mut calls = || {
        let info: String = redis::cmd("INFO")
            .arg("commandstats")
            .query(&mut connection)
            .unwrap();
        let line = info
            .lines()
            .find(|line| line.starts_with("cmdstat_evalsha:"));
        let calls = line.and_then(|line| line.split(['=', ',']).nth(1));
        calls.unwrap().parse::<u64>().unwrap()
    };
    tokio::time::sleep(Duration::from_millis(200)).await;
    let before = calls();
    tokio::time::sleep(Duration::from_secs(1)).await;
    let made = calls() - before;
    println!("{made} calls in a second");
    assert!((20..=160).contains(&made), "{made} calls in a second");
    for task in waiting {
        task.abort();
    }
}
