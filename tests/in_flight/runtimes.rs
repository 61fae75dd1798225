//! Permits of a process with several runtimes: none of them carries the messages or the wait of another one.

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::task::{Context, Wake, Waker};
use std::thread;
use std::time::{Duration, Instant};

use tokio::runtime::Builder;
use tokio::time::{sleep, timeout};
use tollgate::{ErrorKind, MemoryStore, Permit, Quota, RateLimiter, RedisStore, Store};

use crate::support::proxy::{Proxy, Wire};
use crate::support::redis_server::RedisServer;
use crate::support::{runtime, store_on};
use crate::taken;

const MILLI: Duration = Duration::from_millis(1);

/// Longer than a busy machine takes.
const DEADLINE: Duration = Duration::from_secs(10);

/// In memory, and in Redis.
fn stores(server: &RedisServer) -> [Arc<dyn Store>; 2] {
    let redis = store_on(server).deadline(DEADLINE);
    [Arc::new(MemoryStore::new()), Arc::new(redis)]
}

/// Waits until so many slots are used, also while a busy machine does not connect in time.
async fn until_used(limiter: &RateLimiter, expected: u32) {
    let wait = async {
        while !(limiter.peek("ada").await).is_ok_and(|seen| seen.used() == expected) {
            sleep(MILLI).await;
        }
    };
    let waited = timeout(DEADLINE, wait).await;
    assert!(waited.is_ok(), "not {expected} slots are used");
}

#[test]
fn a_wait_ends_in_time_though_the_runtime_that_came_first_has_ended() {
    let server = RedisServer::start();
    for store in stores(&server) {
        let limiter = RateLimiter::new(store, Quota::in_flight(1)).max_wait(500 * MILLI);
        let first = runtime();
        let permit = first.block_on(limiter.acquire("ada")).unwrap();
        // It waits there, too.
        let of_first = limiter.clone();
        first.spawn(async move { of_first.acquire("ada").await });
        first.block_on(async { sleep(50 * MILLI).await });
        let second = thread::spawn(move || {
            let began = Instant::now();
            let waits = async { timeout(DEADLINE, limiter.acquire("ada")).await };
            let waited = runtime().block_on(waits);
            (waited, began.elapsed())
        });
        thread::sleep(100 * MILLI);
        drop(first);
        let (waited, took) = second.join().unwrap();
        assert_eq!(waited.unwrap().unwrap_err().kind(), ErrorKind::MaxWait);
        assert!(took < 2_000 * MILLI, "{took:?}");
        drop(permit);
    }
}

#[test]
fn a_runtime_that_stands_still_stops_no_renewal_and_no_wait() {
    let server = RedisServer::start();
    let quota = Quota::in_flight(1).slot_lease(Duration::from_secs(5));
    let limiter = RateLimiter::new(store_on(&server).deadline(DEADLINE), quota);
    let is_over = Arc::new(AtomicBool::new(false));
    let stands_still = thread::spawn({
        let (limiter, is_over) = (limiter.clone(), Arc::clone(&is_over));
        move || {
            let runtime = runtime();
            let held = runtime.block_on(taken(&limiter, "first")).unwrap();
            // A task that blocks its thread.
            while !is_over.load(Ordering::Relaxed) {
                thread::sleep(10 * MILLI);
            }
            let lost = runtime.block_on(async { timeout(Duration::ZERO, held.lost()).await });
            lost.is_ok()
        }
    });
    runtime().block_on(async {
        sleep(100 * MILLI).await;
        let held = taken(&limiter, "ada").await.unwrap();
        let lost = timeout(Duration::from_secs(6), held.lost()).await;
        assert!(lost.is_err(), "the permit is lost");
        let waiting = tokio::spawn({
            let limiter = limiter.clone();
            async move { limiter.acquire("ada").await }
        });
        sleep(100 * MILLI).await;
        let began = Instant::now();
        drop(held);
        let next = waiting.await.unwrap().unwrap();
        assert!(began.elapsed() < 1_000 * MILLI, "{:?}", began.elapsed());
        drop(next);
    });
    is_over.store(true, Ordering::Relaxed);
    assert!(!stands_still.join().unwrap(), "its permit is lost");
}

#[test]
fn a_call_that_stands_still_while_its_message_is_refused_lets_others_pass() {
    let server = RedisServer::start();
    let of_proxy = Builder::new_multi_thread().enable_all().build().unwrap();
    let proxy = of_proxy.block_on(Proxy::before(server.port()));
    let store = RedisStore::open(&proxy.url()).unwrap().deadline(DEADLINE);
    let limiter = RateLimiter::new(store, Quota::in_flight(1));
    let other = RateLimiter::new(store_on(&server), Quota::in_flight(1));
    let runtime_here = runtime();
    let held = runtime_here.block_on(other.acquire("ada")).unwrap();
    // So that there is a connection.
    drop(runtime_here.block_on(limiter.acquire("bob")).unwrap());
    proxy.set(Wire::Slow(1_500 * MILLI));
    let is_over = Arc::new(AtomicBool::new(false));
    let stands_still = thread::spawn({
        let (limiter, is_over) = (limiter.clone(), Arc::clone(&is_over));
        move || {
            runtime().block_on(async {
                let mut first = Box::pin(limiter.acquire("ada"));
                assert!(timeout(100 * MILLI, first.as_mut()).await.is_err());
                // A task that blocks its thread.
                while !is_over.load(Ordering::Relaxed) {
                    thread::sleep(10 * MILLI);
                }
                first.await
            })
        }
    });
    runtime_here.block_on(async {
        sleep(200 * MILLI).await;
        let waiting = tokio::spawn(async move { limiter.acquire("ada").await });
        // The first call is passed after a second, then refused, and then the second one is refused, too.
        sleep(3_500 * MILLI).await;
        proxy.set(Wire::Whole);
        drop(held);
        let permit = timeout(DEADLINE, waiting).await;
        drop(permit.expect("it passes the first call").unwrap().unwrap());
    });
    is_over.store(true, Ordering::Relaxed);
    assert!(stands_still.join().unwrap().is_ok());
}

