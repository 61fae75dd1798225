//! `.settle(..)` and `Reservation`: the charge becomes the actual cost of the request.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::{Arc, Mutex, mpsc};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, Bytes, HttpBody};
use axum::http::{Method, Request, Response, StatusCode};
use axum::{Router, routing::get};
use http_body_util::{BodyExt, Full};
use tollgate::store::TestClock;
use tollgate::store::protocol::{CircuitBreaker, StoreFuture};
use tollgate::{
    Algorithm, Error, ErrorKind, FailurePolicy, MemoryStore, Quota, RateLimitLayer, RateLimiter,
    RedisStore, Rejection, Reservation, Store,
};
use tower::{Layer, ServiceBuilder, ServiceExt, service_fn};
use tower_http::compression::CompressionLayer;

use crate::support::calls::{ok, stores};
use crate::support::fakes::fake_store::FakeStore;
use crate::support::fakes::moody::{Mood, Moody};
use crate::support::log;
use crate::support::node::Node;
use crate::support::redis_server::RedisServer;
use crate::support::served::serve;
use crate::support::store_on;
use crate::support::test_time::TestTime;
use crate::support::until;
use crate::{algorithms, by_path, counts, to, told, used};

const LIMIT: u32 = 100;
const COST: u32 = 10;

fn limiter(store: impl Store) -> RateLimiter {
    RateLimiter::new(store, Quota::per_hour(LIMIT))
}

/// A layer that charges 10 of 100 units, and its limiter.
fn layer(store: impl Store) -> (RateLimitLayer, RateLimiter) {
    let limiter = limiter(store);
    let layer = RateLimitLayer::from(limiter.clone());
    (layer.key(by_path()).cost(|_| COST), limiter)
}

/// `downloads` of the docs of `settle`: 64 kB reserved, which stay charged where the size is unknown.
fn by_the_kilobyte(limit: u32) -> (RateLimitLayer, RateLimiter) {
    let limiter = RateLimiter::new(MemoryStore::new(), Quota::per_hour(limit));
    let layer = RateLimitLayer::from(limiter.clone())
        .key(by_path())
        .cost(|_| 64)
        .settle(|decision, _, size| match size.exact() {
            Some(bytes) => u32::try_from(bytes.div_ceil(1_024).max(1)).unwrap_or(u32::MAX),
            None => decision.cost(),
        });
    (layer, limiter)
}

/// Sends a request through a layer to a service that answers with this status.
async fn answered(layer: &RateLimitLayer, status: u16) -> Response<()> {
    let service = layer.layer(service_fn(async |_: Request<()>| {
        let response = Response::builder().status(status);
        Ok::<_, Infallible>(response.body(Full::<Bytes>::from("ok")).unwrap())
    }));
    service.oneshot(to("/ada")).await.unwrap().map(drop)
}

/// Sends a request through a layer to a handler that is given the reservation.
async fn handled(layer: &RateLimitLayer, handle: impl Fn(Reservation) + Clone) {
    let service = layer.layer(service_fn(async |request: Request<()>| {
        let reservation = request.extensions().get::<Reservation>();
        handle(reservation.expect("a reservation").clone());
        Ok::<_, Infallible>(Response::new(Full::<Bytes>::from("ok")))
    }));
    let response = service.oneshot(to("/ada")).await.unwrap();
    assert_eq!(response.status(), 200);
}

#[tokio::test]
async fn the_answer_decides_what_a_request_has_cost() {
    let server = RedisServer::start();
    for store in stores(&server) {
        let (layer, limiter) = layer(store);
        let layer = layer.settle(|decision, response, _| {
            assert_eq!((decision.cost(), decision.limit()), (COST, LIMIT));
            match response.status {
                StatusCode::NOT_MODIFIED => 0,
                status if status.is_server_error() => 1,
                StatusCode::PARTIAL_CONTENT => 25,
                _ => decision.cost(),
            }
        });
        for (status, units) in [(304, 0), (500, 1), (200, 11), (206, 36)] {
            let response = answered(&layer, status).await;
            assert_eq!(response.status(), status);
            counts(&limiter, "/ada", units).await;
        }
    }
}

