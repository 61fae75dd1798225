//! grpcio waits for the pushback time of a refusal, if its channel has a retry policy.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use axum::http;
use tokio::net::TcpListener;
use tollgate::{MemoryStore, Quota, RateLimitLayer, key};
use tonic::transport::Server;
use tonic::transport::server::TcpIncoming;
use tower::ServiceBuilder;

use crate::python;

/// A service behind a limit of calls by everybody, and how many calls it was sent.
async fn limited_to(quota: Quota) -> (SocketAddr, Arc<AtomicU32>) {
    let calls = Arc::new(AtomicU32::new(0));
    let seen = Arc::clone(&calls);
    let limit = RateLimitLayer::new(MemoryStore::new(), quota)
        .key(key::global())
        .grpc();
    let layers = ServiceBuilder::new()
        .map_request(move |request: http::Request<_>| {
            seen.fetch_add(1, Ordering::Relaxed);
            request
        })
        .layer(limit)
        .into_inner();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (_, service) = tonic_health::server::health_reporter();
    let server = Server::builder().layer(layers).add_service(service);
    tokio::spawn(server.serve_with_incoming(TcpIncoming::from(listener)));
    (address, calls)
}

/// The code of each of two calls, and how long it took.
async fn call_twice(address: SocketAddr, channel: &str) -> [(String, f64); 2] {
    let answers = python::run("pushback.py", &[&address.to_string(), channel]).await;
    [0, 1].map(|call| {
        let answer = &answers[call];
        let code = answer["code"].as_str().expect("a code").to_owned();
        (code, answer["seconds"].as_f64().expect("a time"))
    })
}

#[tokio::test]
async fn grpcio_with_a_retry_policy_waits_for_the_pushback_and_is_admitted() {
    let (address, calls) = limited_to(Quota::new(1, Duration::from_millis(2_500))).await;
    let [(first, _), (second, seconds)] = call_twice(address, "policy").await;
    assert_eq!((first.as_str(), second.as_str()), ("OK", "OK"));
    assert!((2.0..6.0).contains(&seconds), "{seconds}");
    // One was admitted, one refused, and the next one admitted.
    assert_eq!(calls.load(Ordering::Relaxed), 3);
}

#[tokio::test]
async fn grpcio_without_a_retry_policy_does_not_call_again() {
    let (address, calls) = limited_to(Quota::per_hour(1)).await;
    let [_, (second, _)] = call_twice(address, "plain").await;
    assert_eq!(second, "RESOURCE_EXHAUSTED");
    assert_eq!(calls.load(Ordering::Relaxed), 2);
}

#[tokio::test]
async fn grpcio_does_not_call_again_where_no_wait_helps() {
    let (address, calls) = limited_to(Quota::per_hour(0)).await;
    let [(first, _), (second, _)] = call_twice(address, "policy").await;
    assert_eq!([first, second], ["RESOURCE_EXHAUSTED"; 2]);
    assert_eq!(calls.load(Ordering::Relaxed), 2);
}
