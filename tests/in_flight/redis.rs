//! Permits on Redis: over several processes, and while it fails.

use std::time::{Duration, Instant};

use tollgate::{
    Acquired, ErrorKind, FailurePolicy, Permit, Quota, RateLimiter, RedisStore, Source,
};

use crate::support::costs;
use crate::support::node::Node;
use crate::support::process::{Process, argument, child};
use crate::support::proxy::{Proxy, Wire};
use crate::support::redis_server::{RedisServer, run};
use crate::support::several_processes::{
    SLOTS_OF_TENANT, hold_no_more_slots_than_the_limit, share_slots,
};
use crate::support::store_on;
use crate::support::stored::name_of;

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

/// Returns how many calls of the script the server has executed.
fn calls(server: &RedisServer) -> u64 {
    let calls = costs::calls(&mut server.connect());
    calls.get("evalsha").copied().unwrap_or(0)
}

/// Waits until the server has executed so many calls.
async fn until_calls(server: &RedisServer, expected: u64) {
    let began = Instant::now();
    while calls(server) < expected {
        assert!(began.elapsed() < Duration::from_secs(5), "no call came");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

#[tokio::test]
async fn processes_share_the_slots_of_a_key() {
    let server = RedisServer::start();
    share_slots([store_on(&server), store_on(&server)]).await;
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
        one.admin().status("ada").await.unwrap(),
        other.admin().status("ada").await.unwrap(),
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
    let server = RedisServer::start();
    hold_no_more_slots_than_the_limit([(); 3].map(|()| store_on(&server))).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn handles_forks_and_limiters_of_one_name_share_the_slots_and_leave_none() {
    const LIMIT: u32 = 3;
    let server = RedisServer::start();
    let store = || RedisStore::open(&server.url()).unwrap();
    let patient = Duration::from_secs(5);
    let first = store().deadline(patient);
    // The first two are one holder: their stores are clones. The others are holders of their own.
    let stores = [
        first.clone(),
        first.clone(),
        first.fork().deadline(patient),
        store().deadline(patient),
    ];
    let most = hold_no_more_slots_than_the_limit(stores.clone()).await;
    assert_eq!(most, SLOTS_OF_TENANT);
    let limiters =
        stores.map(|store| RateLimiter::new(store, Quota::in_flight(LIMIT)).name("jobs"));
    // What one of them holds is full for all others.
    for holder in &limiters {
        let levels = [holder.level("ada").slots(LIMIT)];
        let permit = RateLimiter::acquire_all(levels).await.unwrap();
        for limiter in &limiters {
            assert_eq!(used(limiter).await, LIMIT);
            assert!(taken(limiter).await.is_none());
        }
        permit.release().await.unwrap();
    }
}

/// Sends a message that is late on its way, then a newer one, and lets the first one arrive after it.
async fn deliver_late(
    server: &RedisServer,
    proxy: &Proxy,
    late: impl AsyncFnOnce(),
    newer: impl AsyncFnOnce(),
) {
    proxy.set(Wire::HoleForOld);
    late().await;
    newer().await;
    let before = calls(server);
    proxy.set(Wire::Whole);
    until_calls(server, before + 1).await;
}

/// A limiter behind a proxy, which gives a message up quickly.
async fn behind_proxy(server: &RedisServer) -> (RateLimiter, Proxy) {
    let proxy = Proxy::before(server.port()).await;
    let store = RedisStore::open(&proxy.url())
        .unwrap()
        .block_list_refresh(Duration::ZERO);
    (RateLimiter::new(store, Quota::in_flight(3)), proxy)
}

/// Acquires as soon as there is a connection.
async fn eventually_taken(limiter: &RateLimiter) -> Permit {
    let began = Instant::now();
    loop {
        match limiter.try_acquire("ada").await {
            Ok(Acquired::Permit(permit)) => return permit,
            other => assert!(began.elapsed() < Duration::from_secs(4), "{other:?}"),
        }
    }
}

#[tokio::test]
async fn a_message_that_comes_after_a_newer_one_takes_nothing() {
    let server = RedisServer::start();
    let other = process(&server.url(), Quota::in_flight(3));
    let (limiter, proxy) = behind_proxy(&server).await;
    let first = taken(&limiter).await.unwrap();
    let second = taken(&limiter).await.unwrap();
    deliver_late(
        &server,
        &proxy,
        async || {
            // It says that two are held, and wants a third one.
            let failed = limiter.try_acquire("ada").await;
            assert_eq!(failed.unwrap_err().kind(), ErrorKind::Timeout);
        },
        async || {
            drop((first, second));
            until_used(&other, 0, Duration::from_secs(4)).await;
        },
    )
    .await;
    assert_eq!(used(&other).await, 0);
    // Its own count goes on.
    let permit = eventually_taken(&limiter).await;
    assert_eq!(used(&other).await, 1);
    drop(permit);
    until_used(&other, 0, Duration::from_secs(2)).await;
}

#[tokio::test]
async fn a_release_that_comes_after_a_newer_message_gives_nothing_back() {
    let server = RedisServer::start();
    let other = process(&server.url(), Quota::in_flight(3));
    let (limiter, proxy) = behind_proxy(&server).await;
    let permit = taken(&limiter).await.unwrap();
    let mut held = Vec::new();
    deliver_late(
        &server,
        &proxy,
        async || {
            let failed = permit.release().await;
            assert_eq!(failed.unwrap_err().kind(), ErrorKind::Timeout);
        },
        async || {
            for _ in 0..3 {
                held.push(eventually_taken(&limiter).await);
            }
        },
    )
    .await;
    assert_eq!(used(&other).await, 3);
    assert!(taken(&other).await.is_none());
    drop(held);
    until_used(&other, 0, Duration::from_secs(2)).await;
}

const KILLED: &str = "redis::the_slots_of_a_process_that_is_gone_return_within_one_lease";

#[tokio::test]
async fn the_slots_of_a_process_that_is_gone_return_within_one_lease() {
    let quota = Quota::in_flight(1).slot_lease(Duration::from_secs(5));
    if let Some(url) = argument() {
        let _permit = taken(&process(&url, quota)).await.unwrap();
        return std::future::pending().await;
    }
    let server = RedisServer::start();
    let other = process(&server.url(), quota);
    let killed = Process::start(&mut child(KILLED, &server.url()));
    until_used(&other, 1, Duration::from_secs(10)).await;
    drop(killed);
    let began = Instant::now();
    assert!(taken(&other).await.is_none());
    let permit = other.acquire("ada").await.unwrap();
    let took = began.elapsed();
    println!("free after {took:?}");
    // A busy machine asks late.
    assert!(took < Duration::from_secs(6), "{took:?}");
    drop(permit);
}

#[tokio::test]
async fn a_call_that_waits_for_a_slot_takes_units_of_a_lease_and_holds_none_while_it_waits() {
    let server = RedisServer::start();
    let store = RedisStore::open(&server.url()).unwrap();
    let store = store.deadline(Duration::from_secs(5));
    let rate = RateLimiter::new(store.clone(), Quota::per_hour(1_000)).name("rate");
    let rate = rate.lease(Duration::from_secs(1));
    let slots = RateLimiter::new(store, Quota::in_flight(1)).name("slots");
    let acquire = || RateLimiter::acquire_all([rate.level("ada"), slots.level("ada")]);
    // Until this process holds units.
    let mut charged = 0;
    let permit = loop {
        let permit = acquire().await.unwrap();
        charged += 1;
        let source = permit.decision().levels().next().unwrap().source();
        if source == Source::Lease {
            break permit;
        }
        assert!(charged < 900, "no unit was taken from a lease");
    };
    // Its wait ends when it asks for a unit and all are used: the next one is there in an hour.
    let wait = async {
        loop {
            let refused = acquire().await.expect_err("the slot is held");
            assert_eq!(refused.kind(), ErrorKind::MaxWait, "{refused}");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    // All other units can be used. One is missing while the call that waits asks, so a refusal is not the last word.
    let use_all = async {
        while charged < 1_000 {
            match rate.check("ada").await.unwrap().is_allowed() {
                true => charged += 1,
                false => tokio::time::sleep(Duration::from_millis(5)).await,
            }
        }
    };
    let use_all = tokio::time::timeout(Duration::from_secs(30), use_all);
    tokio::select! {
        used = use_all => used.expect("all units can be used"),
        () = wait => {}
    }
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
    let limiter = process(&node.url(), quota.clone()).on_failure(FailurePolicy::fall_back());
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

/// Waits until a permit is lost, which takes four fifths of its lease of 5 s.
async fn until_lost(permit: &Permit, began: Instant) {
    let lost = tokio::time::timeout(Duration::from_secs(6), permit.lost()).await;
    assert!(lost.is_ok(), "the permit is not lost");
    let took = began.elapsed();
    assert!(took < Duration::from_millis(4_200), "{took:?}");
}

#[tokio::test]
async fn a_permit_is_lost_by_the_lease_that_the_store_was_told_last() {
    let mut node = Node::start(&[]);
    let store = RedisStore::open(&node.url()).unwrap();
    let store = store.deadline(Duration::from_secs(1));
    let [long, short] = [600, 5].map(|seconds| {
        let quota = Quota::in_flight(5).slot_lease(Duration::from_secs(seconds));
        RateLimiter::new(store.clone(), quota)
    });
    let first = taken(&long).await.unwrap();
    let watched = first.lost();
    let mut watched = std::pin::pin!(watched);
    let asked = tokio::time::timeout(Duration::from_millis(10), watched.as_mut());
    assert!(asked.await.is_err());
    let second = taken(&short).await.unwrap();
    node.kill();
    let began = Instant::now();
    let lost = tokio::time::timeout(Duration::from_secs(6), watched).await;
    assert!(lost.is_ok(), "who watched the permit is not told");
    for permit in [&first, &second] {
        until_lost(permit, began).await;
    }
}

#[tokio::test]
async fn a_permit_is_lost_though_another_check_of_its_message_failed() {
    let server = RedisServer::start();
    let proxy = Proxy::before(server.port()).await;
    let slots = Quota::in_flight(3).slot_lease(Duration::from_secs(5));
    let store = RedisStore::open(&proxy.url()).unwrap();
    let store = store.deadline(Duration::from_secs(5));
    let good = RateLimiter::new(store.clone(), slots.clone());
    // The rate of the other one is a value of another program.
    let rate = Quota::per_hour(5);
    let name = name_of("{default,ada}", rate.algorithm(), rate.window());
    run(&mut server.connect(), &["RPUSH", &name, "foreign"]);
    let bad = RateLimiter::new(store, [rate, slots]);
    // These wait for the first message, and are the second one.
    proxy.set(Wire::Slow(Duration::from_millis(200)));
    let asked = (bad.try_acquire("ada"), async {
        tokio::time::sleep(Duration::from_millis(50)).await;
        tokio::join!(taken(&good), bad.try_acquire("ada"))
    });
    let (first, (permit, other)) = tokio::join!(asked.0, asked.1);
    assert!(first.is_err() && other.is_err());
    proxy.set(Wire::Hole);
    until_lost(&permit.unwrap(), Instant::now()).await;
}

#[test]
fn renewals_go_on_when_the_runtime_that_came_first_ends() {
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

#[test]
fn a_renewal_goes_on_when_the_runtime_of_its_permits_ends_meanwhile() {
    let server = RedisServer::start();
    let quota = Quota::in_flight(2).slot_lease(Duration::from_secs(5));
    let runtime = || {
        let mut runtime = tokio::runtime::Builder::new_multi_thread();
        runtime.worker_threads(1).enable_all().build().unwrap()
    };
    let [first, second, of_proxy] = [(); 3].map(|()| runtime());
    let proxy = of_proxy.block_on(Proxy::before(server.port()));
    let store = RedisStore::open(&proxy.url())
        .unwrap()
        .deadline(Duration::from_secs(5))
        .block_list_refresh(Duration::ZERO);
    let limiter = RateLimiter::new(store, quota.clone());
    let permits = first.block_on(async { [taken(&limiter).await, taken(&limiter).await] });
    second.block_on(async {
        drop(limiter.try_acquire("bob").await.unwrap());
        tokio::time::sleep(Duration::from_millis(200)).await;
    });
    // The renewal is executed, and its reply is on the way.
    proxy.set(Wire::Slow(Duration::from_secs(1)));
    let before = calls(&server);
    second.block_on(until_calls(&server, before + 1));
    first.shutdown_background();
    proxy.set(Wire::Whole);
    second.block_on(async {
        let other = process(&server.url(), quota);
        let began = Instant::now();
        while began.elapsed() < Duration::from_secs(7) {
            assert_eq!(used(&other).await, 2, "after {:?}", began.elapsed());
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        for permit in permits.iter().flatten() {
            let lost = tokio::time::timeout(Duration::ZERO, permit.lost()).await;
            assert!(lost.is_err(), "a permit is lost");
        }
        drop(permits);
        until_used(&other, 0, Duration::from_secs(2)).await;
    });
}

#[tokio::test]
async fn who_waits_asks_every_25_ms_whatever_keys_and_callers_wait() {
    let server = RedisServer::start();
    let other = process(&server.url(), Quota::in_flight(1));
    let _held = taken(&other).await.unwrap();
    let store = RedisStore::open(&server.url())
        .unwrap()
        .deadline(Duration::from_secs(10));
    let user = RateLimiter::new(store.clone(), Quota::in_flight(2)).name("user");
    let full = RateLimiter::new(store, Quota::in_flight(1));
    let waiting: Vec<_> = (0..20)
        .map(|number| {
            let (user, full) = (user.clone(), full.clone());
            tokio::spawn(async move {
                let key = (number % 7).to_string();
                RateLimiter::acquire_all([user.level(key), full.level("ada")]).await
            })
        })
        .collect();
    tokio::time::sleep(Duration::from_millis(200)).await;
    let before = calls(&server);
    tokio::time::sleep(Duration::from_secs(1)).await;
    let made = calls(&server) - before;
    println!("{made} calls in a second");
    assert!((20..=160).contains(&made), "{made} calls in a second");
    for task in waiting {
        task.abort();
    }
}

#[tokio::test]
async fn a_process_whose_checks_always_wait_leaves_a_slot_to_others_from_time_to_time() {
    let server = RedisServer::start();
    let busy = process(&server.url(), Quota::in_flight(1));
    let tasks: Vec<_> = (0..4)
        .map(|_| {
            let busy = busy.clone();
            tokio::spawn(async move {
                loop {
                    let _held = busy.acquire("ada").await.unwrap();
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
            })
        })
        .collect();
    let other = process(&server.url(), Quota::in_flight(1)).max_wait(Duration::from_secs(20));
    for _ in 0..2 {
        let _held = other.acquire("ada").await.unwrap();
    }
    for task in tasks {
        task.abort();
    }
}