#[tokio::test]
async fn a_successful_login_costs_nothing_and_failures_lock() {
    let limiter = RateLimiter::new(MemoryStore::new(), Quota::per_hour(3));
    let login = RateLimitLayer::from(limiter).key(by_path());
    let login = login.settle(|_, response, _| u32::from(!response.status.is_success()));
    for _ in 0..9 {
        assert_eq!(answered(&login, 200).await.status(), 200);
    }
    for _ in 0..3 {
        assert_eq!(answered(&login, 401).await.status(), 401);
    }
    assert_eq!(answered(&login, 200).await.status(), 429);
}

#[tokio::test]
async fn more_is_charged_also_beyond_the_limit() {
    let server = RedisServer::start();
    for store in stores(&server) {
        let (layer, limiter) = layer(store);
        let layer = layer.settle(|_, _, _| u32::MAX);
        assert_eq!(answered(&layer, 200).await.status(), 200);
        counts(&limiter, "/ada", u32::MAX).await;
        assert_eq!(answered(&layer, 200).await.status(), 429);
    }
}

#[tokio::test]
async fn the_closure_sees_the_headers_of_the_limit_as_they_were_before() {
    let (layer, _) = layer(MemoryStore::new());
    let seen = Arc::new(Mutex::new(String::new()));
    let saw = Arc::clone(&seen);
    let layer = layer.settle(move |_, response, _| {
        let left = response.headers["x-ratelimit-remaining"].to_str().unwrap();
        left.clone_into(&mut saw.lock().unwrap());
        0
    });
    let response = answered(&layer, 200).await;
    assert_eq!(*seen.lock().unwrap(), "90");
    assert_eq!(told(&response, "x-ratelimit-remaining"), "90");
}

/// A million bytes in units of 1 024, rounded up.
const KILOBYTES: u32 = 977;

async fn megabyte() -> String {
    "x".repeat(1_000_000)
}

async fn streamed() -> Body {
    let chunks = (0..4).map(|_| Ok::<_, Infallible>(Bytes::from_static(b"chunk")));
    Body::from_stream(futures_util::stream::iter(chunks))
}

#[tokio::test]
async fn on_axum_an_answer_is_charged_by_the_size_of_its_body() {
    let (layer, limiter) = by_the_kilobyte(100_000);
    let inside = ServiceBuilder::new()
        .layer(layer.clone())
        .layer(CompressionLayer::new());
    let outside = ServiceBuilder::new()
        .layer(CompressionLayer::new())
        .layer(layer.clone());
    let app = Router::new()
        .route("/compressed-inside", get(megabyte).layer(inside))
        .route("/compressed-outside", get(megabyte).layer(outside))
        .merge(
            Router::new()
                .route("/string", get(megabyte))
                .route("/head", get(megabyte))
                .route("/empty", get(|| async {}))
                .route("/stream", get(streamed))
                .layer(layer),
        );
    let url = serve(app).await;
    for (method, path, encoding, charged) in [
        (Method::GET, "/string", None, KILOBYTES),
        (Method::GET, "/empty", None, 1),
        // What a GET would send is not sent.
        (Method::HEAD, "/head", None, 1),
        // Of unknown size: what was reserved.
        (Method::GET, "/stream", None, 64),
        (Method::GET, "/compressed-inside", Some("gzip"), 64),
        // The layer sees the whole.
        (Method::GET, "/compressed-outside", Some("gzip"), KILOBYTES),
    ] {
        let request = reqwest::Client::new().request(method, format!("{url}{path}"));
        let request = request.header("accept-encoding", "gzip");
        let response = request.send().await.unwrap();
        assert_eq!(response.status(), 200, "{path}");
        let encoded = response.headers().get("content-encoding");
        let encoded = encoded.map(|encoding| encoding.to_str().unwrap());
        assert_eq!(encoded, encoding, "{path}");
        assert_eq!(used(&limiter, path).await, charged, "{path}");
    }
}