#[test]
fn runtimes_that_end_fail_no_call_of_another_one() {
    let server = RedisServer::start();
    let limiter = RateLimiter::new(store_on(&server).deadline(DEADLINE), Quota::in_flight(3));
    let is_over = Arc::new(AtomicBool::new(false));
    let short_ones = thread::spawn({
        let (limiter, is_over) = (limiter.clone(), Arc::clone(&is_over));
        move || {
            let mut number = 0;
            while !is_over.load(Ordering::Relaxed) {
                number += 1;
                runtime().block_on(async {
                    for _ in 0..4 {
                        let limiter = limiter.clone();
                        tokio::spawn(async move {
                            let _permit = limiter.acquire("ada").await;
                            sleep(MILLI).await;
                        });
                    }
                    sleep(Duration::from_micros(300 + number * 37 % 2_500)).await;
                });
            }
        }
    });
    runtime().block_on(async {
        let began = Instant::now();
        while began.elapsed() < Duration::from_secs(2) {
            drop(limiter.acquire("ada").await.unwrap());
        }
    });
    is_over.store(true, Ordering::Relaxed);
    short_ones.join().unwrap();
    runtime().block_on(until_used(&limiter, 0));
}

#[test]
fn a_permit_that_is_dropped_anywhere_is_given_back() {
    let server = RedisServer::start();
    for store in stores(&server) {
        let limiter = RateLimiter::new(Arc::clone(&store), Quota::in_flight(4));
        let first = runtime();
        let [one, two, three, four]: [Permit; 4] = first.block_on(async {
            let take = async || taken(&limiter, "ada").await.unwrap();
            [take().await, take().await, take().await, take().await]
        });
        let main = runtime();
        drop(one);
        main.block_on(until_used(&limiter, 3));
        drop(first);
        drop(two);
        main.block_on(until_used(&limiter, 2));
        thread::spawn(move || drop(three)).join().unwrap();
        main.block_on(until_used(&limiter, 1));
        // The last one, without any limiter, in a runtime that does not run any more.
        drop(limiter);
        let entered = main.enter();
        drop(four);
        drop(entered);
        drop(main);
        let observer = RateLimiter::new(store, Quota::in_flight(4));
        runtime().block_on(until_used(&observer, 0));
    }
}

#[test]
fn a_runtime_that_has_ended_leaves_no_memory() {
    let limiter = RateLimiter::new(MemoryStore::new(), Quota::in_flight(1));
    // The runtime has it until its last handle is dropped.
    let of_runtime = Arc::new(());
    for _ in 0..3 {
        let kept = Arc::clone(&of_runtime);
        let mut runtime = Builder::new_current_thread();
        let runtime = runtime
            .enable_all()
            .on_thread_park(move || drop(Arc::clone(&kept)));
        runtime.build().unwrap().block_on(async {
            let permit = limiter.acquire("ada").await.unwrap();
            let waits = timeout(10 * MILLI, limiter.acquire("ada"));
            assert!(waits.await.is_err());
            drop(permit);
        });
    }
    assert_eq!(Arc::strong_count(&of_runtime), 1);
}

/// A task that its waker drops, as that of an executor that has ended.
struct Dropped(Mutex<Option<Pin<Box<dyn Future<Output = ()> + Send>>>>);

impl Wake for Dropped {
    fn wake(self: Arc<Self>) {
        drop(self.0.lock().unwrap().take());
    }
}

#[test]
fn a_task_that_its_waker_drops_leaves_its_slots() {
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || {
        let limiter = RateLimiter::new(MemoryStore::new(), Quota::in_flight(1));
        runtime().block_on(async {
            let held = taken(&limiter, "ada").await.unwrap();
            let of_task = limiter.clone();
            let mut waits: Pin<Box<dyn Future<Output = ()> + Send>> =
                Box::pin(async move { drop(of_task.acquire("ada").await) });
            let task = Arc::new(Dropped(Mutex::default()));
            let waker = Waker::from(Arc::clone(&task));
            let polled = waits.as_mut().poll(&mut Context::from_waker(&waker));
            assert!(polled.is_pending());
            *task.0.lock().unwrap() = Some(waits);
            drop(held);
            until_used(&limiter, 0).await;
        });
        sender.send(()).unwrap();
    });
    let ended = receiver.recv_timeout(DEADLINE);
    assert!(ended.is_ok(), "the table stays locked");
}
