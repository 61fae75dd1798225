//! A gRPC service with a limit, and a client that waits and retries: `cargo run --example grpc --features grpc`
//!
//! Two limits apply in one check: one per address, and one per API key in the metadata. The limit per address
//! matters because this service does not verify API keys: a client could send a new one with each call. A refused
//! client gets `RESOURCE_EXHAUSTED` with the wait, sleeps for that long, and is admitted.

use std::error::Error;
use std::time::Duration;

use tokio::net::TcpListener;
use tollgate::{MemoryStore, Quota, RateLimitLayer, RateLimiter, key};
use tonic::transport::server::TcpIncoming;
use tonic::transport::{Channel, Server};
use tonic::{Code, Request};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;
use tonic_types::StatusExt;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    tokio::spawn(serve(listener));

    let channel = Channel::from_shared(format!("http://{address}"))?;
    let mut client = HealthClient::new(channel.connect().await?);
    let mut admitted = 0;
    while admitted < 4 {
        let mut request = Request::new(HealthCheckRequest::default());
        request.metadata_mut().insert("x-api-key", "ada".parse()?);
        match client.check(request).await {
            Ok(response) => {
                admitted += 1;
                let left = response.metadata().get("x-ratelimit-remaining");
                println!("admitted, {} left", left.ok_or("no limit")?.to_str()?);
            }
            Err(status) if status.code() == Code::ResourceExhausted => {
                let info = status.get_details_retry_info();
                let wait = info.and_then(|info| info.retry_delay).ok_or(status)?;
                println!("refused, retry in {wait:?}");
                tokio::time::sleep(wait).await;
            }
            Err(status) => return Err(status.into()),
        }
    }
    Ok(())
}

/// Serves a health service. In any 2 seconds it answers 3 calls per API key and 100 calls per address.
async fn serve(listener: TcpListener) -> Result<(), tonic::transport::Error> {
    let store = MemoryStore::new();
    let in_two_seconds = |limit| Quota::new(limit, Duration::from_secs(2));
    let by_api_key = RateLimiter::new(store.clone(), in_two_seconds(3)).name("health");
    let limit = RateLimitLayer::new(store, in_two_seconds(100))
        .name("callers")
        .and(by_api_key, key::header("x-api-key").or(key::peer_ip()))
        // Without this, the client would read the 429 as `UNAVAILABLE`.
        .grpc();
    let (_, health) = tonic_health::server::health_reporter();
    Server::builder()
        .layer(limit)
        .add_service(health)
        .serve_with_incoming(TcpIncoming::from(listener))
        .await
}