/// 64 units are charged first, so 37 such answers leave no room for one more.
#[tokio::test]
async fn answers_without_a_body_are_limited_where_the_size_is_the_cost() {
    let (layer, _) = by_the_kilobyte(100);
    let app = Router::new()
        .route("/head", get(|| async { "a page" }))
        .route("/unchanged", get(|| async { StatusCode::NOT_MODIFIED }))
        .route("/empty", get(|| async {}))
        .layer(layer);
    for (method, path) in [
        (Method::HEAD, "/head"),
        (Method::GET, "/unchanged"),
        (Method::GET, "/empty"),
    ] {
        let mut admitted = 0;
        for _ in 0..400 {
            let mut request = to(path).map(|()| Body::empty());
            *request.method_mut() = method.clone();
            let response = app.clone().oneshot(request).await.unwrap();
            admitted += u32::from(response.status() != StatusCode::TOO_MANY_REQUESTS);
        }
        assert_eq!(admitted, 100 - 64 + 1, "{path} of 400");
    }
}

/// A login behind which another limit refuses, in a way that its status does not tell.
#[tokio::test]
async fn a_refusal_inside_is_no_success_whatever_its_status() {
    let login = RateLimiter::new(MemoryStore::new(), Quota::per_hour(3));
    let outer = RateLimitLayer::from(login.clone()).key(by_path());
    let outer = outer.settle(|_, head, _| {
        let is_rejected = head.extensions.get::<Rejection>().is_some();
        u32::from(is_rejected || !head.status.is_success())
    });
    let inner = RateLimitLayer::new(MemoryStore::new(), Quota::per_hour(0)).key(by_path());
    let polite = inner.clone().status(StatusCode::OK);
    let of_grpc = inner.grpc();
    for (inner, charged) in [(polite, 1), (of_grpc, 2)] {
        let service = outer.layer(inner.layer(service_fn(ok::<()>)));
        let mut call = to("/ada");
        *call.method_mut() = Method::POST;
        let content_type = "application/grpc".parse().unwrap();
        call.headers_mut().insert("content-type", content_type);
        assert_eq!(service.oneshot(call).await.unwrap().status(), 200);
        assert_eq!(used(&login, "/ada").await, charged);
    }
}

#[tokio::test]
async fn a_refused_request_and_a_failed_service_settle_nothing() {
    let (layer, limiter) = layer(MemoryStore::new());
    let layer = layer.settle(|_, _, _| 0);
    let fails = layer.layer(service_fn(async |_: Request<()>| {
        Err::<Response<Full<Bytes>>, _>("the service fails")
    }));
    assert!(fails.oneshot(to("/ada")).await.is_err());
    assert_eq!(used(&limiter, "/ada").await, COST);
    let dear = layer.cost(|_| LIMIT);
    assert_eq!(answered(&dear, 200).await.status(), 429);
    assert_eq!(used(&limiter, "/ada").await, COST);
}

#[tokio::test]
async fn a_handler_settles_by_its_reservation() {
    let server = RedisServer::start();
    for store in stores(&server) {
        let (layer, limiter) = layer(store);
        let layer = layer.reserve();
        let mut units = 0;
        for cost in [4, 0, COST, 25] {
            handled(&layer, move |reservation| {
                assert_eq!(reservation.decision().cost(), COST);
                reservation.settle(cost);
            })
            .await;
            units += cost;
            counts(&limiter, "/ada", units).await;
        }
    }
}

#[tokio::test]
async fn who_settles_first_counts_whichever_clone_it_has() {
    let (layer, limiter) = layer(MemoryStore::new());
    let layer = layer.reserve();
    handled(&layer, |reservation| {
        let clone = reservation.clone();
        clone.settle(3);
        reservation.settle(7);
    })
    .await;
    assert_eq!(used(&limiter, "/ada").await, 3);
    // The handler is before the answer.
    let layer = layer.settle(|_, _, _| 9);
    handled(&layer, |reservation| reservation.settle(2)).await;
    assert_eq!(used(&limiter, "/ada").await, 3 + 2);
    handled(&layer, drop).await;
    assert_eq!(used(&limiter, "/ada").await, 3 + 2 + 9);
    // The closure is before what comes later.
    let later = Arc::new(Mutex::new(None));
    let kept = Arc::clone(&later);
    handled(&layer, move |reservation| {
        *kept.lock().unwrap() = Some(reservation);
    })
    .await;
    later.lock().unwrap().take().unwrap().settle(0);
    assert_eq!(used(&limiter, "/ada").await, 3 + 2 + 9 + 9);
}

