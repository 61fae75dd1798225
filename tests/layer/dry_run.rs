//! `dry_run`: counts and reports every request, and rejects none.

use std::convert::Infallible;
use std::future::{Ready, ready};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::Bytes;
use axum::http::{Request, Response};
use http_body_util::Full;
use tollgate::{
    DecisionView, FailurePolicy, MemoryStore, Quota, RateLimitLayer, RateLimiter, RejectionReason,
    Reservation, Store, WouldReject, key,
};
use tower::{Layer, Service, ServiceExt};

use crate::support::calls::stores;
use crate::support::fakes::moody::Moody;
use crate::support::log;
use crate::support::redis_server::RedisServer;
use crate::{ask, by_path, to, used};

fn dry(store: impl Store) -> RateLimitLayer {
    let layer = RateLimitLayer::new(store, Quota::per_hour(2)).name("search");
    layer.key(by_path()).dry_run()
}

fn would_reject(response: &Response<()>) -> Option<&WouldReject> {
    response.extensions().get::<WouldReject>()
}

#[tokio::test]
async fn nothing_is_refused_and_all_is_counted_and_nobody_is_told() {
    let server = RedisServer::start();
    for store in stores(&server) {
        let limiter = RateLimiter::new(Arc::clone(&store), Quota::per_hour(2)).name("search");
        let layer = dry(store);
        for request in 1..=5 {
            let response = ask(&layer, "/ada").await;
            assert_eq!(response.status(), 200);
            assert!(response.headers().is_empty(), "{:?}", response.headers());
            assert_eq!(would_reject(&response).is_some(), request > 2);
            assert_eq!(used(&limiter, "/ada").await, request.min(2));
        }
        let spared = ask(&layer, "/ada").await;
        let rejection = would_reject(&spared).unwrap().rejection();
        assert_eq!(
            (rejection.limiter(), rejection.status().as_u16()),
            ("search", 429)
        );
        assert!(rejection.retry_after().is_some());
        assert!(matches!(rejection.reason(), RejectionReason::Refused(_)));
    }
}

#[tokio::test]
async fn nobody_waits_for_a_turn_that_he_need_not_have() {
    let layer = dry(MemoryStore::new()).wait_up_to(Duration::MAX);
    for would_reject_it in [false, false, true] {
        let response = tokio::time::timeout(Duration::from_secs(60), ask(&layer, "/ada")).await;
        assert_eq!(would_reject(&response.unwrap()).is_some(), would_reject_it);
    }
}

/// What a handler finds in its request.
#[derive(Default)]
struct Found {
    view: Option<DecisionView>,
    reservation: Option<Reservation>,
}

/// Sends a request to a handler behind the layers of `wrap`, and returns the extension that the handler sees.
async fn found_behind<S>(wrap: impl FnOnce(Handler) -> S) -> Found
where
    S: Service<Request<()>, Error = Infallible>,
{
    let found = Arc::new(Mutex::new(Found::default()));
    wrap(Handler(Arc::clone(&found)))
        .oneshot(to("/ada"))
        .await
        .unwrap();
    std::mem::take(&mut found.lock().unwrap())
}

#[derive(Clone)]
struct Handler(Arc<Mutex<Found>>);

impl Service<Request<()>> for Handler {
    type Response = Response<Full<Bytes>>;
    type Error = Infallible;
    type Future = Ready<Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, req: Request<()>) -> Self::Future {
        let extensions = req.extensions();
        *self.0.lock().unwrap() = Found {
            view: extensions.get().cloned(),
            reservation: extensions.get().cloned(),
        };
        ready(Ok(Response::new(Full::from("ok"))))
    }
}

#[tokio::test]
async fn handlers_find_the_decision_of_what_would_be_refused() {
    let layer = dry(MemoryStore::new());
    for allowed in [true, true, false] {
        let found = found_behind(|handler| layer.layer(handler)).await;
        let view = found.view.unwrap();
        assert_eq!((view.is_allowed(), view.limit()), (allowed, 2));
    }
}

#[tokio::test]
async fn what_a_layer_outside_decided_is_found_too() {
    let site = RateLimitLayer::new(MemoryStore::new(), Quota::per_hour(9)).key(by_path());
    let layer = dry(MemoryStore::new());
    for left in [8, 7, 6] {
        let found = found_behind(|handler| site.layer(layer.layer(handler))).await;
        let outer = found.view.unwrap().outer().expect("the site's").clone();
        assert_eq!((outer.limit(), outer.remaining()), (9, left));
    }
}

#[tokio::test]
async fn who_settles_has_a_reservation_though_nothing_was_charged() {
    let limiter = RateLimiter::new(MemoryStore::new(), Quota::per_hour(2)).name("search");
    let layer = RateLimitLayer::from(limiter.clone())
        .key(by_path())
        .dry_run()
        .reserve();
    for (used_before, used_after) in [(1, 0), (1, 9), (9, 9), (9, 9)] {
        let found = found_behind(|handler| layer.layer(handler)).await;
        assert_eq!(used(&limiter, "/ada").await, used_before);
        let reservation = found.reservation.expect("a reservation");
        // The first gives back what it has cost, the second is charged more than there is room for. The others were charged
        // nothing.
        reservation.settle(if used_after == 0 { 0 } else { 9 });
        assert_eq!(used(&limiter, "/ada").await, used_after);
    }
    for layer in [
        layer.clone().key(key::header("x-api-key")),
        dry(Moody::unavailable())
            .on_failure(FailurePolicy::closed())
            .reserve(),
    ] {
        let found = found_behind(|handler| layer.layer(handler)).await;
        let reservation = found.reservation.expect("a reservation");
        assert_eq!(reservation.decision().limit(), u32::MAX);
        reservation.settle(9);
    }
}

#[tokio::test]
async fn a_request_without_a_key_passes() {
    let layer = dry(MemoryStore::new()).key(key::header("x-api-key"));
    let response = ask(&layer, "/ada").await;
    assert_eq!(response.status(), 200);
    let rejection = would_reject(&response).unwrap().rejection();
    assert!(matches!(rejection.reason(), RejectionReason::NoKey(_)));
    assert_eq!(rejection.status(), 400);
}

#[tokio::test]
async fn what_a_failed_store_would_have_refused_passes() {
    let layer = dry(Moody::unavailable()).on_failure(FailurePolicy::closed());
    let response = ask(&layer, "/ada").await;
    assert_eq!(response.status(), 200);
    let rejection = would_reject(&response).unwrap().rejection();
    assert!(matches!(rejection.reason(), RejectionReason::Failed(_)));
    assert_eq!(rejection.status(), 503);
}

#[tokio::test]
async fn the_log_says_now_and_then_what_would_be_refused() {
    let layer = dry(MemoryStore::new());
    log::keep();
    for _ in 0..2 {
        let _ = ask(&layer, "/ada").await;
    }
    assert!(log::kept().is_empty());
    for _ in 0..20 {
        let _ = ask(&layer, "/ada").await;
    }
    let log = log::kept();
    assert_eq!(log.len(), 1, "{log:?}");
    for text in ["INFO", "search", "dry run", "count=1"] {
        assert!(log[0].contains(text), "{log:?}");
    }
}
