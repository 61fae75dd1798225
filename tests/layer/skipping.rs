//! Which requests are counted, rejections with other statuses, and nested layers.

use std::convert::Infallible;
use std::net::IpAddr;
use std::time::Duration;

use axum::body::Bytes;
use axum::http::{Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use tollgate::key::PeerAddr;
use tollgate::{
    DecisionView, FailurePolicy, Headers, IetfDraft, MemoryStore, Quota, RateLimitLayer,
    RateLimiter, Rejection, RejectionReason, key,
};
use tower::{Layer, ServiceExt, service_fn};

use crate::support::calls::ok;
use crate::support::fakes::moody::Moody;
use crate::{ask, by_path, status, to, told};

fn layer(limit: u32) -> RateLimitLayer {
    RateLimitLayer::new(MemoryStore::new(), Quota::per_hour(limit)).key(key::global())
}

#[tokio::test]
async fn what_is_skipped_is_neither_counted_nor_told() {
    let layer = layer(1).skip(|parts| parts.uri.path() == "/healthz");
    for _ in 0..3 {
        let response = ask(&layer, "/healthz").await;
        assert_eq!(response.status(), 200);
        assert!(response.headers().is_empty(), "{:?}", response.headers());
    }
    assert_eq!(status(&layer, "/").await, 200);
    assert_eq!(status(&layer, "/").await, 429);
    assert_eq!(status(&layer, "/healthz").await, 200);
}

#[tokio::test]
async fn what_is_skipped_needs_no_key_no_plan_and_no_store() {
    let layer = RateLimitLayer::new(Moody::unavailable(), Quota::per_hour(0))
        .key(key::header("x-api-key"))
        .cost(|_| panic!("the cost was asked"))
        .quotas_for(|_, _| async { panic!("the plan was asked") as Option<Quota> })
        .skip(|_| true);
    let handler = service_fn(async |request: Request<()>| {
        assert!(request.extensions().get::<DecisionView>().is_none());
        Ok::<_, Infallible>(Response::new(Full::<Bytes>::from("ok")))
    });
    let response = layer.layer(handler).oneshot(to("/")).await.unwrap();
    assert_eq!(response.status(), 200);
}

/// A request that a proxy in 10.0.0.0/8 has forwarded for a client, or that claims so.
fn forwarded(peer: [u8; 4], client: &str) -> Request<()> {
    let request = Request::get("/").header("x-forwarded-for", client);
    let request = request.extension(PeerAddr((peer, 5_000).into()));
    request.body(()).unwrap()
}

#[tokio::test]
async fn the_address_of_a_client_decides_what_is_skipped_what_it_costs_and_who_is_counted() {
    let office = IpAddr::from([203, 0, 113, 7]);
    let partner = IpAddr::from([198, 51, 100, 7]);
    let skipping = key::client_ip().behind("10.0.0.0/8").checked().unwrap();
    let costing = skipping.clone();
    let counting = skipping.clone();
    let limiter = RateLimiter::new(MemoryStore::new(), Quota::per_hour(10));
    let layer = RateLimitLayer::from(limiter.clone())
        .key(key::from_fn(move |parts| {
            let IpAddr::V4(client) = counting.address(parts).ok()? else {
                return None;
            };
            let [a, b, c, _] = client.octets();
            Some(format!("{a}.{b}.{c}"))
        }))
        .skip(move |parts| skipping.address(parts) == Ok(office))
        .cost(move |parts| match costing.address(parts) {
            Ok(address) if address == partner => 1,
            _ => 5,
        });
    let service = layer.layer(service_fn(ok::<()>));
    let proxy = [10, 0, 0, 1];
    for (peer, client, status, network, used) in [
        (proxy, "203.0.113.7", 200, "203.0.113", 0),
        (proxy, "198.51.100.7", 200, "198.51.100", 1),
        (proxy, "198.51.100.8", 200, "198.51.100", 6),
        (proxy, "198.51.100.8", 429, "198.51.100", 6),
        // A client that claims to be the office, and one that claims to be the partner.
        ([192, 0, 2, 1], "203.0.113.7", 200, "192.0.2", 5),
        ([192, 0, 2, 1], "198.51.100.7", 200, "192.0.2", 10),
        (proxy, "203.0.113.7, 192.0.2.2", 429, "192.0.2", 10),
    ] {
        let request = forwarded(peer, client);
        let response = service.clone().oneshot(request).await.unwrap();
        assert_eq!(response.status(), status, "{peer:?} {client}");
        assert_eq!(crate::used(&limiter, network).await, used, "{network}");
    }
    // Who is behind the proxy is not known: no key, and no exemption.
    let mut unnamed = forwarded(proxy, "");
    unnamed.headers_mut().clear();
    let response = service.oneshot(unnamed).await.unwrap();
    assert_eq!(response.status(), 400);
}

#[tokio::test]
async fn preflights_can_be_skipped_by_their_method() {
    let layer = layer(0).skip(|parts| parts.method == Method::OPTIONS);
    let mut preflight = to("/");
    *preflight.method_mut() = Method::OPTIONS;
    let response = layer
        .layer(service_fn(ok::<()>))
        .oneshot(preflight)
        .await
        .unwrap();
    assert_eq!(response.status(), 200);
}

#[tokio::test]
async fn a_refusal_has_the_status_that_was_asked_for_and_other_failures_their_own() {
    let layer = layer(0).status(StatusCode::SERVICE_UNAVAILABLE);
    let refused = ask(&layer, "/").await;
    assert_eq!(refused.status(), 503);
    let rejection = refused.extensions().get::<Rejection>().unwrap();
    assert_eq!(rejection.status(), 503);
    assert_eq!(status(&layer.key(key::header("x-api-key")), "/").await, 400);
}

/// A refusal with its body.
async fn refused(layer: RateLimitLayer) -> (Response<()>, Bytes) {
    let layer = layer.name("search");
    assert_eq!(status(&layer, "/").await, 200);
    let service = layer.layer(service_fn(ok::<()>));
    let (parts, body) = service.oneshot(to("/")).await.unwrap().into_parts();
    let body = body.collect().await.unwrap().to_bytes();
    (Response::from_parts(parts, ()), body)
}

#[tokio::test]
async fn a_responder_writes_the_refusal_and_the_layer_adds_what_is_missing() {
    let as_static = layer(1).responder(|_| Response::new("slow down"));
    let as_string = layer(1)
        .responder(|rejection| Response::new(format!("slow down, {}", rejection.limiter())));
    let as_bytes = layer(1).responder(|_| Response::new(Bytes::from_static(b"slow down")));
    for (layer, text) in [
        (as_static, "slow down"),
        (as_string, "slow down, search"),
        (as_bytes, "slow down"),
    ] {
        let (response, body) = refused(layer).await;
        assert_eq!(body, text);
        assert_eq!(response.status(), 429);
        assert_eq!(told(&response, "retry-after"), "3600");
        assert_eq!(told(&response, "cache-control"), "no-store");
        assert_eq!(told(&response, "x-ratelimit-limit"), "1");
        let rejection = response.extensions().get::<Rejection>().unwrap();
        assert!(matches!(rejection.reason(), RejectionReason::Refused(_)));
    }
}

#[tokio::test]
async fn what_a_responder_says_itself_is_not_overwritten() {
    let own = layer(1)
        .status(StatusCode::FORBIDDEN)
        .responder(|rejection| {
            let response = Response::builder()
                .status(rejection.status())
                .header("retry-after", "7")
                .header("cache-control", "private");
            response.body("slow down").unwrap()
        });
    let (response, _) = refused(own).await;
    assert_eq!(response.status(), 403);
    assert_eq!(told(&response, "retry-after"), "7");
    assert_eq!(told(&response, "cache-control"), "private");
}

#[tokio::test]
async fn a_responder_answers_for_missing_keys_and_failed_stores_too() {
    let reason = |rejection: &Rejection| match rejection.reason() {
        RejectionReason::NoKey(_) => "no key",
        RejectionReason::Failed(_) => "failed",
        _ => "limited",
    };
    let keyless = layer(1).key(key::header("x-api-key"));
    let failed = RateLimitLayer::new(Moody::unavailable(), Quota::per_hour(1)).key(key::global());
    let failed = failed.on_failure(FailurePolicy::closed());
    for (layer, text) in [
        (layer(0), "limited"),
        (keyless, "no key"),
        (failed, "failed"),
    ] {
        let layer = layer.responder(move |rejection| Response::new(reason(rejection)));
        let service = layer.layer(service_fn(ok::<()>));
        let response = service.oneshot(to("/")).await.unwrap();
        assert_eq!(
            response.into_body().collect().await.unwrap().to_bytes(),
            text
        );
    }
}

#[tokio::test]
async fn a_handler_behind_several_layers_finds_what_each_decided() {
    let (inner, middle, outer) = (layer(5).name("a"), layer(6).name("b"), layer(7).name("c"));
    let handler = service_fn(async |request: Request<()>| {
        let view = request.extensions().get::<DecisionView>();
        let limits: Vec<_> = std::iter::successors(view, |view| view.outer())
            .map(|view| view.limit().to_string())
            .collect();
        Ok::<_, Infallible>(Response::new(Full::<Bytes>::from(limits.join(" "))))
    });
    let service = outer.layer(middle.layer(inner.layer(handler)));
    for _ in 0..3 {
        let response = service.clone().oneshot(to("/")).await.unwrap();
        let body = response.into_body().collect().await.unwrap().to_bytes();
        assert_eq!(body, "5 6 7");
    }
}

/// Two requests through two layers of so many units in so many seconds: what the second is told.
async fn told_through(inner: (u32, u64), outer: (u32, u64)) -> [String; 4] {
    let layer = |name: &str, (limit, seconds)| {
        let quota = Quota::new(limit, Duration::from_secs(seconds));
        RateLimitLayer::new(MemoryStore::new(), quota)
            .name(name)
            .key(by_path())
    };
    let service = layer("outer", outer).layer(layer("inner", inner).layer(service_fn(ok::<()>)));
    let _ = service.clone().oneshot(to("/ada")).await.unwrap();
    let response = service.oneshot(to("/ada")).await.unwrap();
    let status = response.status().as_u16().to_string();
    let of = |name| told(&response, name).to_owned();
    [
        status,
        of("x-ratelimit-limit"),
        of("x-ratelimit-remaining"),
        of("retry-after"),
    ]
}

#[tokio::test]
async fn of_nested_layers_the_tighter_one_is_told_and_the_longer_wait() {
    assert_eq!(told_through((5, 60), (9, 60)).await, ["200", "5", "3", "-"]);
    assert_eq!(told_through((9, 60), (5, 60)).await, ["200", "5", "3", "-"]);
    // Refused outside, the layer inside is not asked.
    assert_eq!(
        told_through((9, 60), (1, 50)).await,
        ["429", "1", "0", "50"]
    );
    // Refused inside, and there is room outside, or none for a shorter time, or for a longer one.
    assert_eq!(
        told_through((1, 50), (9, 600)).await,
        ["429", "1", "0", "50"]
    );
    assert_eq!(
        told_through((1, 50), (2, 20)).await,
        ["429", "1", "0", "50"]
    );
    assert_eq!(
        told_through((1, 50), (2, 600)).await,
        ["429", "1", "0", "600"]
    );
}

#[tokio::test]
async fn a_layer_that_tells_nothing_does_not_keep_those_outside_from_telling() {
    let quiet = layer(2).name("quiet").headers(Headers::none());
    let open = RateLimitLayer::new(Moody::unavailable(), Quota::per_hour(2)).key(key::global());
    let open = open.name("open").on_failure(FailurePolicy::open());
    for inner in [quiet, open] {
        let service = layer(9).layer(inner.layer(service_fn(ok::<()>)));
        let response = service.oneshot(to("/")).await.unwrap();
        assert_eq!(told(&response, "x-ratelimit-limit"), "9");
        assert_eq!(told(&response, "x-ratelimit-remaining"), "8");
    }
}

#[tokio::test]
async fn a_layer_that_tells_in_lists_does_not_keep_those_outside_from_telling() {
    let listed = layer(2).name("listed");
    let listed = listed.headers(Headers::ietf(IetfDraft::Draft11));
    let outer = layer(9).headers(Headers::default().and(Headers::ietf(IetfDraft::Draft11)));
    let service = outer.layer(listed.layer(service_fn(ok::<()>)));
    let response = service.oneshot(to("/")).await.unwrap();
    assert_eq!(told(&response, "x-ratelimit-limit"), "9");
    let lines = response.headers().get_all("ratelimit").iter();
    assert_eq!(lines.count(), 2);
}
