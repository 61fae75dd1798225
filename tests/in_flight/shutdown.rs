//! Slots at the end of a process: what `release` waits for, and when a successor has them.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::process::{Stdio, exit};
use std::time::{Duration, Instant};

use axum::body::{Body, Bytes};
use axum::{Router, routing::get};
use futures_util::stream::unfold;
use tokio::net::{TcpListener, TcpStream};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;
use tollgate::{
    Acquired, ErrorKind, MemoryStore, Permit, Quota, RateLimitLayer, RateLimiter, RedisStore,
    Share, key,
};

use crate::support::node::Node;
use crate::support::process::{Process, argument, child};
use crate::support::proxy::{Proxy, Wire};
use crate::support::redis_server::{RedisServer, free_port};
use crate::support::{runtime, store_on};

/// How often a process hands its slots to a successor. `TOLLGATE_TEST_HANDOVERS` sets another number.
const HANDOVERS: u32 = 24;

/// Streams a word, and goes on until the end.
fn stream(ended: watch::Receiver<bool>) -> Body {
    Body::from_stream(unfold((ended, 0), async |(mut ended, sent)| {
        match sent {
            0 => {}
            1 => drop(ended.wait_for(|ended| *ended).await),
            _ => return None,
        }
        let word = Ok::<_, Infallible>(Bytes::from_static(b"word"));
        Some((word, (ended, sent + 1)))
    }))
}

/// Serves streams, two at a time, until the process gets SIGTERM.
async fn serve(url: &str, address: &str) {
    let store = RedisStore::open(url).unwrap();
    let store = store.deadline(Duration::from_secs(5));
    let layer = RateLimitLayer::new(store, Quota::in_flight(2)).key(key::global());
    let limiter = layer.limiter().clone();
    let (end, ended) = watch::channel(false);
    let mut terminate = signal(SignalKind::terminate()).unwrap();
    let app = Router::new()
        .route("/", get(async move || stream(ended.clone())))
        .layer(layer);
    let listener = TcpListener::bind(address).await.unwrap();
    let shutdown = async move {
        terminate.recv().await;
        end.send_replace(true);
    };
    let served = axum::serve(listener, app).with_graceful_shutdown(shutdown);
    served.await.unwrap();
    limiter.release().await.unwrap();
}

/// A process that serves.
struct Served {
    process: Process,
    address: SocketAddr,
}

