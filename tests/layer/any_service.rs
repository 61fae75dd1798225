//! The contracts of tower: any service, any body, unchanged errors and readiness.

use std::convert::Infallible;
use std::future::{Ready, poll_fn, ready};
use std::marker::PhantomData;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use crate::support::calls::{ok, request, stores};
use crate::support::log;
use crate::support::redis_server::{DeadPort, RedisServer};
use axum::body::Bytes;
use axum::body::HttpBody as _;
use axum::http::{HeaderMap, Request, Response, StatusCode};
use http_body_util::{BodyExt, Empty, Full};
use tollgate::key;
use tollgate::{
    DecisionView, ErrorKind, FailurePolicy, Headers, Key, MemoryStore, MissingKey, Quota,
    RateLimitLayer, RateLimiter, RedisStore, Rejection, RejectionReason,
};
use tower::limit::ConcurrencyLimitLayer;
use tower::{Layer, Service, ServiceExt, service_fn};

fn layer(limit: u32) -> RateLimitLayer {
    RateLimitLayer::new(MemoryStore::new(), Quota::per_minute(limit))
}

/// A body that is neither Clone, Default nor Send.
struct OddBody(PhantomData<*const ()>);

#[tokio::test]
async fn a_request_body_may_be_of_any_type() {
    let service = layer(1).layer(service_fn(ok::<OddBody>));
    let response = service
        .oneshot(request(OddBody(PhantomData)))
        .await
        .unwrap();
    assert_eq!(response.status(), StatusCode::OK);
    let body = response.into_body().collect().await.unwrap();
    assert_eq!(body.to_bytes(), "ok");
}

#[derive(Debug, PartialEq)]
struct OwnError(u32);

#[tokio::test]
async fn an_error_of_the_service_is_passed_on_unchanged() {
    let server = RedisServer::start();
    for store in stores(&server) {
        let fails = |_: Request<()>| async { Err::<Response<Empty<Bytes>>, _>(OwnError(7)) };
        let service = RateLimitLayer::new(store, Quota::per_minute(1)).layer(service_fn(fails));
        let outcome: Result<_, OwnError> = service.oneshot(request(())).await;
        assert_eq!(outcome.unwrap_err(), OwnError(7));
    }
}

/// A service that may be called only when it, not a clone of it, was polled ready.
#[derive(Debug, Default)]
struct Strict {
    is_ready: bool,
}

impl Clone for Strict {
    fn clone(&self) -> Self {
        Self { is_ready: false }
    }
}

impl Service<Request<()>> for Strict {
    type Response = Response<Empty<Bytes>>;
    type Error = Infallible;
    type Future = Ready<Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.is_ready = true;
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Request<()>) -> Self::Future {
        assert!(self.is_ready, "called without having been polled ready");
        self.is_ready = false;
        ready(Ok(Response::new(Empty::new())))
    }
}

#[tokio::test]
async fn the_service_that_was_polled_ready_is_the_one_that_is_called() {
    let server = RedisServer::start();
    for store in stores(&server) {
        let mut service = RateLimitLayer::new(store, Quota::per_minute(9)).layer(Strict::default());
        for _ in 0..3 {
            poll_fn(|cx| service.poll_ready(cx)).await.unwrap();
            let response = service.call(request(())).await.unwrap();
            assert_eq!(response.status(), StatusCode::OK);
        }
    }
}

#[tokio::test]
async fn a_refused_request_does_not_reach_the_service() {
    let server = RedisServer::start();
    for store in stores(&server) {
        let calls = Arc::new(AtomicU32::new(0));
        let seen = Arc::clone(&calls);
        let service =
            RateLimitLayer::new(store, Quota::per_minute(1)).layer(service_fn(move |request| {
                seen.fetch_add(1, Ordering::Relaxed);
                ok::<()>(request)
            }));
        for _ in 0..3 {
            let _ = service.clone().oneshot(request(())).await.unwrap();
        }
        assert_eq!(calls.load(Ordering::Relaxed), 1);
    }
}

