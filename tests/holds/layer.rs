//! Layers whose requests hold units until their response body ends.

use std::convert::Infallible;
use std::time::Duration;

use axum::body::Bytes;
use axum::http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use tollgate::{
    MemoryStore, PermitHandle, Quota, RateLimitLayer, RateLimiter, RejectionReason, Reservation,
    key,
};
use tower::{Layer, ServiceExt, service_fn};

use crate::LEASE;
use crate::support::log;

const DAY: Duration = Duration::from_secs(86_400);

type Body = tollgate::ResponseBody<Full<Bytes>>;

fn layer(cost: u32) -> RateLimitLayer {
    RateLimitLayer::new(MemoryStore::new(), Quota::total(100, DAY))
        .key(key::global())
        .cost(move |_| cost)
        .reserve_lease(LEASE)
        .reserve()
}

/// Sends a request whose handler does this with its reservation.
async fn send(layer: &RateLimitLayer, handle: impl Fn(&Reservation)) -> Response<Body> {
    let handler = service_fn(async |request: Request<()>| {
        handle(request.extensions().get::<Reservation>().unwrap());
        Ok::<_, Infallible>(Response::new(Full::new(Bytes::from("text"))))
    });
    layer
        .layer(handler)
        .oneshot(Request::new(()))
        .await
        .unwrap()
}

async fn used(limiter: &RateLimiter) -> u32 {
    limiter.peek(tollgate::Key::global()).await.unwrap().used()
}

#[tokio::test]
async fn what_a_handler_adds_is_charged_and_the_rest_returns_with_the_body() {
    let layer = layer(40);
    let response = send(&layer, |reservation| {
        reservation.add(3);
        reservation.add(4);
    })
    .await;
    assert_eq!(response.headers()["x-ratelimit-remaining"], "60");
    assert_eq!(used(layer.limiter()).await, 40);
    response.into_body().collect().await.unwrap();
    assert_eq!(used(layer.limiter()).await, 7);
    // A client that disconnects drops the body.
    drop(send(&layer, |reservation| reservation.add(5)).await);
    assert_eq!(used(layer.limiter()).await, 12);
}

#[tokio::test]
async fn a_body_that_ends_without_a_word_is_charged_as_a_whole() {
    let layer = layer(40);
    drop(send(&layer, |_| {}).await);
    assert_eq!(used(layer.limiter()).await, 40);
    // As is a handler that never takes the reservation, and one that panics or is dropped.
    let handler = service_fn(async |_: Request<()>| {
        std::future::pending::<Result<Response<Full<Bytes>>, Infallible>>().await
    });
    let request = layer.layer(handler).oneshot(Request::new(()));
    let given_up = tokio::time::timeout(Duration::from_millis(20), request).await;
    assert!(given_up.is_err());
    assert_eq!(used(layer.limiter()).await, 80);
    let response = send(&layer, |_| {}).await;
    assert_eq!(response.status(), StatusCode::TOO_MANY_REQUESTS);
    assert!(!response.headers().contains_key("retry-after"));
}

#[tokio::test]
async fn a_settlement_returns_the_rest_before_the_body_ends() {
    let layer = layer(90);
    let first = send(&layer, |reservation| {
        reservation.add(2);
        reservation.settle(30);
        // Later ones do nothing.
        reservation.add(9);
        reservation.settle(50);
    })
    .await;
    assert_eq!(used(layer.limiter()).await, 30);
    drop(first);
    assert_eq!(used(layer.limiter()).await, 30);
}

#[tokio::test]
async fn an_overrun_is_charged_in_full() {
    let layer = layer(40);
    drop(send(&layer, |reservation| reservation.add(130)).await);
    assert_eq!(used(layer.limiter()).await, 130);
}

#[tokio::test]
async fn the_response_settles_what_is_held() {
    let layer = RateLimitLayer::new(MemoryStore::new(), Quota::per_day(100))
        .key(key::global())
        .cost(|_| 40)
        .reserve_lease(LEASE)
        .settle(|_, _, size| u32::try_from(size.exact().unwrap()).unwrap());
    let handler = service_fn(async |_: Request<()>| {
        Ok::<_, Infallible>(Response::new(Full::new(Bytes::from("text"))))
    });
    let response = layer
        .layer(handler)
        .oneshot(Request::new(()))
        .await
        .unwrap();
    assert_eq!(used(layer.limiter()).await, 4);
    drop(response);
    assert_eq!(used(layer.limiter()).await, 4);
}