impl Served {
    async fn start(url: &str) -> Self {
        let address = SocketAddr::from(([127, 0, 0, 1], free_port()));
        let mut child = child(TEST, &format!("{url} {address}"));
        let mut process = Process::start(child.stdout(Stdio::null()));
        while TcpStream::connect(address).await.is_err() {
            assert!(process.is_running());
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        Self { process, address }
    }

    /// Opens a stream, as soon as there is a slot.
    async fn open(&self) -> reqwest::Response {
        // A connection of its own, so that the server sees its end when it is dropped.
        let client = reqwest::Client::new();
        loop {
            let response = client.get(format!("http://{}", self.address)).send().await;
            let mut response = response.unwrap();
            if response.status() == 200 {
                assert_eq!(response.chunk().await.unwrap().unwrap(), "word");
                return response;
            }
            assert_eq!(response.status(), 429);
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

const TEST: &str = "shutdown::a_successor_has_the_slots_at_once_after_a_graceful_shutdown";

#[tokio::test]
async fn a_successor_has_the_slots_at_once_after_a_graceful_shutdown() {
    if let Some(argument) = argument() {
        // On a runtime of its own, which ends as with a `main` that returns.
        let main = move || {
            let (url, address) = argument.split_once(' ').unwrap();
            let runtime = tokio::runtime::Runtime::new().unwrap();
            runtime.block_on(serve(url, address));
        };
        std::thread::spawn(main).join().unwrap();
        exit(0);
    }
    let handovers = std::env::var("TOLLGATE_TEST_HANDOVERS");
    let handovers = handovers.map_or(HANDOVERS, |number| number.parse().unwrap());
    let server = RedisServer::start();
    let mut old = Served::start(&server.url()).await;
    let mut streams = vec![old.open().await, old.open().await];
    let mut waits = Vec::new();
    for handover in 0..handovers {
        let new = Served::start(&server.url()).await;
        // All streams end with the process, or clients disconnect at the same time: one or all of them.
        streams.truncate(usize::try_from(handover % 3).unwrap());
        old.process.signal("TERM");
        for stream in &mut streams {
            assert_eq!(stream.chunk().await.unwrap().unwrap(), "word");
            assert!(stream.chunk().await.unwrap().is_none());
        }
        old.process.wait();
        let began = Instant::now();
        streams = vec![new.open().await, new.open().await];
        waits.push(began.elapsed());
        old = new;
    }
    waits.sort_unstable();
    let worst = waits.pop().unwrap();
    println!(
        "{handovers} handovers, worst wait {worst:?}, then {:?}",
        waits.last()
    );
    assert!(worst < Duration::from_secs(2), "{worst:?}");
}

/// A limiter as another process has it, with a table of permits of its own.
fn other(server: &RedisServer, quota: Quota) -> RateLimiter {
    RateLimiter::new(store_on(server), quota)
}

async fn used(limiter: &RateLimiter) -> u32 {
    limiter.peek("ada").await.unwrap().used()
}

async fn taken(limiter: &RateLimiter) -> Permit {
    match limiter.try_acquire("ada").await.unwrap() {
        Acquired::Permit(permit) => permit,
        Acquired::Refused(decision) => panic!("{decision:?}"),
    }
}

#[tokio::test]
async fn release_waits_until_the_store_knows_all_slots_of_the_store_that_were_given_back() {
    let server = RedisServer::start();
    let shared = || Quota::in_flight(9).shares([Share::of("gold"), Share::of("free")]);
    let store = store_on(&server);
    let user = RateLimiter::new(store.clone(), Quota::in_flight(9)).name("user");
    let tenant = RateLimiter::new(store.clone(), shared()).name("tenant");
    let rate = RateLimiter::new(store, Quota::per_hour(9)).name("rate");
    for limiter in [&user, &tenant, &rate] {
        let levels = |share| [user.level("ada"), tenant.level("ada").share(share)];
        let permits = [
            RateLimiter::acquire_all(levels("gold")).await.unwrap(),
            RateLimiter::acquire_all(levels("free")).await.unwrap(),
            user.acquire("ada").await.unwrap(),
        ];
        drop(permits);
        // Also by a limiter that has no slots, as the first level of a layer may have none.
        limiter.release().await.unwrap();
        let seen_by_others = [
            used(&other(&server, Quota::in_flight(9)).name("user")).await,
            used(&other(&server, shared()).name("tenant")).await,
        ];
        assert_eq!(seen_by_others, [0, 0]);
    }
}

#[tokio::test]
async fn release_waits_for_permits_that_are_dropped_late_but_not_for_those_that_stay() {
    let server = RedisServer::start();
    let deadline = Duration::from_millis(500);
    let store = store_on(&server).deadline(deadline);
    let limiter = RateLimiter::new(store, Quota::in_flight(9));
    let observer = other(&server, Quota::in_flight(9));
    let permit = taken(&limiter).await;
    let late = tokio::spawn(async move {
        tokio::time::sleep(Duration::from_millis(50)).await;
        drop(permit);
    });
    limiter.release().await.unwrap();
    assert_eq!(used(&observer).await, 0);
    late.await.unwrap();

    let permits = [taken(&limiter).await, taken(&limiter).await];
    let [first, stays] = permits;
    drop(first);
    let began = Instant::now();
    limiter.release().await.unwrap();
    let waited = began.elapsed();
    assert!(waited >= deadline && waited < deadline * 4, "{waited:?}");
    assert_eq!(used(&observer).await, 1);
    stays.release().await.unwrap();

    // No other process waits for slots in memory.
    let limiter = RateLimiter::new(MemoryStore::new(), Quota::in_flight(9));
    let _stays = taken(&limiter).await;
    limiter.release().await.unwrap();
}

#[tokio::test]
async fn release_follows_a_message_that_is_under_way() {
    let server = RedisServer::start();
    let proxy = Proxy::before(server.port()).await;
    let store = RedisStore::open(&proxy.url()).unwrap();
    let limiter = RateLimiter::new(store.deadline(Duration::from_secs(5)), Quota::in_flight(9));
    let observer = other(&server, Quota::in_flight(9));
    taken(&limiter).await.release().await.unwrap();
    proxy.set(Wire::Slow(Duration::from_millis(100)));
    // Redis grants a slot to a caller that has gone.
    let asked = tokio::time::timeout(Duration::from_millis(20), limiter.acquire("ada"));
    assert!(asked.await.is_err());
    limiter.release().await.unwrap();
    assert_eq!(used(&observer).await, 0);
    // The reply to the message is lost.
    proxy.set(Wire::Whole);
    let permit = taken(&limiter).await;
    proxy.set(Wire::CutBeforeReply(1));
    drop(permit);
    while proxy.cuts() == 0 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    proxy.set(Wire::Whole);
    limiter.release().await.unwrap();
    assert_eq!(used(&observer).await, 0);
}

#[tokio::test]
async fn release_fails_at_the_deadline_if_the_store_does_not_answer() {
    let server = Node::start(&[]);
    let deadline = Duration::from_millis(300);
    let store = RedisStore::open(&server.url()).unwrap().deadline(deadline);
    let limiter = RateLimiter::new(store, Quota::in_flight(9));
    let permit = loop {
        if let Ok(permit) = limiter.acquire("ada").await {
            break permit;
        }
    };
    server.stop();
    drop(permit);
    let began = Instant::now();
    let error = limiter.release().await.unwrap_err();
    let waited = began.elapsed();
    assert_eq!(error.kind(), ErrorKind::Timeout, "{error}");
    assert!(waited < deadline * 3, "{waited:?}");
    server.resume();
    // Nothing is forgotten.
    let began = Instant::now();
    while limiter.release().await.is_err() {
        assert!(began.elapsed() < Duration::from_secs(5));
    }
    let observer = RedisStore::open(&server.url()).unwrap();
    let observer = observer.deadline(Duration::from_secs(5));
    assert_eq!(
        used(&RateLimiter::new(observer, Quota::in_flight(9))).await,
        0
    );
}

#[test]
fn release_needs_no_runtime_on_which_permits_were_taken_or_dropped() {
    let server = RedisServer::start();
    let store = store_on(&server).deadline(Duration::from_secs(1));
    let limiter = RateLimiter::new(store, Quota::in_flight(2));
    let observer = other(&server, Quota::in_flight(2));
    let [main, working, idle] = [(); 3].map(|()| runtime());
    let permits = working.block_on(async { [taken(&limiter).await, taken(&limiter).await] });
    // In a runtime that does not run.
    let entered = idle.enter();
    drop(permits);
    drop(entered);
    drop(working);
    main.block_on(limiter.release()).unwrap();
    assert_eq!(main.block_on(used(&observer)), 0);
}
