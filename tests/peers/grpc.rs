//! A limit, as a gRPC client sees it.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::http;
use tokio::net::TcpListener;
use tollgate::{MemoryStore, Quota, RateLimitLayer, key};
use tonic::body::Body;
use tonic::transport::server::TcpIncoming;
use tonic::transport::{Channel, Server};
use tonic::{Code, Request, Status};
use tonic_health::ServingStatus;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;
use tonic_health::server::HealthReporter;
use tonic_types::StatusExt as _;

/// A channel to a health service with a global limit, and the reporter that sets its health.
async fn limited_to(quota: Quota) -> (Channel, HealthReporter) {
    let limit = RateLimitLayer::new(MemoryStore::new(), quota)
        .key(key::global())
        .grpc();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (reporter, service) = tonic_health::server::health_reporter();
    let server = Server::builder().layer(limit).add_service(service);
    tokio::spawn(server.serve_with_incoming(TcpIncoming::from(listener)));
    let channel = Channel::from_shared(format!("http://{address}")).unwrap();
    (channel.connect().await.unwrap(), reporter)
}

fn question() -> Request<HealthCheckRequest> {
    Request::new(HealthCheckRequest::default())
}

/// The wait in a refusal: as metadata in milliseconds, and as a status detail.
fn told(refusal: &Status) -> (u64, Duration) {
    let pushback = refusal.metadata().get("grpc-retry-pushback-ms");
    let pushback = pushback.unwrap_or_else(|| panic!("{refusal:?}"));
    let pushback = pushback.to_str().unwrap().parse().unwrap();
    let info = refusal.get_details_retry_info();
    let delay = info.and_then(|info| info.retry_delay);
    (pushback, delay.unwrap_or_else(|| panic!("{refusal:?}")))
}

#[tokio::test]
async fn a_refused_call_is_told_how_long_to_wait_and_is_then_admitted() {
    let (channel, _) = limited_to(Quota::new(1, Duration::from_millis(1_500))).await;
    let mut client = HealthClient::new(channel);
    let admitted = client.check(question()).await.unwrap();
    assert_eq!(
        admitted.metadata().get("x-ratelimit-remaining").unwrap(),
        "0"
    );

    let mut answer = client.check(question()).await;
    // A machine that stood still for a whole window asks again.
    while answer.is_ok() {
        answer = client.check(question()).await;
    }
    let refusal = answer.unwrap_err();
    assert_eq!(refusal.code(), Code::ResourceExhausted, "{refusal:?}");
    let (pushback, delay) = told(&refusal);
    assert!((1..=1_500).contains(&pushback), "{refusal:?}");
    let pushback = Duration::from_millis(pushback);
    assert!(
        pushback.abs_diff(delay) < Duration::from_millis(1),
        "{refusal:?}"
    );

    tokio::time::sleep(delay).await;
    client.check(question()).await.unwrap();
}

#[tokio::test]
async fn a_stream_is_one_call_and_is_refused_before_it_begins() {
    let (channel, reporter) = limited_to(Quota::per_hour(1)).await;
    let mut client = HealthClient::new(channel);
    let mut stream = client.watch(question()).await.unwrap().into_inner();
    assert!(stream.message().await.unwrap().is_some());
    let refusal = client.watch(question()).await.unwrap_err();
    assert_eq!(refusal.code(), Code::ResourceExhausted, "{refusal:?}");
    let (pushback, _) = told(&refusal);
    assert!((3_500_000..=3_600_000).contains(&pushback), "{refusal:?}");
    // The one that was admitted goes on, and its messages cost nothing.
    for status in [ServingStatus::NotServing, ServingStatus::Serving] {
        reporter.set_service_status("", status).await;
        assert!(stream.message().await.unwrap().is_some());
    }
}

/// The status that a client without gRPC would look at, and whether the stream ends with the
/// headers.
#[tokio::test]
async fn a_refusal_is_an_http_200_of_trailers_only() {
    type Head = (http::StatusCode, http::HeaderMap, bool);
    let heads: Arc<Mutex<Vec<Head>>> = Arc::default();
    let seen = Arc::clone(&heads);
    let (channel, _) = limited_to(Quota::per_hour(1)).await;
    let channel = tower::ServiceBuilder::new()
        .map_response(move |response: http::Response<Body>| {
            use http_body::Body as _;
            let ends = response.body().is_end_stream();
            let head = (response.status(), response.headers().clone(), ends);
            seen.lock().unwrap().push(head);
            response
        })
        .service(channel);
    let mut client = HealthClient::new(channel);
    client.check(question()).await.unwrap();
    client.check(question()).await.unwrap_err();
    let heads = heads.lock().unwrap();
    let [(_, _, admitted_ends), (status, headers, ends)] = heads.as_slice() else {
        panic!("{heads:?}");
    };
    assert!(!admitted_ends);
    assert_eq!(*status, 200, "{headers:?}");
    assert!(ends, "{headers:?}");
    assert_eq!(headers["content-type"], "application/grpc");
    assert_eq!(headers["grpc-status"], "8");
}
