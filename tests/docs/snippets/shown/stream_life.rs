//! A stream that frees its slot after its longest life, also if its subscriber vanished.

use std::io::{Read, Write};
use std::net::TcpStream;

use axum::{Router, routing::get};
use tollgate::{Key, MemoryStore, Quota, RateLimitLayer, RateLimiter, RedisStore, Store};

use crate::support::redis_server::RedisServer;
use crate::support::served::serve;

// page: shown
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::State;
use http_body_util::channel::Channel;
use tollgate::PermitHandle;

/// `life` is the longest of a stream, such as an hour. A subscriber then connects again.
async fn events(State(life): State<Duration>, permit: PermitHandle) -> Body {
    let permit = permit.take();
    let (mut sender, body) = Channel::<Bytes>::new(16);
    tokio::spawn(async move {
        // Ends when the subscriber leaves, or after its life: a subscriber that reads no more lets `send_data` wait.
        let feed = async { while sender.send_data(next_event().await).await.is_ok() {} };
        let _ = tokio::time::timeout(life, feed).await;
        drop(permit);
    });
    Body::new(body)
}
// page: end

/// A large event, so that a few fill the buffers of a connection whose client reads nothing.
async fn next_event() -> Bytes {
    tokio::time::sleep(Duration::from_millis(1)).await;
    Bytes::from_static(&[b'.'; 1 << 16])
}

/// Serves streams of this life. Returns the address, and their limiter.
async fn streams(store: impl Store, life: Duration) -> (String, RateLimiter) {
    let limit = RateLimitLayer::new(store, Quota::in_flight(5))
        .name("streams")
        .key(tollgate::key::global());
    let limiter = limit.limiter().clone();
    let events = get(events).layer(limit).with_state(life);
    let url = serve(Router::new().route("/", events)).await;
    (url.replace("http://", ""), limiter)
}

/// Subscribes, and reads the head of the answer.
fn subscribe(address: &str) -> TcpStream {
    let mut connection = TcpStream::connect(address).expect("a connection");
    let request = format!("GET / HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\r\n");
    connection.write_all(request.as_bytes()).expect("sent");
    let mut status = [0; 12];
    connection.read_exact(&mut status).expect("an answer");
    assert_eq!(&status, b"HTTP/1.1 200");
    connection
}

async fn until_slots(limiter: &RateLimiter, slots: u32) {
    let mut used = u32::MAX;
    for _ in 0..500 {
        used = limiter.peek(Key::global()).await.expect("an answer").used();
        if used == slots {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(used, slots);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_slot_of_a_subscriber_that_reads_nothing_returns_after_the_life_of_its_stream() {
    let server = RedisServer::start();
    let redis = RedisStore::open(&server.url()).expect("a URL");
    let life = Duration::from_secs(1);
    for (address, limiter) in [
        streams(MemoryStore::new(), life).await,
        streams(redis, life).await,
    ] {
        let vanished = subscribe(&address);
        until_slots(&limiter, 1).await;
        until_slots(&limiter, 0).await;
        // Its connection is still there.
        drop(vanished);
        limiter.release().await.expect("an answer");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_subscriber_that_reads_gets_the_end_of_the_body() {
    let (address, limiter) = streams(MemoryStore::new(), Duration::from_millis(300)).await;
    let mut connection = subscribe(&address);
    let read = tokio::task::spawn_blocking(move || {
        let mut body = Vec::new();
        connection.read_to_end(&mut body).map(|_| body)
    });
    let body = read.await.expect("no panic").expect("an orderly end");
    assert!(body.ends_with(b"0\r\n\r\n"));
    until_slots(&limiter, 0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_subscriber_that_leaves_frees_its_slot_at_once() {
    let (address, limiter) = streams(MemoryStore::new(), Duration::from_secs(3_600)).await;
    let connection = subscribe(&address);
    until_slots(&limiter, 1).await;
    drop(connection);
    until_slots(&limiter, 0).await;
}