#[test]
fn a_closure_may_settle_the_reservation_and_is_first() {
    let (done, is_done) = mpsc::channel();
    // A thread of its own: a closure that waited for itself would never end.
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().build();
        runtime.unwrap().block_on(async {
            let (layer, limiter) = layer(MemoryStore::new());
            let layer = layer.reserve().settle(|_, head, _| {
                head.extensions.get::<Reservation>().unwrap().settle(3);
                9
            });
            let service = layer.layer(service_fn(async |request: Request<()>| {
                let mut response = Response::new(Full::<Bytes>::from("ok"));
                let reservation = request.extensions().get::<Reservation>().unwrap();
                response.extensions_mut().insert(reservation.clone());
                Ok::<_, Infallible>(response)
            }));
            service.oneshot(to("/ada")).await.unwrap();
            done.send(used(&limiter, "/ada").await).unwrap();
        });
    });
    assert_eq!(is_done.recv_timeout(Duration::from_secs(10)), Ok(3));
}

#[tokio::test]
async fn a_layer_that_does_not_reserve_inserts_no_reservation() {
    let (layer, limiter) = layer(MemoryStore::new());
    let layers = [
        layer.clone(),
        layer.clone().settle(|_, _, _| 1),
        layer.clone().skip(|_| true),
        layer.cost(|_| LIMIT).dry_run(),
    ];
    for layer in layers {
        let service = layer.layer(service_fn(async |request: Request<()>| {
            assert!(request.extensions().get::<Reservation>().is_none());
            Ok::<_, Infallible>(Response::new(Full::<Bytes>::from("ok")))
        }));
        let response = service.oneshot(to("/ada")).await.unwrap();
        assert_eq!(response.status(), 200);
    }
    assert_eq!(used(&limiter, "/ada").await, COST + 1);
}

#[tokio::test]
async fn what_nobody_settles_keeps_its_charge() {
    let server = RedisServer::start();
    for store in stores(&server) {
        let (layer, limiter) = layer(store);
        handled(&layer.reserve(), drop).await;
        // What would be given back in the background had its time.
        tokio::time::sleep(Duration::from_millis(20)).await;
        assert_eq!(used(&limiter, "/ada").await, COST);
    }
}

#[tokio::test]
async fn a_handler_of_axum_asks_for_its_reservation() {
    let (layer, limiter) = layer(MemoryStore::new());
    let given = async |reservation: Reservation| reservation.settle(1);
    let optional = async |reservation: Option<Reservation>| {
        if let Some(reservation) = reservation {
            reservation.settle(2);
        }
    };
    let app = |layer: RateLimitLayer| {
        Router::new()
            .route("/given", get(given))
            .route("/optional", get(optional))
            .layer(layer)
    };
    let status = async |app: Router, path: &str| {
        let request = to(path).map(|()| Body::empty());
        let response = app.oneshot(request).await.unwrap();
        let status = response.status().as_u16();
        (
            status,
            response.into_body().collect().await.unwrap().to_bytes(),
        )
    };
    let reserving = app(layer.clone().reserve());
    assert_eq!(status(reserving.clone(), "/given").await.0, 200);
    assert_eq!(status(reserving, "/optional").await.0, 200);
    assert_eq!(used(&limiter, "/given").await, 1);
    assert_eq!(used(&limiter, "/optional").await, 2);

    let plain = app(layer);
    let (missing, why) = status(plain.clone(), "/given").await;
    assert_eq!(missing, 500);
    assert!(why.starts_with(b"no reservation"), "{why:?}");
    assert_eq!(status(plain, "/optional").await.0, 200);
}

/// A body that settles when it has been read to its end.
struct Streaming {
    chunks: u32,
    sent: u32,
    reservation: Reservation,
}

impl HttpBody for Streaming {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<http_body::Frame<Bytes>, Infallible>>> {
        if self.sent == self.chunks {
            self.reservation.settle(self.sent);
            return Poll::Ready(None);
        }
        self.sent += 1;
        Poll::Ready(Some(Ok(http_body::Frame::data(Bytes::from_static(
            b"token ",
        )))))
    }
}