#[tokio::test]
async fn a_refused_request_gives_back_what_the_service_had_set_aside_for_it() {
    let server = RedisServer::start();
    let missing = key::header("x-api-key");
    let layers = stores(&server).map(|store| RateLimitLayer::new(store, Quota::per_minute(0)));
    for layer in layers.into_iter().chain([layer(1).key(missing)]) {
        let one_at_a_time = ConcurrencyLimitLayer::new(1).layer(service_fn(ok::<()>));
        let mut first = layer.layer(one_at_a_time);
        let mut second = first.clone();
        first.ready().await.unwrap();
        let refused = first.call(request(())).await.unwrap();
        assert!(refused.status().is_client_error());
        let permit = tokio::time::timeout(Duration::from_secs(5), second.ready());
        permit.await.expect("the permit is free").unwrap();
    }
}

#[tokio::test]
async fn a_handler_finds_the_decision_whatever_the_store() {
    let server = RedisServer::start();
    for store in stores(&server) {
        let handler = |request: Request<()>| async move {
            let decision = request.extensions().get::<DecisionView>();
            let left = decision.expect("a decision").remaining();
            Ok::<_, Infallible>(Response::new(Full::<Bytes>::from(left.to_string())))
        };
        let service = RateLimitLayer::new(store, Quota::per_minute(9)).layer(service_fn(handler));
        let response = service.oneshot(request(())).await.unwrap();
        let body = response.into_body().collect().await.unwrap();
        assert_eq!(body.to_bytes(), "8");
    }
}

/// A service that counts how often it is cloned.
struct CountsClones(Arc<AtomicU32>);

impl Clone for CountsClones {
    fn clone(&self) -> Self {
        self.0.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(&self.0))
    }
}

impl Service<Request<()>> for CountsClones {
    type Response = Response<Empty<Bytes>>;
    type Error = Infallible;
    type Future = Ready<Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Request<()>) -> Self::Future {
        ready(Ok(Response::new(Empty::new())))
    }
}

#[test]
fn in_memory_a_request_is_admitted_at_once_and_without_a_clone() {
    let clones = Arc::new(AtomicU32::new(0));
    let mut service = layer(9).layer(CountsClones(Arc::clone(&clones)));
    let mut context = Context::from_waker(Waker::noop());
    let mut response = Box::pin(service.call(request(())));
    let Poll::Ready(response) = response.as_mut().poll(&mut context) else {
        panic!("it waits");
    };
    assert_eq!(response.unwrap().status(), StatusCode::OK);
    assert_eq!(clones.load(Ordering::Relaxed), 0);
}

#[tokio::test]
async fn a_body_tells_its_size_and_end_as_the_one_inside_does() {
    let service = layer(1).layer(service_fn(ok::<()>));
    let mut admitted = service
        .clone()
        .oneshot(request(()))
        .await
        .unwrap()
        .into_body();
    let mut refused = service.oneshot(request(())).await.unwrap().into_body();
    for (body, size) in [(&mut admitted, 2), (&mut refused, 20)] {
        assert_eq!(
            (body.size_hint().exact(), body.is_end_stream()),
            (Some(size), false)
        );
        let data = body.frame().await.unwrap().unwrap().into_data().unwrap();
        assert_eq!(data.len() as u64, size);
        assert_eq!(
            (body.size_hint().exact(), body.is_end_stream()),
            (Some(0), true)
        );
        assert!(body.frame().await.is_none());
    }
}

/// What a client of two nested layers is told: status, limit and remaining.
async fn told_of_nested(inner: RateLimitLayer, outer: RateLimitLayer) -> (u16, String, String) {
    let service = outer.layer(inner.layer(service_fn(ok::<()>)));
    let response = service.oneshot(request(())).await.unwrap();
    let header = |name| match response.headers().get(name) {
        Some(value) => value.to_str().unwrap().to_owned(),
        None => String::from("-"),
    };
    let status = response.status().as_u16();
    (
        status,
        header("x-ratelimit-limit"),
        header("x-ratelimit-remaining"),
    )
}

