//! A limit of each process in memory, around the limit of all processes in Redis.

use std::time::Duration;

use reqwest::Client;

use crate::support::redis_server::RedisServer;
use crate::support::served::serve;

// page: shown
use axum::{Router, routing::get};
use tollgate::{FailurePolicy, Headers, MemoryStore, Quota, RateLimitLayer, RedisStore, key};

fn app(redis: RedisStore) -> Router {
    // What this process can bear. It asks no server, so no outage lifts it.
    let process = RateLimitLayer::new(MemoryStore::new(), Quota::per_minute(600))
        .name("process")
        .key(key::global())
        .headers(Headers::none());
    // What a customer may use, over all processes. In an outage, nobody counts it.
    let customer = RateLimitLayer::new(redis, Quota::per_minute(100))
        .name("customer")
        .key(key::header("x-api-key"))
        .on_failure(FailurePolicy::open());
    Router::new()
        .route("/", get(|| async { "ok" }))
        .layer(customer)
        .layer(process) // the outermost: it refuses before Redis is asked
}
// page: end

/// Sends requests of a customer. Returns how many were served.
async fn served(client: &Client, url: &str, customer: &str, requests: usize) -> usize {
    let mut served = 0;
    for _ in 0..requests {
        let request = client.get(url).header("x-api-key", customer);
        let status = request.send().await.expect("an answer").status();
        assert!(status == 200 || status == 429, "{status}");
        served += usize::from(status == 200);
    }
    served
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_redis_the_limit_of_the_process_still_holds() {
    let mut server = RedisServer::start();
    let redis = RedisStore::open(&server.url()).expect("a URL");
    let redis = redis.deadline(Duration::from_secs(30));
    let url = serve(app(redis)).await;
    let client = Client::new();
    assert_eq!(served(&client, &url, "ada", 120).await, 100);

    // The process has admitted 120. It admits 480 more, whoever asks. For Ada, it may remember the refusal of Redis.
    server.kill();
    assert_eq!(served(&client, &url, "bob", 400).await, 400);
    assert_eq!(served(&client, &url, "grace", 100).await, 80);
}
