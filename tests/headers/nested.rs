//! The headers that a client gets when several limits apply: nested layers, and services with their own
//! limits.

use std::convert::Infallible;
use std::time::Duration;

use crate::support::redis_server::DeadPort;
use axum::body::Bytes;
use axum::http::{HeaderMap, Request, Response, StatusCode};
use http_body_util::Empty;
use tollgate::{
    Algorithm, FailurePolicy, Headers, IetfDraft, MemoryStore, Quota, RateLimitLayer, RedisStore,
    key,
};
use tonic_types::StatusExt as _;
use tower::util::BoxCloneSyncService;
use tower::{Layer, Service, ServiceExt, service_fn};

type Body = Empty<Bytes>;

fn layer(name: &'static str, quota: Quota) -> RateLimitLayer {
    RateLimitLayer::new(MemoryStore::new(), quota)
        .name(name)
        .key(key::global())
        .headers(both())
}

/// Headers that have room for one layer, and lists.
fn both() -> Headers {
    Headers::x_ratelimit().and(Headers::ietf(IetfDraft::Draft11))
}

fn per(limit: u32, seconds: u64) -> Quota {
    Quota::new(limit, Duration::from_secs(seconds))
}

/// A service with this response to every request.
fn answering(
    status: u16,
    headers: &[(&'static str, &'static str)],
) -> BoxCloneSyncService<Request<()>, Response<Body>, Infallible> {
    let headers = headers.to_vec();
    BoxCloneSyncService::new(service_fn(move |_: Request<()>| {
        let answer = Response::builder().status(status);
        let answer = headers
            .iter()
            .fold(answer, |answer, (name, value)| answer.header(*name, *value));
        std::future::ready(Ok(answer.body(Body::new()).unwrap()))
    }))
}

fn call() -> Request<()> {
    Request::post("/")
        .header("content-type", "application/grpc")
        .body(())
        .unwrap()
}

/// What the service answers to this request.
async fn told<S, B>(service: &S, request: Request<()>) -> (StatusCode, HeaderMap)
where
    S: Service<Request<()>, Response = Response<B>, Error = Infallible> + Clone,
{
    let response = service.clone().oneshot(request).await.unwrap();
    (response.status(), response.headers().clone())
}

fn lines<'a>(headers: &'a HeaderMap, name: &str) -> Vec<&'a str> {
    let lines = headers.get_all(name).iter();
    lines.map(|line| line.to_str().unwrap()).collect()
}

/// What is told of nine units, of which eight are left, by a service that sets these headers.
async fn told_of_eight(headers: Headers, of_service: &[(&'static str, &'static str)]) -> HeaderMap {
    let layer = layer("ours", per(9, 60)).headers(headers);
    let service = layer.layer(answering(200, of_service));
    told(&service, Request::new(())).await.1
}

#[tokio::test]
async fn numbers_of_a_service_that_is_tighter_are_kept() {
    for (name, remaining) in [
        ("x-ratelimit-remaining", "8"),
        ("x-ratelimit-remaining", "0"),
        ("ratelimit-remaining", " 3 "),
        ("ratelimit", "limit=5, remaining=3, reset=7"),
    ] {
        let of_service = [(name, remaining), ("x-ratelimit-reset", "1763683200")];
        let headers = told_of_eight(Headers::x_ratelimit(), &of_service).await;
        assert_eq!(lines(&headers, name), [remaining]);
        assert_eq!(lines(&headers, "x-ratelimit-reset"), ["1763683200"]);
        assert_eq!(lines(&headers, "x-ratelimit-limit"), [""; 0]);
    }
}

#[tokio::test]
async fn numbers_of_a_service_that_is_looser_are_replaced() {
    for remaining in ["9", "5000", "many", "-1", ""] {
        let of_service = [("x-ratelimit-remaining", remaining)];
        let headers = told_of_eight(Headers::x_ratelimit(), &of_service).await;
        assert_eq!(lines(&headers, "x-ratelimit-remaining"), ["8"]);
        assert_eq!(lines(&headers, "x-ratelimit-limit"), ["9"]);
    }
    let of_service = [("ratelimit", "limit=90, remaining=80, reset=7")];
    let headers = told_of_eight(Headers::ietf(IetfDraft::Draft07), &of_service).await;
    assert_eq!(
        lines(&headers, "ratelimit"),
        ["limit=9, remaining=8, reset=60"]
    );
}

#[tokio::test]
async fn of_several_layers_around_a_tighter_service_none_replaces_its_numbers() {
    let of_service = [("x-ratelimit-remaining", "3"), ("x-ratelimit-limit", "4")];
    let inner = layer("inner", per(9, 60)).layer(answering(200, &of_service));
    let service = layer("outer", per(7, 60)).layer(inner);
    let (_, headers) = told(&service, Request::new(())).await;
    assert_eq!(lines(&headers, "x-ratelimit-remaining"), ["3"]);
    assert_eq!(lines(&headers, "x-ratelimit-limit"), ["4"]);
}

#[tokio::test]
async fn a_layer_with_slots_is_compared_by_the_rate_that_it_tells() {
    let inner = layer("inner", per(60, 60)).layer(answering(200, &[]));
    let quotas = [per(600, 60), Quota::in_flight(5)];
    let outer = RateLimitLayer::new(MemoryStore::new(), quotas).key(key::global());
    let (_, headers) = told(&outer.layer(inner), Request::new(())).await;
    assert_eq!(lines(&headers, "x-ratelimit-limit"), ["60"]);
    assert_eq!(lines(&headers, "x-ratelimit-remaining"), ["59"]);
}