#[tokio::test]
async fn of_nested_layers_the_one_that_decided_most_is_told() {
    let told = |status, limit: &str, left: &str| (status, limit.to_owned(), left.to_owned());
    assert_eq!(
        told_of_nested(layer(5), layer(9)).await,
        told(200, "5", "4")
    );
    assert_eq!(
        told_of_nested(layer(9), layer(5)).await,
        told(200, "5", "4")
    );
    // Refused inside, with more units left than outside.
    let dear = layer(5).cost(|_| 6);
    assert_eq!(told_of_nested(dear, layer(2)).await, told(429, "5", "0"));
    // Not refused but failed inside: the layer outside has charged all the same, and says so.
    let keyless = layer(5).key(key::header("x-api-key"));
    assert_eq!(told_of_nested(keyless, layer(9)).await, told(400, "9", "8"));
}

#[tokio::test]
async fn headers_of_these_names_that_a_service_sets_are_replaced_where_they_are_looser() {
    let upstream = |_: Request<()>| async {
        let response = Response::builder()
            .header("x-ratelimit-remaining", "9")
            .header("x-ratelimit-reset", "1763683200");
        Ok::<_, Infallible>(response.body(Empty::<Bytes>::new()).unwrap())
    };
    let response = layer(9)
        .headers(Headers::x_ratelimit().delta_reset())
        .layer(service_fn(upstream))
        .oneshot(request(()))
        .await
        .unwrap();
    let told = ["limit", "remaining", "reset"].map(|name| {
        response.headers()[format!("x-ratelimit-{name}")]
            .to_str()
            .unwrap()
    });
    assert_eq!(told, ["9", "8", "60"]);
}

#[tokio::test]
async fn a_server_that_is_not_set_up_exempts_nobody() {
    let layer = layer(9).on_missing_key(MissingKey::Exempt);
    let response = layer
        .layer(service_fn(ok::<()>))
        .oneshot(Request::new(()))
        .await
        .unwrap();
    assert_eq!(response.status(), StatusCode::INTERNAL_SERVER_ERROR);
    assert!(!response.headers().contains_key("retry-after"));
}

#[tokio::test]
async fn each_layer_that_cannot_know_keys_says_once_what_to_do() {
    let first = layer(9).name("first");
    let second = first.clone().name("second").key(key::header("no header"));
    log::keep();
    for layer in [&first, &second, &first, &second] {
        let service = layer.layer(service_fn(ok::<()>));
        let _ = service.oneshot(Request::new(())).await.unwrap();
    }
    let log = log::kept();
    assert_eq!(log.len(), 2, "{log:?}");
    assert!(
        log[0].contains("into_make_service_with_connect_info::<SocketAddr>()"),
        "{log:?}"
    );
    assert!(log[1].contains("no header"), "{log:?}");
}

#[tokio::test]
async fn a_store_that_fails_is_one_line() {
    let nowhere = DeadPort::new();
    let store = RedisStore::open(&nowhere.url()).unwrap();
    let layer = RateLimitLayer::new(store, Quota::per_minute(1)).name("search");
    log::keep();
    for _ in 0..3 {
        let service = layer.layer(service_fn(ok::<()>));
        let _ = service.oneshot(request(())).await.unwrap();
    }
    let log = log::kept();
    assert_eq!(log.len(), 1, "{log:?}");
    assert!(
        log[0].contains("WARN") && log[0].contains("search"),
        "{log:?}"
    );
}

#[tokio::test]
async fn layers_services_and_their_clones_share_one_count() {
    let layer = layer(2);
    for status in [200, 200, 429] {
        let service = layer.clone().layer(service_fn(ok::<()>)).clone();
        let response = service.oneshot(request(())).await.unwrap();
        assert_eq!(response.status(), status);
    }
}

#[tokio::test]
async fn a_dropped_request_poisons_nothing() {
    let server = RedisServer::start();
    for (is_redis, store) in [false, true].into_iter().zip(stores(&server)) {
        let mut service =
            RateLimitLayer::new(store, Quota::per_minute(1_000)).layer(service_fn(ok::<()>));
        for _ in 0..20 {
            // Never polled, and polled once: whatever was sent is given up.
            drop(service.call(request(())));
            let mut response = Box::pin(service.call(request(())));
            let _ = poll_fn(|cx| Poll::Ready(response.as_mut().poll(cx))).await;
        }
        let response = service.oneshot(request(())).await.unwrap();
        assert_eq!(response.status(), StatusCode::OK);
        let left = response.headers()["x-ratelimit-remaining"]
            .to_str()
            .unwrap();
        // A memory store charges when called; Redis, what was sent before it was given up.
        let left: u32 = left.parse().unwrap();
        let at_once = left == 959;
        assert!(at_once || (959..=999).contains(&left) && is_redis, "{left}");
    }
}