#[tokio::test]
async fn a_body_settles_when_it_has_been_sent() {
    let server = RedisServer::start();
    for store in stores(&server) {
        let (layer, limiter) = layer(store);
        let service = layer
            .reserve()
            .layer(service_fn(async |request: Request<()>| {
                let reservation = request.extensions().get::<Reservation>().unwrap().clone();
                let body = Streaming {
                    chunks: 4,
                    sent: 0,
                    reservation,
                };
                Ok::<_, Infallible>(Response::new(body))
            }));
        let response = service.clone().oneshot(to("/ada")).await.unwrap();
        assert_eq!(used(&limiter, "/ada").await, COST);
        let body = response.into_body().collect().await.unwrap();
        assert_eq!(body.to_bytes().len(), 4 * 6);
        counts(&limiter, "/ada", 4).await;
        // A client that is gone before the end has reserved what it has reserved.
        drop(service.oneshot(to("/ada")).await.unwrap());
        tokio::time::sleep(Duration::from_millis(20)).await;
        assert_eq!(used(&limiter, "/ada").await, 4 + COST);
    }
}

/// An answer that comes while the store is in no mood to settle.
async fn answered_while(mood: Mood) -> (Response<()>, Duration, Vec<String>) {
    let store = Moody::new(Mood::Fine);
    let (layer, _) = layer(store.clone());
    let layer = layer.name("search").settle(|_, _, _| 0);
    log::keep();
    let mut response = None;
    let begin = tokio::time::Instant::now();
    for _ in 0..3 {
        store.becomes(Mood::Fine);
        let service = layer.layer(service_fn(async |_: Request<()>| {
            store.becomes(mood);
            Ok::<_, Infallible>(Response::new(Full::<Bytes>::from("ok")))
        }));
        response = Some(service.oneshot(to("/ada")).await.unwrap().map(drop));
    }
    let waited = begin.elapsed();
    // Of what hangs, the deadline passes.
    tokio::time::sleep(crate::support::fakes::moody::DEADLINE * 3).await;
    (response.unwrap(), waited, log::kept())
}

// Paused, so that no busy machine is late.
#[tokio::test(start_paused = true)]
async fn a_store_that_does_not_take_back_changes_nothing_about_the_answer() {
    for mood in [
        Mood::Fails(ErrorKind::Unavailable),
        Mood::Fails(ErrorKind::Unsupported),
        Mood::Hangs,
    ] {
        let (response, waited, log) = answered_while(mood).await;
        assert_eq!(response.status(), 200);
        assert_eq!(told(&response, "x-ratelimit-remaining"), "70");
        if mood == Mood::Hangs {
            // Three times the deadline, had each been waited for.
            assert!(
                waited < crate::support::fakes::moody::DEADLINE * 2,
                "{waited:?}"
            );
        }
        assert_eq!(log.len(), 1, "{log:?}");
        assert!(
            log[0].contains("WARN") && log[0].contains("search"),
            "{log:?}"
        );
    }
}

#[test]
fn without_a_runtime_a_reservation_that_cannot_be_settled_at_once_is_a_line() {
    let store = Moody::new(Mood::Fine);
    let (layer, _) = layer(store.clone());
    let kept = Arc::new(Mutex::new(None));
    let keep = Arc::clone(&kept);
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_time().build().unwrap();
    runtime.block_on(handled(&layer.reserve(), move |reservation| {
        *keep.lock().unwrap() = Some(reservation);
    }));
    drop(runtime);
    store.becomes(Mood::Hangs);
    log::keep();
    kept.lock().unwrap().take().unwrap().settle(0);
    let log = log::kept();
    assert_eq!(log.len(), 1, "{log:?}");
    assert!(log[0].contains("WARN"), "{log:?}");
}

#[test]
fn a_reservation_of_redis_that_outlives_its_runtime_is_a_line() {
    let server = RedisServer::start();
    let (layer, _) = layer(store_on(&server));
    let kept = Arc::new(Mutex::new(None));
    let keep = Arc::clone(&kept);
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_all().build().unwrap();
    runtime.block_on(handled(&layer.reserve(), move |reservation| {
        *keep.lock().unwrap() = Some(reservation);
    }));
    drop(runtime);
    log::keep();
    kept.lock().unwrap().take().unwrap().settle(0);
    let log = log::kept();
    assert_eq!(log.len(), 1, "{log:?}");
    assert!(log[0].contains("charges stay"), "{log:?}");
}