#[tokio::test]
async fn a_field_of_a_service_stays_one_that_parses() {
    let draft_7 = [
        ("ratelimit-policy", "100;w=60"),
        ("ratelimit", "limit=100, remaining=42, reset=17"),
    ];
    let headers = told_of_eight(both(), &draft_7).await;
    for (name, value) in draft_7 {
        assert_eq!(lines(&headers, name), [value]);
    }
    let draft_11 = [
        ("ratelimit-policy", r#""theirs";q=100;w=60"#),
        ("ratelimit", r#""theirs";r=42;t=17"#),
    ];
    let headers = told_of_eight(both(), &draft_11).await;
    assert_eq!(
        lines(&headers, "ratelimit"),
        [r#""theirs";r=42;t=17"#, r#""ours";r=8;t=60"#]
    );
}

/// A layer whose store is down, which answers 503 and to come again in a second.
fn closed() -> RateLimitLayer {
    let store = RedisStore::open(&DeadPort::new().url()).unwrap();
    RateLimitLayer::new(store, per(9, 60))
        .name("closed")
        .key(key::global())
        .on_failure(FailurePolicy::closed())
}

#[tokio::test]
async fn where_a_store_inside_has_failed_the_longer_wait_is_told_too() {
    let roomy = layer("outer", per(9, 600)).layer(closed().layer(answering(200, &[])));
    let (status, headers) = told(&roomy, Request::new(())).await;
    assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(lines(&headers, "retry-after"), ["1"]);

    let used_up = layer("outer", per(1, 600)).layer(closed().layer(answering(200, &[])));
    let (status, headers) = told(&used_up, Request::new(())).await;
    assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(lines(&headers, "retry-after"), ["600"]);
}

#[tokio::test]
async fn a_call_of_grpc_is_told_the_longer_wait_in_each_header() {
    for (inner, outer, seconds) in [(50, 600, 600), (600, 50, 600)] {
        let inner = layer("inner", per(1, inner)).grpc();
        let inner = inner.layer(answering(200, &[]));
        let service = layer("outer", per(2, outer)).layer(inner);
        let (_, admitted) = told(&service, call()).await;
        assert!(!admitted.contains_key("grpc-status"));
        let (status, headers) = told(&service, call()).await;
        assert_eq!(status, StatusCode::OK);
        assert_eq!(lines(&headers, "retry-after"), [seconds.to_string()]);
        let pushback: u64 = lines(&headers, "grpc-retry-pushback-ms")[0]
            .parse()
            .unwrap();
        assert_eq!(pushback.div_ceil(1_000), seconds, "{headers:?}");
        let status = tonic::Status::from_header_map(&headers).unwrap();
        assert_eq!(status.code(), tonic::Code::ResourceExhausted);
        assert_eq!(status.message(), "rate limit exceeded");
        let delay = status
            .get_details_retry_info()
            .unwrap()
            .retry_delay
            .unwrap();
        assert!(delay.abs_diff(Duration::from_millis(pushback)) < Duration::from_millis(1));
    }
}

#[tokio::test]
async fn a_call_of_grpc_that_no_wait_helps_is_told_none() {
    let inner = layer("inner", per(0, 50)).grpc();
    let inner = inner.layer(answering(200, &[]));
    let service = layer("outer", per(1, 600)).layer(inner);
    let (_, headers) = told(&service, call()).await;
    assert_eq!(lines(&headers, "grpc-retry-pushback-ms"), ["-1"]);
    assert_eq!(lines(&headers, "retry-after"), [""; 0]);
}

#[tokio::test]
async fn of_gcra_outside_the_wait_is_until_all_units_of_the_request_are_back() {
    // A unit is back every 10 s. Two requests of 4 leave 2, so that the third lacks 2.
    let outer = layer("outer", per(10, 100).with_algorithm(Algorithm::Gcra)).cost(|_| 4);
    let service = outer.layer(layer("inner", per(1, 5)).layer(answering(200, &[])));
    assert_eq!(told(&service, Request::new(())).await.0, StatusCode::OK);
    let (status, headers) = told(&service, Request::new(())).await;
    assert_eq!(status, StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(lines(&headers, "retry-after"), ["20"]);
}

#[tokio::test]
async fn a_redirect_that_has_nothing_left_is_to_be_followed() {
    let rate_headers = async |limit, answer| {
        let service = layer("ours", per(limit, 60)).layer(answer);
        let (_, headers) = told(&service, Request::new(())).await;
        let names = headers
            .keys()
            .filter(|name| name.as_str().contains("ratelimit"));
        names.count()
    };
    let location = [("location", "/there")];
    for status in [301, 303, 308] {
        assert_eq!(rate_headers(1, answering(status, &location)).await, 0);
        assert_eq!(rate_headers(2, answering(status, &location)).await, 5);
    }
    // What is not followed.
    assert_eq!(rate_headers(1, answering(304, &[])).await, 5);
    assert_eq!(rate_headers(1, answering(201, &location)).await, 5);
}

#[tokio::test]
async fn a_layer_around_one_that_keeps_quiet_of_a_redirect_tells_of_itself() {
    let redirect = answering(303, &[("location", "/there")]);
    let inner = layer("inner", per(1, 60)).layer(redirect);
    let service = layer("outer", per(9, 60)).layer(inner);
    let (_, headers) = told(&service, Request::new(())).await;
    assert_eq!(lines(&headers, "x-ratelimit-remaining"), ["8"]);
    assert_eq!(lines(&headers, "ratelimit"), [r#""outer";r=8;t=60"#]);
}
