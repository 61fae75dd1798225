//! When this process asks and tells the store: while callers wait, after refusals, and after an outage.

use std::convert::Infallible;
use std::future::Future;
use std::time::{Duration, Instant};

use axum::body::Bytes;
use axum::http::{Request, Response, StatusCode};
use futures_util::FutureExt;
use http_body_util::Full;
use tokio::time::timeout;
use tollgate::store::TestStore;
use tollgate::{
    Acquired, ErrorKind, FailurePolicy, Key, MemoryStore, Quota, RateLimitLayer, RateLimiter,
    RedisStore, Source, key,
};
use tower::{Layer, ServiceExt, service_fn};

use crate::support::redis_server::{RedisServer, run};
use crate::taken;

/// A limiter with a table of permits of its own, as another process has.
fn process(server: &RedisServer, quotas: impl tollgate::IntoQuotas) -> RateLimiter {
    let store = RedisStore::open(&server.url()).unwrap();
    let store = store.deadline(Duration::from_secs(5));
    // The tests count calls. Those for the block list would come at any time.
    RateLimiter::new(store.block_list_refresh(Duration::ZERO), quotas)
}

/// The calls of the script so far.
fn calls(connection: &mut redis::Connection) -> u64 {
    let info: String = redis::cmd("INFO")
        .arg("commandstats")
        .query(connection)
        .unwrap();
    let mut lines = info.lines();
    let line = lines.find(|line| line.starts_with("cmdstat_evalsha:"));
    let calls = line.and_then(|line| line.split(['=', ',']).nth(1));
    calls.map_or(0, |calls| calls.parse().unwrap())
}

async fn timed<T>(future: impl Future<Output = T>) -> (T, Duration) {
    let began = Instant::now();
    (future.await, began.elapsed())
}