#[tokio::test]
async fn levels_that_are_charged_stand_beside_one_that_is_held() {
    let store = MemoryStore::new();
    let tokens = RateLimiter::new(store.clone(), Quota::per_day(100))
        .name("tokens")
        .reserve_lease(LEASE);
    let layer = RateLimitLayer::new(store, Quota::per_day(9))
        .name("requests")
        .key(key::global())
        .and_level(tollgate::Level::new(tokens.clone(), key::global()).cost(|_: &_| 40))
        .reserve();
    let response = send(&layer, |reservation| {
        reservation.settle_level(&tokens, 6);
    })
    .await;
    assert_eq!((used(layer.limiter()).await, used(&tokens).await), (1, 6));
    drop(response);
    assert_eq!((used(layer.limiter()).await, used(&tokens).await), (1, 6));
}

#[tokio::test]
async fn what_a_handler_adds_to_a_level_is_charged_to_that_one_alone() {
    let store = MemoryStore::new();
    let money = RateLimiter::new(store.clone(), Quota::total(900, DAY))
        .name("money")
        .reserve_lease(LEASE);
    let other = RateLimiter::new(store.clone(), Quota::per_day(9)).name("other");
    let tokens = RateLimitLayer::new(store, Quota::per_day(100))
        .name("tokens")
        .key(key::global())
        .cost(|_| 40)
        .reserve_lease(LEASE)
        .and_level(tollgate::Level::new(money.clone(), key::global()).cost(|_: &_| 400))
        .reserve();
    log::keep();
    let response = send(&tokens, |reservation| {
        for _ in 0..3 {
            reservation.add(2);
            reservation.add_level(&money, 7);
            reservation.add_level(&other, 5);
        }
    })
    .await;
    let text = log::kept().join("\n");
    assert!(
        text.contains("no limiter of this layer has that name"),
        "{text}"
    );
    let both = async || (used(tokens.limiter()).await, used(&money).await);
    assert_eq!(both().await, (40, 400));
    drop(response);
    assert_eq!(both().await, (6, 21));
}

#[tokio::test]
async fn a_permit_that_a_handler_takes_outlives_the_body() {
    let layer = layer(40);
    let (sender, mut taken) = tokio::sync::mpsc::unbounded_channel();
    let handler = service_fn(async |request: Request<()>| {
        let handle = request.extensions().get::<PermitHandle>().unwrap();
        sender.send(handle.take().unwrap()).unwrap();
        Ok::<_, Infallible>(Response::new(Full::new(Bytes::from("text"))))
    });
    drop(
        layer
            .layer(handler)
            .oneshot(Request::new(()))
            .await
            .unwrap(),
    );
    let mut permit = taken.recv().await.unwrap();
    assert_eq!(used(layer.limiter()).await, 40);
    permit.add(11);
    drop(permit);
    assert_eq!(used(layer.limiter()).await, 11);
}

#[tokio::test]
async fn a_refusal_by_held_units_tells_an_estimated_wait() {
    let layer = layer(60);
    let _first = send(&layer, |_| {}).await;
    let second = send(&layer, |_| {}).await;
    assert_eq!(second.status(), StatusCode::TOO_MANY_REQUESTS);
    let rejection = second.extensions().get::<tollgate::Rejection>().unwrap();
    let RejectionReason::Refused(decision) = rejection.reason() else {
        panic!("{rejection:?}");
    };
    assert!(decision.is_wait_estimated());
    let seconds = second.headers()["retry-after"].to_str().unwrap();
    assert!(
        (1..=60).contains(&seconds.parse::<u32>().unwrap()),
        "{seconds}"
    );
}

#[tokio::test]
async fn to_add_where_nothing_is_held_and_to_reserve_a_total_as_a_charge_is_logged_once() {
    log::keep();
    let layer = RateLimitLayer::new(MemoryStore::new(), Quota::total(100, DAY))
        .name("runs")
        .key(key::global())
        .cost(|_| 10)
        .reserve();
    for _ in 0..2 {
        drop(
            send(&layer, |reservation| {
                reservation.add(3);
                reservation.settle(7);
            })
            .await,
        );
    }
    assert_eq!(used(layer.limiter()).await, 14);
    let text = log::kept().join("\n");
    for code in ["tollgate::W025", "tollgate::W026"] {
        assert_eq!(text.matches(code).count(), 1, "{code} in {text}");
    }
}