#[tokio::test]
async fn what_a_failing_store_does_not_charge_in_addition_is_an_error_and_charged_nowhere() {
    for policy in [FailurePolicy::fall_back(), FailurePolicy::open()] {
        let counts = MemoryStore::new();
        // It has failed since a charge was first asked for.
        let failing = FakeStore::on(counts.clone())
            .circuit_breaker(CircuitBreaker::new())
            .checks_by(|counts, checks| {
                if checks.iter().all(|check| [0, COST].contains(&check.cost)) {
                    return counts.check(checks);
                }
                let error = Error::new(ErrorKind::Unavailable, "in no mood");
                StoreFuture::ready(Err(error))
            });
        let limiter = limiter(failing).on_failure(policy);
        let reserved = limiter.check_n("ada", COST).await.unwrap();
        let error = reserved.settle(3 * COST).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        let by_store = RateLimiter::new(counts, Quota::per_hour(LIMIT));
        assert_eq!(used(&by_store, "ada").await, COST);
        // Where this process counts, nothing was.
        let elsewhere = limiter.check_n("ada", 1).await.unwrap();
        assert!(elsewhere.used() <= 1, "{elsewhere:?}");
    }
}

#[tokio::test]
async fn what_costs_nothing_passes_a_full_limit_and_has_nothing_to_settle() {
    let (layer, limiter) = layer(MemoryStore::new());
    let _ = limiter.check_n("/ada", LIMIT).await.unwrap();
    let free = layer.cost(|_| 0).settle(|_, _, _| 3);
    log::keep();
    for _ in 0..5 {
        assert_eq!(answered(&free, 200).await.status(), 200);
    }
    let log = log::kept();
    assert_eq!(used(&limiter, "/ada").await, LIMIT);
    assert_eq!(log.len(), 1, "{log:?}");
    assert!(log[0].contains("cost 0"), "{log:?}");
}

#[tokio::test]
async fn what_costs_nothing_passes_a_limit_that_was_lowered_below_what_is_used() {
    let store = MemoryStore::new();
    let before = limiter(store.clone());
    let _ = before.check_n("/ada", LIMIT).await.unwrap();
    let lowered = RateLimitLayer::new(store, Quota::per_hour(1)).key(by_path());
    assert_eq!(answered(&lowered, 200).await.status(), 429);
    let free = lowered.cost(|_| 0);
    assert_eq!(answered(&free, 200).await.status(), 200);
}

#[tokio::test]
async fn who_is_exempt_has_a_reservation_of_nothing_and_not_that_of_a_layer_outside() {
    let (outer, limiter) = layer(MemoryStore::new());
    let inner = RateLimitLayer::new(MemoryStore::new(), Quota::per_hour(1)).name("tokens");
    let inner = inner.key(by_path()).skip(|_| true).reserve();
    let service = outer
        .reserve()
        .layer(inner.layer(service_fn(async |request: Request<()>| {
            let reservation = request.extensions().get::<Reservation>().unwrap();
            reservation.settle(64);
            Ok::<_, Infallible>(Response::new(Full::<Bytes>::from("ok")))
        })));
    let response = service.oneshot(to("/ada")).await.unwrap();
    assert_eq!(response.status(), 200);
    assert_eq!(used(&limiter, "/ada").await, COST);
}

#[tokio::test]
async fn who_settles_at_the_same_time_is_charged_in_full() {
    let server = RedisServer::start();
    for store in stores(&server) {
        for (key, each, together) in [("ada", 3, 48), ("bob", 20, 320)] {
            let limiter = limiter(Arc::clone(&store));
            let mut settling = Vec::new();
            for _ in 0..16 {
                let reserved = limiter.check(key).await.unwrap();
                settling.push(async move {
                    reserved.settle(each).await.unwrap();
                });
            }
            let settling: Vec<_> = settling.into_iter().map(tokio::spawn).collect();
            for settled in settling {
                settled.await.unwrap();
            }
            assert_eq!(used(&limiter, key).await, together, "{key}");
        }
    }
}

const WINDOW: Duration = Duration::from_secs(10);