#[tokio::test]
async fn a_refusal_is_repeated_for_20_ms_without_a_call() {
    let server = RedisServer::start();
    let [one, other] = [(); 2].map(|()| process(&server, Quota::in_flight(1)));
    let held = taken(&other, "ada").await.unwrap();
    let mut connection = server.connect();
    assert!(taken(&one, "ada").await.is_none());
    let before = calls(&mut connection);
    let began = Instant::now();
    let (mut attempts, mut repeated) = (0_u64, 0);
    while began.elapsed() < Duration::from_millis(500) {
        let Acquired::Refused(decision) = one.try_acquire("ada").await.unwrap() else {
            panic!("a second permit of one");
        };
        assert_eq!((decision.used(), decision.limit()), (1, 1));
        assert!(decision.is_wait_estimated());
        attempts += 1;
        repeated += u64::from(decision.source() == Source::RefusalCache);
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let made = calls(&mut connection) - before;
    println!("{made} calls for {attempts} attempts in half a second");
    assert!((5..=27).contains(&made), "{made} calls");
    assert_eq!(made + repeated, attempts);
    held.release().await.unwrap();
    let (free, took) = timed(async {
        loop {
            if let Some(permit) = taken(&one, "ada").await {
                return permit;
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    })
    .await;
    println!("free {took:?} after another process gave it back");
    assert!(took < Duration::from_millis(200), "{took:?}");
    drop(free);
}

#[tokio::test]
async fn a_refusal_is_forgotten_when_this_process_gives_a_slot_back() {
    let server = RedisServer::start();
    let limiter = process(&server, Quota::in_flight(2));
    for _ in 0..20 {
        let [one, two] = [
            taken(&limiter, "ada").await.unwrap(),
            taken(&limiter, "ada").await.unwrap(),
        ];
        assert!(taken(&limiter, "ada").await.is_none());
        drop(one);
        let three = taken(&limiter, "ada").await.expect("one was given back");
        three.release().await.unwrap();
        two.release().await.unwrap();
    }
}

#[tokio::test]
async fn a_refusal_of_several_slots_refuses_no_check_of_fewer() {
    let server = RedisServer::start();
    let [one, other] = [(); 2].map(|()| process(&server, Quota::in_flight(3)));
    let _held = taken(&other, "ada").await.unwrap();
    let three = || RateLimiter::try_acquire_all([one.level("ada").slots(3)]);
    // A call may take longer than the refusal is remembered.
    loop {
        let Acquired::Refused(decision) = three().await.unwrap() else {
            panic!("three slots of two");
        };
        if decision.source() == Source::RefusalCache {
            break;
        }
    }
    let two = RateLimiter::try_acquire_all([one.level("ada").slots(2)]);
    assert!(matches!(two.await.unwrap(), Acquired::Permit(_)));
}

#[tokio::test]
async fn a_store_without_a_refusal_cache_is_asked_each_time() {
    let server = RedisServer::start();
    let store = RedisStore::open(&server.url())
        .unwrap()
        .deadline(Duration::from_secs(10));
    let limiter = RateLimiter::new(store.refusal_cache(Duration::ZERO), Quota::in_flight(1));
    let _permit = taken(&limiter, "ada").await.unwrap();
    for _ in 0..3 {
        let Acquired::Refused(decision) = limiter.try_acquire("ada").await.unwrap() else {
            panic!("a second permit of one");
        };
        assert_eq!(decision.source(), Source::Redis);
    }
}

#[tokio::test]
async fn who_waits_for_a_rate_asks_when_it_has_room() {
    let server = RedisServer::start();
    // Each second, it asks whether others have given units back.
    let rate = Quota::new(1, Duration::from_millis(900));
    let limiter = process(&server, [rate, Quota::in_flight(5)]);
    let first = limiter.acquire("ada").await.unwrap();
    let mut connection = server.connect();
    let before = calls(&mut connection);
    let (second, took) = timed(limiter.acquire("ada")).await;
    let made = calls(&mut connection) - before;
    println!("{took:?}, {made} calls");
    assert!(
        took > Duration::from_millis(800) && took < Duration::from_millis(1_600),
        "{took:?}"
    );
    assert!(made <= 3, "{made} calls");
    drop((first, second));
}

#[tokio::test]
async fn who_waits_for_a_rate_keeps_nobody_from_a_slot() {
    let store = MemoryStore::new();
    let user = RateLimiter::new(store.clone(), Quota::new(1, Duration::from_secs(2))).name("user");
    let tenant = RateLimiter::new(store, Quota::in_flight(1)).name("tenant");
    let acquire = |name: &'static str| {
        let (user, tenant) = (user.clone(), tenant.clone());
        async move { RateLimiter::acquire_all([user.level(name), tenant.level("acme")]).await }
    };
    drop(acquire("ada").await.unwrap());
    let waiting = tokio::spawn(acquire("ada"));
    tokio::time::sleep(Duration::from_millis(50)).await;
    let (bob, took) = timed(acquire("bob")).await;
    println!("{took:?}");
    assert!(took < Duration::from_millis(200), "{took:?}");
    drop(bob.unwrap());
    let ada = waiting.await.unwrap().unwrap();
    assert!(ada.decision().is_allowed());
}

#[tokio::test]
async fn a_short_wait_behind_a_long_one_ends_in_time() {
    let long = RateLimiter::new(MemoryStore::new(), Quota::in_flight(1));
    let short = long.clone().max_wait(Duration::from_millis(100));
    let _held = long.acquire("ada").await.unwrap();
    let waiting = tokio::spawn(async move { long.acquire("ada").await });
    tokio::time::sleep(Duration::from_millis(20)).await;
    let (failed, took) = timed(short.acquire("ada")).await;
    assert_eq!(failed.unwrap_err().kind(), ErrorKind::MaxWait);
    println!("{took:?}");
    assert!(took < Duration::from_secs(1), "{took:?}");
    waiting.abort();
}

/// A limiter that falls back, and its store, which fails.
fn failing(limit: u32) -> (RateLimiter, TestStore) {
    let store = TestStore::new();
    store.fail_all(ErrorKind::Unavailable);
    let limiter = RateLimiter::new(store.clone(), Quota::in_flight(limit));
    (limiter.on_failure(FailurePolicy::fall_back()), store)
}

/// Lets ten callers wait while the store is away, gives so many slots of two back, and returns the order of their permits.
async fn order_while_the_store_is_away(given_back: usize) -> Vec<u32> {
    let (limiter, _store) = failing(2);
    let mut held = vec![
        limiter.acquire("ada").await.unwrap(),
        limiter.acquire("ada").await.unwrap(),
    ];
    assert!(taken(&limiter, "ada").await.is_none());
    let (sender, mut receiver) = tokio::sync::mpsc::unbounded_channel();
    for number in 0..10 {
        let (limiter, sender) = (limiter.clone(), sender.clone());
        tokio::spawn(async move {
            let permit = limiter.acquire("ada").await.unwrap();
            assert_eq!(permit.decision().source(), Source::Fallback);
            sender.send(number).unwrap();
            tokio::time::sleep(Duration::from_millis(1)).await;
            drop(permit);
        });
        tokio::task::yield_now().await;
    }
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert!(receiver.try_recv().is_err(), "a third permit of two");
    drop(sender);
    held.truncate(2 - given_back);
    let (order, took) = timed(async {
        let mut order = Vec::new();
        while let Some(number) = receiver.recv().await {
            order.push(number);
        }
        order
    })
    .await;
    println!("{took:?}");
    // Less than if each second one waited for its next look at the store, also on a busy machine.
    assert!(took < Duration::from_secs(2), "{took:?}");
    order
}

#[tokio::test]
async fn while_the_store_is_away_callers_wait_in_order_for_the_slots_of_this_process() {
    let in_turn: Vec<_> = (0..10).collect();
    assert_eq!(order_while_the_store_is_away(1).await, in_turn);
    // The runtime chooses which of two tasks it polls first if there is a slot for each of them.
    let order = order_while_the_store_is_away(2).await;
    let near = |(number, place): (&u32, &u32)| number.abs_diff(*place) <= 1;
    assert!(order.iter().zip(&in_turn).all(near), "{order:?}");
    assert_eq!(order.len(), in_turn.len());
}

#[tokio::test]
async fn while_the_store_is_away_a_slot_that_is_given_back_is_not_counted_twice() {
    let (limiter, store) = failing(1);
    let held = limiter.acquire("ada").await.unwrap();
    let mut waiting = [0; 3].map(|_| Box::pin(limiter.acquire("ada")));
    for call in &mut waiting {
        assert!(timeout(Duration::from_millis(20), call).await.is_err());
    }
    let [first, second, third] = &mut waiting;
    // Until the first one asks again. It does not know yet that the store has failed.
    drop(store.take_checks());
    while store.take_checks().is_empty() {
        assert!(first.as_mut().now_or_never().is_none());
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    drop(held);
    drop(first.await.unwrap());
    // The slot is for the second one, which is not polled meanwhile.
    assert!(
        timeout(Duration::from_millis(100), &mut *third)
            .await
            .is_err()
    );
    drop(second.await.unwrap());
    drop(third.await.unwrap());
}

#[tokio::test]
async fn a_wait_while_the_store_is_away_ends_after_its_bound_or_when_the_store_is_back() {
    let (limiter, store) = failing(1);
    let short = limiter.clone().max_wait(Duration::from_millis(80));
    let held = limiter.acquire("ada").await.unwrap();
    let (failed, took) = timed(short.acquire("ada")).await;
    assert_eq!(failed.unwrap_err().kind(), ErrorKind::MaxWait);
    assert!(took > Duration::from_millis(70), "{took:?}");
    let waiting = tokio::spawn({
        let limiter = limiter.clone();
        async move { limiter.acquire("ada").await }
    });
    tokio::time::sleep(Duration::from_millis(30)).await;
    store.recover();
    for _ in 0..100 {
        store.clock().advance(Duration::from_millis(10));
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    // The store has learnt what was held, and refuses.
    assert!(!waiting.is_finished());
    drop(held);
    let permit = waiting.await.unwrap().unwrap();
    assert_eq!(permit.decision().source(), Source::Memory);
}

#[tokio::test]
async fn a_caller_that_stops_to_wait_while_the_store_is_away_takes_nothing() {
    let (limiter, _store) = failing(1);
    let held = limiter.acquire("ada").await.unwrap();
    let wait = timeout(Duration::from_millis(30), limiter.acquire("ada"));
    assert!(wait.await.is_err());
    drop(held);
    let permit = taken(&limiter, "ada").await;
    assert!(permit.is_some());
}

#[tokio::test]
async fn the_first_reply_after_an_outage_states_all_keys() {
    const KEYS: usize = 50;
    let (limiter, store) = failing(2);
    store.recover();
    let mut permits = Vec::new();
    for key in 0..KEYS {
        permits.push(taken(&limiter, &key.to_string()).await.unwrap());
    }
    store.fail_all(ErrorKind::Unavailable);
    for key in 0..KEYS {
        permits.push(taken(&limiter, &key.to_string()).await.unwrap());
    }
    store.recover();
    let bob = loop {
        store.clock().advance(Duration::from_millis(10));
        let permit = taken(&limiter, "bob").await.unwrap();
        if permit.decision().source() == Source::Memory {
            break permit;
        }
        drop(permit);
        tokio::time::sleep(Duration::from_millis(1)).await;
    };
    let began = Instant::now();
    for key in 0..KEYS {
        while limiter.peek(key.to_string()).await.unwrap().used() != 2 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
    let took = began.elapsed();
    println!("{KEYS} keys known {took:?} after the first reply");
    // Without that reply, each is stated again after 0.6 to 1.9 s.
    assert!(took < Duration::from_millis(300), "{took:?}");
    drop((bob, permits));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_keys_that_the_server_has_forgotten_are_stated_in_few_calls() {
    const KEYS: u64 = 1_000;
    let server = RedisServer::start();
    let limiter = process(&server, Quota::in_flight(2));
    let mut permits = Vec::new();
    for key in 0..KEYS {
        permits.push(taken(&limiter, &key.to_string()).await.unwrap());
    }
    let mut connection = server.connect();
    run(&mut connection, &["FLUSHALL"]);
    let before = calls(&mut connection);
    let began = Instant::now();
    permits.push(taken(&limiter, "0").await.unwrap());
    let known =
        |connection: &mut redis::Connection| redis::cmd("DBSIZE").query::<u64>(connection).unwrap();
    while known(&mut connection) < KEYS {
        assert!(began.elapsed() < Duration::from_secs(1), "not yet known");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    let (took, made) = (began.elapsed(), calls(&mut connection) - before);
    println!("{KEYS} keys known after {took:?}, in {made} calls");
    assert!(made <= KEYS / 5, "{made} calls");
}

#[tokio::test]
async fn requests_wait_as_long_as_the_limiter_of_their_layer_says() {
    let limiter = RateLimiter::new(MemoryStore::new(), Quota::in_flight(1));
    let bounded = limiter.clone().max_wait(Duration::from_millis(400));
    let _held = limiter.acquire(Key::global()).await.unwrap();
    let of = |limiter: RateLimiter| RateLimitLayer::from(limiter).key(key::global());
    for (layer, waits) in [
        (of(limiter), Duration::ZERO),
        (of(bounded.clone()), Duration::from_millis(400)),
        (of(bounded).wait_up_to(Duration::ZERO), Duration::ZERO),
    ] {
        let handler = service_fn(async |_: Request<()>| {
            Ok::<_, Infallible>(Response::new(Full::new(Bytes::new())))
        });
        let answer = layer.layer(handler).oneshot(Request::new(()));
        let (response, took) = timed(answer).await;
        assert_eq!(response.unwrap().status(), StatusCode::TOO_MANY_REQUESTS);
        let longest = waits + Duration::from_millis(350);
        assert!((waits..longest).contains(&took), "{took:?}, not {waits:?}");
    }
}