/// Awaits a future, and returns the text of the panic of one more poll.
async fn panic_of_one_more_poll<F: Future>(future: F) -> String {
    let mut future = Box::pin(future);
    let mut poll = |context: &mut Context<'_>| {
        let poll = AssertUnwindSafe(|| future.as_mut().poll(context).map(drop));
        match catch_unwind(poll) {
            Ok(polled) => polled.map(Ok),
            Err(panic) => Poll::Ready(Err(panic)),
        }
    };
    let _ = poll_fn(&mut poll).await;
    match poll_fn(|context| Poll::Ready(poll(context))).await {
        Poll::Ready(Err(panic)) => *panic.downcast::<String>().expect("text"),
        polled => format!("no panic: {polled:?}"),
    }
}

#[tokio::test]
async fn a_response_future_that_is_polled_after_completion_panics() {
    let server = RedisServer::start();
    // Its futures answer as often as they are polled.
    let answers = |_: Request<()>| {
        poll_fn(|_| Poll::Ready(Ok::<_, Infallible>(Response::new(Empty::<Bytes>::new()))))
    };
    let fails =
        |_: Request<()>| poll_fn(|_| Poll::Ready(Err::<Response<Empty<Bytes>>, _>(OwnError(7))));
    for store in stores(&server) {
        let layer = RateLimitLayer::new(store, Quota::per_minute(2));
        let text = "`ResponseFuture` polled after completion";
        let failed = layer.layer(service_fn(fails)).call(request(()));
        assert_eq!(panic_of_one_more_poll(failed).await, text);
        let admitted = layer.layer(service_fn(answers)).call(request(()));
        assert_eq!(panic_of_one_more_poll(admitted).await, text);
        let refused = layer.layer(service_fn(answers)).call(request(()));
        assert_eq!(panic_of_one_more_poll(refused).await, text);
    }
}

#[tokio::test]
async fn a_response_future_whose_service_panicked_panics_again() {
    let server = RedisServer::start();
    let store = RedisStore::open(&server.url()).unwrap();
    let layer = RateLimitLayer::new(store, Quota::per_minute(2));
    let panics =
        |_: Request<()>| -> Ready<Result<Response<Empty<Bytes>>, Infallible>> { panic!("called") };
    let called = layer.layer(service_fn(panics)).call(request(()));
    assert_eq!(
        panic_of_one_more_poll(called).await,
        "`ResponseFuture` polled after completion"
    );
}

#[tokio::test]
async fn the_answer_to_a_refused_request_says_why() {
    let service = layer(1).name("site").layer(service_fn(ok::<()>));
    let _ = service.clone().oneshot(request(())).await.unwrap();
    let response = service.oneshot(request(())).await.unwrap();
    let rejection = response.extensions().get::<Rejection>().unwrap();
    assert_eq!(
        (rejection.limiter(), rejection.status().as_u16()),
        ("site", 429)
    );
    let RejectionReason::Refused(decision) = rejection.reason() else {
        panic!("{rejection:?}");
    };
    assert_eq!(
        (decision.limit(), decision.used(), decision.remaining()),
        (1, 1, 0)
    );
    assert_eq!(rejection.retry_after(), decision.retry_after());
}

async fn answer(layer: RateLimitLayer) -> (StatusCode, HeaderMap) {
    let response = layer
        .layer(service_fn(ok::<()>))
        .oneshot(request(()))
        .await
        .unwrap();
    (response.status(), response.headers().clone())
}

