//! A layer that is switched off.

use std::convert::Infallible;

use axum::body::Bytes;
use axum::http::{Request, Response};
use http_body_util::Full;
use tollgate::store::TestStore;
use tollgate::{DecisionView, Key, Level, Quota, RateLimitLayer, RateLimiter, Reservation, key};
use tower::{Layer, ServiceExt, service_fn};

use crate::{ask, by_path, status, to};

#[tokio::test]
async fn a_layer_that_is_off_reads_no_key_and_asks_no_store() {
    let store = TestStore::new();
    let tenant = RateLimiter::new(store.clone(), Quota::per_hour(0)).name("tenant");
    let off = RateLimitLayer::new(store.clone(), Quota::per_hour(0))
        .key(key::from_fn(|_| -> Key { panic!("the key was asked") }))
        .cost(|_| panic!("the cost was asked"))
        .skip(|_| panic!("skip was asked"))
        .quotas_for(|_, _| async { panic!("the plan was asked") as Option<Quota> })
        .settle(|_, _, _| panic!("the cost was settled"))
        .and_level(Level::new(tenant, key::header("x-tenant-id")))
        .disable();
    for _ in 0..3 {
        let response = ask(&off, "/ada").await;
        assert_eq!(response.status(), 200);
        assert!(response.headers().is_empty(), "{:?}", response.headers());
    }
    assert!(store.take_checks().is_empty());
}

#[tokio::test]
async fn the_layer_that_is_not_switched_off_still_limits() {
    let on = RateLimitLayer::new(TestStore::new(), Quota::per_hour(0)).key(by_path());
    assert_eq!(status(&on.clone().disable(), "/ada").await, 200);
    assert_eq!(status(&on, "/ada").await, 429);
}

#[tokio::test]
async fn a_handler_still_finds_a_reservation_without_a_charge() {
    let off = RateLimitLayer::new(TestStore::new(), Quota::per_hour(5))
        .reserve()
        .disable();
    let handler = service_fn(async |request: Request<()>| {
        assert!(request.extensions().get::<DecisionView>().is_none());
        let reservation = request.extensions().get::<Reservation>();
        reservation.expect("a reservation").settle(3);
        Ok::<_, Infallible>(Response::new(Full::<Bytes>::from("ok")))
    });
    let response = off.layer(handler).oneshot(to("/ada")).await.unwrap();
    assert_eq!(response.status(), 200);
}