/// Reserves, lets two windows pass, has others charge, and settles.
async fn settle_late(store: impl Store, algorithm: Algorithm, pass: impl FnOnce()) {
    let quota = Quota::new(LIMIT, WINDOW).with_algorithm(algorithm);
    let limiter = RateLimiter::new(store, quota);
    let (down, up) = (
        limiter.check_n("ada", COST).await.unwrap(),
        limiter.check_n("ada", COST).await.unwrap(),
    );
    pass();
    let _ = limiter.check_n("ada", 7).await.unwrap();
    down.settle(0).await.unwrap();
    assert_eq!(used(&limiter, "ada").await, 7, "{algorithm:?}");
    up.settle(50).await.unwrap();
    assert_eq!(used(&limiter, "ada").await, 7 + 40, "{algorithm:?}");
}

#[tokio::test]
async fn settling_after_the_window_has_rolled_charges_more_and_gives_nothing_back() {
    for algorithm in algorithms() {
        let clock = TestClock::new();
        let store = MemoryStore::with_clock(clock.clone());
        settle_late(store, algorithm, || clock.advance(2 * WINDOW)).await;
    }
    for algorithm in [
        Algorithm::SlidingLog,
        Algorithm::SortedSetLog,
        Algorithm::Gcra,
    ] {
        let clock = TestClock::new();
        let store = MemoryStore::with_clock(clock.clone());
        settle_late(store, algorithm, || clock.advance(WINDOW)).await;
    }
}

#[tokio::test]
async fn settling_after_the_window_has_rolled_charges_more_and_gives_nothing_back_in_redis() {
    let server = RedisServer::start();
    for algorithm in algorithms() {
        let mut time = TestTime::new(&server);
        settle_late(time.redis.clone(), algorithm, || time.advance(2 * WINDOW)).await;
    }
    for algorithm in [
        Algorithm::SlidingLog,
        Algorithm::SortedSetLog,
        Algorithm::Gcra,
    ] {
        let mut time = TestTime::new(&server);
        settle_late(time.redis.clone(), algorithm, || time.advance(WINDOW)).await;
    }
}

#[tokio::test]
async fn what_was_charged_while_the_store_failed_is_settled_there() {
    let store = Moody::unavailable();
    let (layer, _) = layer(store.clone());
    let layer = layer.settle(|_, response, _| if response.status == 206 { 50 } else { 0 });
    // All of it is given back.
    assert_eq!(
        told(&answered(&layer, 200).await, "x-ratelimit-remaining"),
        "90"
    );
    assert_eq!(
        told(&answered(&layer, 200).await, "x-ratelimit-remaining"),
        "90"
    );
    // More is charged there too, and not at the store.
    assert_eq!(
        told(&answered(&layer, 206).await, "x-ratelimit-remaining"),
        "90"
    );
    assert_eq!(
        told(&answered(&layer, 200).await, "x-ratelimit-remaining"),
        "40"
    );
    store.becomes(Mood::Fine);
    assert_eq!(used(&limiter(store), "/ada").await, 0);
}

#[tokio::test]
async fn the_log_of_a_settlement_that_failed_ends_without_another_one() {
    log::keep();
    let server = Mutex::new(Node::start(&[]));
    let store = RedisStore::open(&server.lock().unwrap().url()).unwrap();
    let (layer, _limiter) = layer(store.deadline(Duration::from_secs(10)));
    let layer = layer.settle(|_, _, _| 1);
    let service = layer.layer(service_fn(async |_: Request<()>| {
        server.lock().unwrap().kill();
        Ok::<_, Infallible>(Response::new(Full::<Bytes>::from("ok")))
    }));
    let response = service.oneshot(to("/ada")).await.unwrap();
    let _ = response.into_body().collect().await.unwrap();
    let lines = Mutex::new(Vec::new());
    let logged = async |count: usize| {
        until(async || {
            let mut lines = lines.lock().unwrap();
            let kept = log::kept().into_iter();
            lines.extend(kept.filter(|line| line.contains("tollgate::outage")));
            lines.len() >= count
        })
        .await;
    };
    logged(1).await;
    server.lock().unwrap().restart();
    logged(2).await;
    let lines = lines.into_inner().unwrap();
    assert!(lines[0].contains("charges stay as reserved"), "{lines:#?}");
    assert!(lines[1].contains("the store works again"), "{lines:#?}");
}