#[tokio::test]
async fn what_can_never_pass_is_not_told_to_wait() {
    let quota = Quota::per_minute(0);
    for never in [
        RateLimitLayer::new(MemoryStore::new(), quota),
        layer(5).cost(|_| 6),
        layer(5).cost(|_| u32::MAX),
    ] {
        let (status, headers) = answer(never).await;
        assert_eq!(status, StatusCode::TOO_MANY_REQUESTS);
        assert!(!headers.contains_key("retry-after"));
        assert_eq!(headers["x-ratelimit-remaining"], "0");
        assert!(!headers.contains_key("x-ratelimit-reset"));
    }
}

#[tokio::test]
async fn a_cost_that_no_log_takes_at_once_is_a_fault_of_the_server() {
    let (status, headers) = answer(layer(u32::MAX).cost(|_| 100_001)).await;
    assert_eq!(status, StatusCode::INTERNAL_SERVER_ERROR);
    assert!(!headers.contains_key("retry-after"));
}

#[tokio::test]
async fn a_cost_of_zero_passes_uncharged() {
    let free = layer(1).cost(|_| 0);
    for _ in 0..3 {
        let (status, headers) = answer(free.clone()).await;
        assert_eq!(
            (status, &headers["x-ratelimit-remaining"]),
            (StatusCode::OK, &"1".parse().unwrap())
        );
    }
}

#[tokio::test]
async fn without_a_quota_everything_passes_unlabelled_and_unasked() {
    let nowhere = DeadPort::new();
    let store = RedisStore::open(&nowhere.url()).unwrap();
    let (status, headers) = answer(RateLimitLayer::new(store, [])).await;
    assert_eq!(status, StatusCode::OK);
    assert!(!headers.contains_key("x-ratelimit-limit"));
}

#[tokio::test]
async fn a_closed_limit_whose_store_fails_is_503_within_its_deadline() {
    let nowhere = DeadPort::new();
    let store = RedisStore::open(&nowhere.url()).unwrap();
    let begin = std::time::Instant::now();
    let response = RateLimitLayer::new(store, Quota::per_minute(1))
        .on_failure(FailurePolicy::closed())
        .layer(service_fn(ok::<()>))
        .oneshot(request(()))
        .await
        .unwrap();
    assert!(
        begin.elapsed() < Duration::from_millis(200),
        "{:?}",
        begin.elapsed()
    );
    assert_eq!(response.status(), StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(response.headers()["retry-after"], "1");
    let rejection = response.extensions().get::<Rejection>().unwrap();
    let RejectionReason::Failed(error) = rejection.reason() else {
        panic!("{rejection:?}");
    };
    assert_eq!(error.kind(), ErrorKind::Unavailable);
}

#[tokio::test]
async fn a_layer_and_a_job_share_one_limiter() {
    let by_key = key::header("x-api-key");
    let limiter = RateLimiter::new(MemoryStore::new(), Quota::per_minute(10));
    let layer = RateLimitLayer::from(limiter.clone()).key(by_key.clone());
    let _ = limiter.check_n(by_key.of("ada"), 4).await.unwrap();

    let mut request = request(());
    request
        .headers_mut()
        .insert("x-api-key", "ada".parse().unwrap());
    let response = layer
        .layer(service_fn(ok::<()>))
        .oneshot(request)
        .await
        .unwrap();
    assert_eq!(response.headers()["x-ratelimit-remaining"], "5");
}

#[tokio::test]
async fn a_closure_makes_the_key() {
    let layer = layer(1).key(key::from_fn(|parts| parts.uri.query().map(Key::from)));
    let status = async |uri: &str| {
        let mut request = request(());
        *request.uri_mut() = uri.parse().unwrap();
        let response = layer
            .layer(service_fn(ok::<()>))
            .oneshot(request)
            .await
            .unwrap();
        response.status().as_u16()
    };
    assert_eq!(status("/?ada").await, 200);
    assert_eq!(status("/?bob").await, 200);
    assert_eq!(status("/?ada").await, 429);
    assert_eq!(status("/").await, 400);
}

#[test]
fn layers_limiters_and_services_go_anywhere() {
    fn anywhere<T: Clone + std::fmt::Debug + Send + Sync + 'static>(_: &T) {}
    let layer = layer(1);
    anywhere(&layer);
    anywhere(&layer.layer(Strict::default()));
    anywhere(&RateLimiter::new(MemoryStore::new(), []));
}
