//! Calls of one process that wait for slots are served in the order of their arrival, whatever they ask.

use std::convert::Infallible;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use axum::body::Bytes;
use axum::http::{Request, Response};
use http_body_util::Full;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tollgate::{
    Acquired, Error, ErrorKind, Key, MemoryStore, Quota, RateLimitLayer, RateLimiter, RedisStore,
    Store, key,
};
use tower::{Layer, ServiceExt, service_fn};

use crate::support::node::Node;
use crate::support::redis_server::RedisServer;
use crate::support::store_on;

const MILLI: Duration = Duration::from_millis(1);

/// Longer than a busy machine takes.
const PATIENCE: Duration = Duration::from_secs(30);

/// In memory, and in Redis.
fn stores(server: &RedisServer) -> [Arc<dyn Store>; 2] {
    let redis = store_on(server).deadline(PATIENCE);
    [Arc::new(MemoryStore::new()), Arc::new(redis)]
}

/// Lets a call for several slots of two keys wait behind some calls and before others. These ask again and again until it has its
/// own slots: if they took what it needs every time, it would never be served.
async fn wait_among_others(limiters: [&RateLimiter; 2], slots: u32, keys: [&'static str; 2]) {
    let levels = || limiters.into_iter().zip(keys);
    // All slots are taken, and calls wait for them.
    let mut held = Vec::new();
    for (limiter, key) in levels() {
        let all = limiter
            .level(key)
            .slots(limiter.quotas().iter().map(Quota::limit).sum());
        held.push(RateLimiter::acquire_all([all]).await.unwrap());
    }
    let mut tasks = JoinSet::new();
    for (limiter, key) in levels().cycle().take(16) {
        let limiter = limiter.clone();
        tasks.spawn(async move {
            let permit = limiter.acquire(key).await.unwrap();
            sleep(2 * MILLI).await;
            drop(permit);
        });
    }
    sleep(20 * MILLI).await;
    let (sender, served) = watch::channel(false);
    let large = limiters.map(RateLimiter::clone);
    tasks.spawn(async move {
        let levels = [
            large[0].level(keys[0]).slots(slots),
            large[1].level(keys[1]).slots(slots),
        ];
        let permit = RateLimiter::acquire_all(levels).await.unwrap();
        sender.send(true).unwrap();
        drop(permit);
    });
    sleep(MILLI).await;
    for (limiter, key) in levels().cycle().take(80) {
        let (limiter, served) = (limiter.clone(), served.clone());
        tasks.spawn(async move {
            while !*served.borrow() {
                let permit = limiter.acquire(key).await.unwrap();
                sleep(2 * MILLI).await;
                drop(permit);
            }
        });
    }
    sleep(MILLI).await;
    drop((held, served));
    while let Some(task) = timeout(PATIENCE, tasks.join_next()).await.expect("in turn") {
        task.unwrap();
    }
}

#[tokio::test]
async fn a_call_for_several_slots_of_two_keys_is_served_among_calls_for_each_of_them() {
    let server = RedisServer::start();
    for store in stores(&server) {
        let limiter = RateLimiter::new(Arc::clone(&store), Quota::in_flight(4)).name("one");
        let other = RateLimiter::new(store, Quota::in_flight(4)).name("other");
        for slots in [2, 4] {
            wait_among_others([&limiter, &other], slots, ["ada", "acme"]).await;
        }
    }
}

#[tokio::test]
async fn waiting_calls_get_permits_in_the_order_of_their_arrival() {
    let server = RedisServer::start();
    for store in stores(&server) {
        let limiter = RateLimiter::new(store, Quota::in_flight(2));
        let held = [
            limiter.acquire("ada").await.unwrap(),
            limiter.acquire("ada").await.unwrap(),
        ];
        let order: Arc<Mutex<Vec<u32>>> = Arc::default();
        let mut tasks = JoinSet::new();
        for number in 0..20 {
            let (limiter, order) = (limiter.clone(), Arc::clone(&order));
            tasks.spawn(async move {
                let slots = limiter.level("ada").slots(1 + number % 2);
                let permit = RateLimiter::acquire_all([slots]).await.unwrap();
                order.lock().unwrap().push(number);
                drop(permit);
            });
            sleep(MILLI).await;
        }
        sleep(50 * MILLI).await;
        assert!(order.lock().unwrap().is_empty());
        drop(held);
        while tasks.join_next().await.is_some() {}
        let order = order.lock().unwrap().clone();
        assert_eq!(order, (0..20).collect::<Vec<_>>());
    }
}

#[tokio::test]
async fn a_line_is_as_long_as_its_bound() {
    let server = RedisServer::start();
    for store in stores(&server) {
        let limiter = RateLimiter::new(store, Quota::in_flight(2)).queue(3);
        let limiter = limiter.max_wait(PATIENCE);
        let mut tasks = JoinSet::new();
        for _ in 0..64 {
            let limiter = limiter.clone();
            tasks.spawn(async move { limiter.acquire("ada").await });
        }
        // All but the permits and the line.
        let (mut held, mut refused) = (Vec::new(), 0);
        while held.len() < 2 || refused < 59 {
            match timeout(PATIENCE, tasks.join_next()).await.unwrap() {
                Some(ended) => match ended.unwrap() {
                    Ok(permit) => held.push(permit),
                    Err(error) => {
                        assert_eq!(error.kind(), ErrorKind::MaxWait);
                        refused += 1;
                    }
                },
                None => panic!("{} permits, {refused} refused", held.len()),
            }
        }
        assert_eq!((held.len(), refused, tasks.len()), (2, 59, 3));
        drop(held);
        while let Some(waited) = tasks.join_next().await {
            drop(waited.unwrap().unwrap());
        }
    }
}

#[tokio::test]
async fn a_call_that_does_not_wait_gets_no_slot_that_others_wait_for() {
    let server = RedisServer::start();
    for store in stores(&server) {
        let limiter = RateLimiter::new(store, Quota::in_flight(2));
        let held = limiter.acquire("ada").await.unwrap();
        let waiting = tokio::spawn({
            let limiter = limiter.clone();
            async move { RateLimiter::acquire_all([limiter.level("ada").slots(2)]).await }
        });
        // A slot is free. The other call stands in line when it was refused.
        let until_refused = async {
            while let Acquired::Permit(_) = limiter.try_acquire("ada").await.unwrap() {
                sleep(MILLI).await;
            }
        };
        timeout(PATIENCE, until_refused).await.expect("a refusal");
        for _ in 0..20 {
            let tried = limiter.try_acquire("ada").await.unwrap();
            assert!(matches!(tried, Acquired::Refused(_)));
            sleep(2 * MILLI).await;
        }
        drop(held);
        drop(timeout(PATIENCE, waiting).await.unwrap().unwrap().unwrap());
        let tried = limiter.try_acquire("ada").await.unwrap();
        assert!(matches!(tried, Acquired::Permit(_)));
    }
}

#[tokio::test]
async fn a_key_that_is_blocked_meanwhile_gives_no_slot() {
    let server = RedisServer::start();
    for store in stores(&server) {
        let limiter = RateLimiter::new(store, Quota::in_flight(1)).max_wait(1_500 * MILLI);
        let held = limiter.acquire(Key::global()).await.unwrap();
        let layer = RateLimitLayer::from(limiter.clone()).key(key::global());
        let waiting = tokio::spawn({
            let limiter = limiter.clone();
            async move { limiter.acquire(Key::global()).await }
        });
        let request = tokio::spawn(async move {
            let handler = service_fn(async |_: Request<()>| {
                Ok::<_, Infallible>(Response::new(Full::new(Bytes::new())))
            });
            let service = layer.layer(handler);
            let request = Request::new(());
            service.oneshot(request).await.unwrap().status()
        });
        sleep(50 * MILLI).await;
        let admin = limiter.admin();
        admin.block(Key::global(), PATIENCE).await.unwrap();
        drop(held);
        let began = Instant::now();
        let error = waiting.await.unwrap().unwrap_err();
        assert_eq!(error.kind(), ErrorKind::MaxWait);
        assert_eq!(request.await.unwrap().as_u16(), 429);
        assert!(began.elapsed() < PATIENCE / 2);
    }
}

#[tokio::test]
async fn a_call_that_gets_its_slot_while_its_key_is_paused_gets_it_again_after_the_pause() {
    let server = RedisServer::start();
    let limiter = RateLimiter::new(store_on(&server).deadline(PATIENCE), Quota::in_flight(1));
    let held = limiter.acquire("ada").await.unwrap();
    let waiting = tokio::spawn({
        let limiter = limiter.clone();
        async move { limiter.acquire("ada").await }
    });
    sleep(200 * MILLI).await;
    drop(held);
    // The call asks. Its answer comes while its runtime is busy, so it takes the answer in when the pause has begun.
    tokio::task::yield_now().await;
    std::thread::sleep(300 * MILLI);
    limiter.pause("ada", 500 * MILLI);
    let began = Instant::now();
    let permit = timeout(PATIENCE, waiting).await.unwrap().unwrap().unwrap();
    assert!(began.elapsed() >= 400 * MILLI);
    assert_eq!(permit.decision().remaining(), 0);
}

#[tokio::test]
async fn a_wait_through_an_outage_gets_its_permit_after_it() {
    let mut node = Node::start(&[]);
    let store = RedisStore::open(&node.url()).unwrap();
    let limiter = RateLimiter::new(store, Quota::in_flight(1)).wait_through_outages();
    let held = limiter.acquire("ada").await.unwrap();
    let waiting: Vec<_> = (0..5)
        .map(|_| {
            let limiter = limiter.clone();
            tokio::spawn(async move {
                let permit = limiter.acquire("ada").await?;
                sleep(5 * MILLI).await;
                drop(permit);
                Ok::<_, Error>(())
            })
        })
        .collect();
    sleep(50 * MILLI).await;
    node.kill();
    drop(held);
    let during = tokio::spawn({
        let limiter = limiter.clone();
        async move { limiter.acquire("ada").await.map(drop) }
    });
    sleep(1_000 * MILLI).await;
    node.restart();
    for call in waiting.into_iter().chain([during]) {
        timeout(PATIENCE, call).await.unwrap().unwrap().unwrap();
    }
}
