//! Slots in the layer: held until the response body ends, unless the handler takes the permit.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::future::pending;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use axum::body::Bytes;
use axum::http::{HeaderMap, Method, Request, Response, StatusCode};
use axum::response::sse::{Event, Sse};
use axum::{Router, routing::get};
use futures_util::StreamExt;
use http_body::{Body, Frame, SizeHint};
use http_body_util::{BodyExt, Empty, Full};
use tollgate::store::TestClock;
use tollgate::{
    Algorithm, Headers, IetfDraft, Level, MemoryStore, Permit, PermitHandle, Plan, Quota,
    RateLimitLayer, RateLimiter, RedisStore, Rejection, RejectionReason, Store, key,
};
use tower::{Layer, ServiceExt, service_fn};

use crate::support::redis_server::RedisServer;

/// A body of these frames. It says that it has ended after the last frame, or only with `None`.
#[derive(Debug, Default)]
struct Frames {
    frames: VecDeque<Result<Frame<Bytes>, &'static str>>,
    announces_end: bool,
}

impl Frames {
    fn new(frames: impl IntoIterator<Item = Result<&'static str, &'static str>>) -> Self {
        let frames = frames.into_iter();
        let frames = frames.map(|text| text.map(|text| Frame::data(Bytes::from(text))));
        Self {
            frames: frames.collect(),
            announces_end: false,
        }
    }

    fn announcing_its_end(self) -> Self {
        Self {
            announces_end: true,
            ..self
        }
    }
}

impl Body for Frames {
    type Data = Bytes;
    type Error = &'static str;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, &'static str>>> {
        Poll::Ready(self.frames.pop_front())
    }

    fn is_end_stream(&self) -> bool {
        self.announces_end && self.frames.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        let mut hint = SizeHint::new();
        hint.set_upper(77);
        hint
    }
}

/// A layer with one key.
fn layer(quotas: impl tollgate::IntoQuotas) -> RateLimitLayer {
    layer_on(MemoryStore::new(), quotas)
}

fn layer_on(store: impl Store, quotas: impl tollgate::IntoQuotas) -> RateLimitLayer {
    RateLimitLayer::new(store, quotas).key(key::global())
}

fn request() -> Request<()> {
    Request::new(())
}

/// Answers a request with this body.
async fn answer<B: Body<Data = Bytes> + Send>(
    layer: &RateLimitLayer,
    request: Request<()>,
    response: Response<B>,
) -> Response<tollgate::ResponseBody<B>> {
    let response = Mutex::new(Some(response));
    let handler = service_fn(|_: Request<()>| {
        let response = response.lock().unwrap().take().unwrap();
        async { Ok::<_, Infallible>(response) }
    });
    layer.layer(handler).oneshot(request).await.unwrap()
}

/// Answers a request with a body of two frames that has not ended.
async fn stream(layer: &RateLimitLayer) -> Response<tollgate::ResponseBody<Frames>> {
    let frames = Frames::new([Ok("one"), Ok("two")]);
    answer(layer, request(), Response::new(frames)).await
}

/// Returns what is used of each quota of a limiter.
async fn used(limiter: &RateLimiter) -> Vec<u32> {
    used_by(limiter, tollgate::Key::global()).await
}

async fn used_by(limiter: &RateLimiter, key: impl tollgate::IntoKey) -> Vec<u32> {
    let decision = limiter.peek(key).await.unwrap();
    decision.quotas().map(|quota| quota.used()).collect()
}

/// Waits until the store knows that so many slots are used.
async fn until_used(limiter: &RateLimiter, expected: u32) {
    let began = Instant::now();
    loop {
        let used = used(limiter).await;
        if used == [expected] {
            return;
        }
        let patience = Duration::from_secs(5);
        assert!(began.elapsed() < patience, "{used:?}, expected {expected}");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

fn text<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name).map(|value| value.to_str().unwrap())
}

#[tokio::test]
async fn a_slot_is_held_until_the_body_ends() {
    let layer = layer(Quota::in_flight(2));
    let mut response = stream(&layer).await;
    assert_eq!(response.status(), StatusCode::OK);
    for _ in 0..2 {
        assert_eq!(used(layer.limiter()).await, [1]);
        assert!(response.frame().await.unwrap().is_ok());
    }
    // Only `None` tells the end of this body.
    tokio::time::sleep(Duration::from_millis(10)).await;
    assert_eq!(used(layer.limiter()).await, [1]);
    assert!(response.frame().await.is_none());
    until_used(layer.limiter(), 0).await;
}

#[tokio::test]
async fn a_slot_is_given_back_with_the_last_frame_if_the_body_announces_it() {
    let layer = layer(Quota::in_flight(2));
    let frames = Frames::new([Ok("one"), Ok("two")]).announcing_its_end();
    let mut response = answer(&layer, request(), Response::new(frames)).await;
    assert!(response.frame().await.unwrap().is_ok());
    tokio::time::sleep(Duration::from_millis(10)).await;
    assert_eq!(used(layer.limiter()).await, [1]);
    assert!(response.frame().await.unwrap().is_ok());
    until_used(layer.limiter(), 0).await;
    assert!(response.body().is_end_stream());
}

#[tokio::test]
async fn a_slot_is_given_back_if_the_body_fails_or_is_dropped_half_way_or_unread() {
    let layer = layer(Quota::in_flight(3));
    let frames = Frames::new([Ok("one"), Err("broken"), Ok("never")]);
    let mut failed = answer(&layer, request(), Response::new(frames)).await;
    let mut half = stream(&layer).await;
    let unread = stream(&layer).await;
    assert!(half.frame().await.unwrap().is_ok());
    assert!(failed.frame().await.unwrap().is_ok());
    assert_eq!(used(layer.limiter()).await, [3]);
    assert_eq!(failed.frame().await.unwrap().unwrap_err(), "broken");
    until_used(layer.limiter(), 2).await;
    drop(half);
    until_used(layer.limiter(), 1).await;
    drop(unread);
    until_used(layer.limiter(), 0).await;
    drop(failed);
}

#[tokio::test]
async fn the_size_and_the_end_of_a_body_are_forwarded() {
    let layer = layer(Quota::in_flight(9));
    let response = stream(&layer).await;
    assert_eq!(response.body().size_hint().upper(), Some(77));
    assert!(!response.body().is_end_stream());
    let full = Response::new(Full::new(Bytes::from("eight by")));
    let mut response = answer(&layer, request(), full).await;
    assert_eq!(response.body().size_hint().exact(), Some(8));
    assert!(!response.body().is_end_stream());
    response.frame().await.unwrap().unwrap();
    assert!(response.body().is_end_stream());
    assert_eq!(response.body().size_hint().exact(), Some(0));
}

#[tokio::test]
async fn a_response_without_a_body_gives_its_slot_back_with_the_head() {
    let layer = layer(Quota::in_flight(1));
    let cases = [
        (Method::HEAD, 200, true),
        (Method::GET, 204, true),
        (Method::POST, 205, true),
        (Method::GET, 304, true),
        (Method::GET, 101, true),
        (Method::CONNECT, 200, true),
        (Method::CONNECT, 204, true),
        // A refused tunnel has a body.
        (Method::CONNECT, 403, false),
        (Method::GET, 200, false),
        (Method::GET, 500, false),
    ];
    for (method, status, is_over) in cases {
        let request = Request::builder().method(method.clone()).body(()).unwrap();
        let response = Response::builder().status(status);
        let response = response.body(Frames::new([Ok("text")])).unwrap();
        // The body is kept: an outer router may drop it only later.
        let response = answer(&layer, request, response).await;
        assert_eq!(response.status().as_u16(), status, "{method}");
        if is_over {
            until_used(layer.limiter(), 0).await;
        } else {
            tokio::time::sleep(Duration::from_millis(5)).await;
            assert_eq!(used(layer.limiter()).await, [1], "{method} {status}");
        }
        drop(response);
        until_used(layer.limiter(), 0).await;
    }
    let empty = answer(&layer, request(), Response::new(Empty::new())).await;
    until_used(layer.limiter(), 0).await;
    drop(empty);
}

#[tokio::test]
async fn a_handler_that_takes_the_permit_keeps_the_slot_after_the_body() {
    let layer = layer(Quota::in_flight(1));
    let kept: Arc<Mutex<Vec<Option<Permit>>>> = Arc::default();
    let handles: Arc<Mutex<Vec<PermitHandle>>> = Arc::default();
    let respond = async |status: u16| {
        let (kept, handles) = (Arc::clone(&kept), Arc::clone(&handles));
        let handler = service_fn(move |request: Request<()>| {
            let handle = request.extensions().get::<PermitHandle>().unwrap().clone();
            kept.lock().unwrap().push(handle.take());
            handles.lock().unwrap().push(handle);
            let response = Response::builder().status(status);
            let response = response.body(Full::new(Bytes::from("started"))).unwrap();
            async { Ok::<_, Infallible>(response) }
        });
        let response = layer.layer(handler).oneshot(request()).await.unwrap();
        response.into_body().collect().await.unwrap();
    };
    for status in [200, 101] {
        respond(status).await;
        tokio::time::sleep(Duration::from_millis(10)).await;
        assert_eq!(used(layer.limiter()).await, [1]);
        assert!(handles.lock().unwrap()[0].take().is_none());
        let permit = kept.lock().unwrap().pop().unwrap().unwrap();
        assert_eq!(permit.decision().remaining(), 0);
        // The work goes on in a task.
        tokio::spawn(async move {
            tokio::task::yield_now().await;
            drop(permit);
        });
        until_used(layer.limiter(), 0).await;
        handles.lock().unwrap().clear();
    }
}

#[tokio::test]
async fn a_handle_that_outlives_the_response_holds_nothing() {
    let layer = layer(Quota::in_flight(1));
    let handle: Arc<Mutex<Option<PermitHandle>>> = Arc::default();
    let handler = service_fn(|request: Request<()>| {
        *handle.lock().unwrap() = request.extensions().get().cloned();
        async { Ok::<_, Infallible>(Response::new(Empty::<Bytes>::new())) }
    });
    let response = layer.layer(handler).oneshot(request()).await.unwrap();
    until_used(layer.limiter(), 0).await;
    drop(response);
    assert!(handle.lock().unwrap().take().unwrap().take().is_none());
}

#[tokio::test]
async fn handlers_that_panic_or_fail_and_dropped_requests_give_their_slots_back() {
    let layer = layer(Quota::in_flight(3));
    let panics = service_fn(
        async |_: Request<()>| -> Result<Response<Frames>, Infallible> {
            tokio::task::yield_now().await;
            panic!("as the test wants")
        },
    );
    let service = layer.layer(panics);
    let joined = tokio::spawn(service.oneshot(request())).await;
    assert!(joined.unwrap_err().is_panic());
    until_used(layer.limiter(), 0).await;

    let fails = service_fn(async |_: Request<()>| Err::<Response<Frames>, _>("failed"));
    let failed = layer.layer(fails).oneshot(request()).await;
    assert_eq!(failed.unwrap_err(), "failed");
    until_used(layer.limiter(), 0).await;

    let hangs = service_fn(|_: Request<()>| pending::<Result<Response<Frames>, Infallible>>());
    let hanging = layer.layer(hangs).oneshot(request());
    let mut hanging = Box::pin(hanging);
    let mut cx = Context::from_waker(Waker::noop());
    assert!(hanging.as_mut().poll(&mut cx).is_pending());
    assert_eq!(used(layer.limiter()).await, [1]);
    drop(hanging);
    until_used(layer.limiter(), 0).await;
}

#[tokio::test]
async fn ten_thousand_event_streams_dropped_half_way_leave_nothing() {
    const STREAMS: u32 = 10_000;
    let layer = layer(Quota::in_flight(STREAMS));
    let events = get(async || {
        let first = futures_util::stream::iter([Ok::<_, Infallible>(Event::default().data("one"))]);
        Sse::new(first.chain(futures_util::stream::pending()))
    });
    let app = Router::new().route("/", events).layer(layer.clone());
    let ask = async || {
        let request = Request::new(axum::body::Body::empty());
        app.clone().oneshot(request).await.unwrap()
    };
    let mut open = Vec::new();
    for _ in 0..STREAMS {
        let mut response = ask().await;
        assert_eq!(response.status(), StatusCode::OK);
        response.frame().await.unwrap().unwrap();
        open.push(response);
    }
    assert_eq!(used(layer.limiter()).await, [STREAMS]);
    assert_eq!(ask().await.status(), StatusCode::TOO_MANY_REQUESTS);
    drop(open);
    until_used(layer.limiter(), 0).await;
}

#[tokio::test]
async fn a_refused_request_gets_a_429_with_a_suggested_wait_and_no_reset() {
    let layer = layer(Quota::in_flight(1));
    let open = stream(&layer).await;
    assert_eq!(text(open.headers(), "x-ratelimit-limit"), Some("1"));
    assert_eq!(text(open.headers(), "x-ratelimit-remaining"), Some("0"));
    assert!(!open.headers().contains_key("x-ratelimit-reset"));
    let refused = stream(&layer).await;
    assert_eq!(refused.status(), StatusCode::TOO_MANY_REQUESTS);
    let headers = refused.headers();
    let wait: u64 = text(headers, "retry-after").unwrap().parse().unwrap();
    assert!((1..=60).contains(&wait), "{wait}");
    assert_eq!(text(headers, "x-ratelimit-limit"), Some("1"));
    assert_eq!(text(headers, "x-ratelimit-remaining"), Some("0"));
    assert!(!headers.contains_key("x-ratelimit-reset"));
    drop(open);
    until_used(layer.limiter(), 0).await;
    assert_eq!(stream(&layer).await.status(), StatusCode::OK);
}

#[tokio::test]
async fn the_layer_sets_the_status_of_a_refusal() {
    let layer = layer(Quota::in_flight(0)).status(StatusCode::SERVICE_UNAVAILABLE);
    let refused = stream(&layer).await;
    assert_eq!(refused.status(), StatusCode::SERVICE_UNAVAILABLE);
    // No wait helps.
    assert!(!refused.headers().contains_key("retry-after"));
}

#[tokio::test]
async fn draft_11_lists_slots_with_their_unit_and_without_times() {
    let quotas = [
        Quota::in_flight(1).with_name("streams"),
        Quota::per_minute(9).with_name("rate"),
    ];
    let layer = layer(quotas).headers(Headers::ietf(IetfDraft::Draft11));
    let open = stream(&layer).await;
    let policies = r#""streams";q=1;qu="concurrent-requests", "rate";q=9;w=60"#;
    assert_eq!(text(open.headers(), "ratelimit-policy"), Some(policies));
    let limits = text(open.headers(), "ratelimit").unwrap();
    assert!(
        limits.starts_with(r#""streams";r=0, "rate";r=8;t="#),
        "{limits}"
    );
    let refused = stream(&layer).await;
    assert_eq!(text(refused.headers(), "ratelimit-policy"), Some(policies));
    assert_eq!(
        text(refused.headers(), "ratelimit"),
        Some(r#""streams";r=0"#)
    );
}

#[tokio::test]
async fn earlier_drafts_leave_slots_out() {
    for draft in [IetfDraft::Draft03, IetfDraft::Draft06, IetfDraft::Draft07] {
        let only = layer(Quota::in_flight(1)).headers(Headers::ietf(draft));
        let open = stream(&only).await;
        for response in [&open, &stream(&only).await] {
            let mut names = response.headers().keys();
            let has_any = names.any(|name| name.as_str().starts_with("ratelimit"));
            assert!(!has_any, "{draft:?} {:?}", response.headers());
        }
        let quotas = [Quota::in_flight(1), Quota::per_minute(9)];
        let both = layer(quotas).headers(Headers::ietf(draft));
        let open = stream(&both).await;
        for response in [&open, &stream(&both).await] {
            let headers = response.headers();
            match draft {
                IetfDraft::Draft07 => {
                    assert_eq!(text(headers, "ratelimit-policy"), Some("9;w=60"));
                    let limits = text(headers, "ratelimit").unwrap();
                    let start = "limit=9, remaining=8, reset=";
                    assert!(limits.starts_with(start), "{limits}");
                }
                IetfDraft::Draft06 => {
                    assert_eq!(text(headers, "ratelimit-policy"), Some("9;w=60"));
                    assert_eq!(text(headers, "ratelimit-limit"), Some("9"));
                    assert_eq!(text(headers, "ratelimit-remaining"), Some("8"));
                }
                _ => {
                    assert_eq!(text(headers, "ratelimit-limit"), Some("9, 9;w=60"));
                    assert_eq!(text(headers, "ratelimit-remaining"), Some("8"));
                }
            }
        }
    }
}

#[tokio::test]
async fn a_request_that_waits_gets_the_slot_when_it_is_free() {
    let layer = layer(Quota::in_flight(1)).wait_up_to(Duration::from_secs(20));
    let open = stream(&layer).await;
    let order: Arc<Mutex<Vec<u32>>> = Arc::default();
    let mut waiting = Vec::new();
    for number in 0..3 {
        let (layer, order) = (layer.clone(), Arc::clone(&order));
        waiting.push(tokio::spawn(async move {
            let response = stream(&layer).await;
            order.lock().unwrap().push(number);
            response.status()
        }));
        tokio::task::yield_now().await;
    }
    tokio::time::sleep(Duration::from_millis(10)).await;
    assert!(order.lock().unwrap().is_empty());
    drop(open);
    for response in waiting {
        assert_eq!(response.await.unwrap(), StatusCode::OK);
    }
    assert_eq!(*order.lock().unwrap(), [0, 1, 2]);
    until_used(layer.limiter(), 0).await;
}

#[tokio::test]
async fn a_request_that_has_waited_in_vain_is_refused() {
    let layer = layer(Quota::in_flight(1)).wait_up_to(Duration::from_millis(60));
    let open = stream(&layer).await;
    let began = Instant::now();
    let refused = stream(&layer).await;
    assert_eq!(refused.status(), StatusCode::TOO_MANY_REQUESTS);
    assert!(began.elapsed() >= Duration::from_millis(55));
    drop(open);
    until_used(layer.limiter(), 0).await;
}

#[tokio::test]
async fn a_request_of_a_blocked_key_waits_until_the_block_ends() {
    let layer = layer(Quota::in_flight(1)).wait_up_to(Duration::from_secs(20));
    let admin = layer.limiter().admin();
    let block = Duration::from_millis(300);
    admin.block(tollgate::Key::global(), block).await.unwrap();
    let began = Instant::now();
    assert_eq!(stream(&layer).await.status(), StatusCode::OK);
    assert!(began.elapsed() >= block);
}

#[tokio::test]
async fn a_skipped_request_takes_no_slot() {
    let layer = layer(Quota::in_flight(1)).skip(|parts| parts.uri.path() == "/health");
    let health = Request::get("/health").body(()).unwrap();
    let frames = Response::new(Frames::new([Ok("one")]));
    let response = answer(&layer, health, frames).await;
    assert_eq!(response.status(), StatusCode::OK);
    assert_eq!(used(layer.limiter()).await, [0]);
}

#[tokio::test]
async fn a_dry_run_that_is_refused_goes_on_and_holds_nothing() {
    let layer = layer(Quota::in_flight(1))
        .dry_run()
        .wait_up_to(Duration::from_secs(60));
    let open = stream(&layer).await;
    assert_eq!(used(layer.limiter()).await, [1]);
    let handler = service_fn(async |request: Request<()>| {
        let handle = request.extensions().get::<PermitHandle>();
        assert!(handle.is_none());
        Ok::<_, Infallible>(Response::new(Frames::new([Ok("one")])))
    });
    let response = layer.layer(handler).oneshot(request()).await.unwrap();
    assert_eq!(response.status(), StatusCode::OK);
    drop(open);
    until_used(layer.limiter(), 0).await;
    drop(response);
}

#[tokio::test]
async fn a_cost_of_0_takes_a_slot_and_looks_at_the_rates() {
    let quotas = [Quota::per_hour(2), Quota::in_flight(2)];
    let layer = layer(quotas).cost(|parts| u32::from(parts.uri.path() != "/free"));
    let free = async || {
        let request = Request::get("/free").body(()).unwrap();
        answer(&layer, request, Response::new(Frames::new([Ok("one")]))).await
    };
    let first = free().await;
    assert_eq!(used(layer.limiter()).await, [0, 1]);
    let second = free().await;
    assert_eq!(used(layer.limiter()).await, [0, 2]);
    assert_eq!(free().await.status(), StatusCode::TOO_MANY_REQUESTS);
    drop((first, second));
    let both = [stream(&layer).await, stream(&layer).await];
    assert!(both.iter().all(|response| response.status().is_success()));
    drop(both);
    // No units are left, which a cost of 0 does not need.
    let response = free().await;
    assert_eq!(response.status(), StatusCode::OK);
    assert_eq!(used(layer.limiter()).await, [2, 1]);
}

#[tokio::test]
async fn a_cost_of_0_takes_a_slot_although_a_rate_was_lowered_below_its_use() {
    let store = MemoryStore::new();
    let before = layer_on(store.clone(), [Quota::per_hour(5), Quota::in_flight(1)]);
    for _ in 0..4 {
        assert!(stream(&before).await.status().is_success());
    }
    let layer = layer_on(store, [Quota::per_hour(2), Quota::in_flight(1)]).cost(|_| 0);
    let open = stream(&layer).await;
    assert_eq!(open.status(), StatusCode::OK);
    assert_eq!(used(layer.limiter()).await, [4, 1]);
    assert_eq!(stream(&layer).await.status(), StatusCode::TOO_MANY_REQUESTS);
    drop(open);
    assert_eq!(stream(&layer).await.status(), StatusCode::OK);
}

#[tokio::test]
async fn a_layer_takes_several_slots_whatever_the_cost() {
    let layer = layer(Quota::in_flight(5)).slots(2).cost(|_| 40);
    let one = stream(&layer).await;
    let two = stream(&layer).await;
    assert_eq!(used(layer.limiter()).await, [4]);
    let refused = stream(&layer).await;
    assert_eq!(refused.status(), StatusCode::TOO_MANY_REQUESTS);
    assert!(refused.headers().contains_key("retry-after"));
    drop((one, two));
    until_used(layer.limiter(), 0).await;
    // Never granted, so there is no wait.
    let refused = stream(&layer.slots(6)).await;
    assert_eq!(refused.status(), StatusCode::TOO_MANY_REQUESTS);
    assert!(!refused.headers().contains_key("retry-after"));
}

#[tokio::test]
async fn a_rate_and_slots_are_taken_together_or_not_at_all() {
    let layer = layer([Quota::per_hour(3), Quota::in_flight(1)]);
    let open = stream(&layer).await;
    assert_eq!(used(layer.limiter()).await, [1, 1]);
    assert_eq!(stream(&layer).await.status(), StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(used(layer.limiter()).await, [1, 1]);
    drop(open);
    for _ in 0..2 {
        assert_eq!(stream(&layer).await.status(), StatusCode::OK);
    }
    let refused = stream(&layer).await;
    let Some(RejectionReason::Refused(decision)) = refused
        .extensions()
        .get::<Rejection>()
        .map(Rejection::reason)
    else {
        panic!("{refused:?}");
    };
    // The rate refuses, and its wait is true.
    assert!(decision.retry_after().unwrap() > Duration::from_secs(60));
    tokio::time::sleep(Duration::from_millis(10)).await;
    assert_eq!(used(layer.limiter()).await, [3, 0]);
}

#[tokio::test]
async fn a_settled_charge_gives_back_units_and_no_slots() {
    let layer = layer([Quota::per_hour(100), Quota::in_flight(3)])
        .cost(|_| 10)
        .settle(|_, _, _| 4);
    let open = stream(&layer).await;
    assert_eq!(used(layer.limiter()).await, [4, 1]);
    drop(open);
    let layer = layer.settle(|_, _, _| 0);
    let open = stream(&layer).await;
    assert_eq!(used(layer.limiter()).await, [4, 1]);
    drop(open);
}

#[tokio::test]
async fn a_settlement_charges_the_rates_what_is_missing_whether_slots_are_free_or_not() {
    for slots in [1, 3] {
        for algorithm in [Algorithm::SlidingLog, Algorithm::FixedWindow] {
            let rate = Quota::per_hour(100).with_algorithm(algorithm);
            let layer = layer([rate, Quota::in_flight(slots)])
                .cost(|_| 10)
                .settle(|_, _, _| 25);
            let open = stream(&layer).await;
            assert_eq!(used(layer.limiter()).await, [25, 1]);
            drop(open);
        }
    }
    // The missing units are charged also after the window of the reservation has passed.
    let clock = TestClock::new();
    let minute = Duration::from_secs(60);
    let limiter = RateLimiter::new(
        MemoryStore::with_clock(clock.clone()),
        [Quota::new(100, minute), Quota::in_flight(3)],
    );
    let permit = limiter.acquire("ada").await.unwrap();
    clock.advance(minute);
    permit.into_decision().settle(40).await.unwrap();
    let decision = limiter.peek("ada").await.unwrap();
    assert_eq!(decision.quotas().next().unwrap().used(), 39);
}

/// A layer with slots of users, and of tenants.
fn levels(store: impl Store + Clone) -> (RateLimitLayer, RateLimiter) {
    let tenants = RateLimiter::new(store.clone(), Quota::in_flight(3)).name("tenant");
    let level = Level::new(tenants.clone(), key::header("x-tenant")).slots(2);
    let layer = RateLimitLayer::new(store, Quota::in_flight(2))
        .name("user")
        .key(key::header("x-user"))
        .and_level(level);
    (layer, tenants)
}

fn from(user: &str, tenant: &str) -> Request<()> {
    let request = Request::builder().header("x-user", user);
    request.header("x-tenant", tenant).body(()).unwrap()
}

fn header_key(name: &str, value: &str) -> tollgate::Key {
    let request = Request::builder().header(name, value).body(()).unwrap();
    let (parts, ()) = request.into_parts();
    tollgate::KeyExtractor::extract(&key::header(name), &parts).unwrap()
}

#[tokio::test]
async fn levels_take_their_slots_together_or_not_at_all() {
    let (layer, tenants) = levels(MemoryStore::new());
    let ask = async |user: &str, tenant: &str| {
        answer(
            &layer,
            from(user, tenant),
            Response::new(Frames::new([Ok("one")])),
        )
        .await
    };
    let (ada, acme) = (header_key("x-user", "ada"), header_key("x-tenant", "acme"));
    let open = ask("ada", "acme").await;
    assert_eq!(open.status(), StatusCode::OK);
    assert_eq!(used_by(layer.limiter(), &ada).await, [1]);
    assert_eq!(used_by(&tenants, &acme).await, [2]);
    let refused = ask("ada", "acme").await;
    assert_eq!(refused.status(), StatusCode::TOO_MANY_REQUESTS);
    let rejection = refused.extensions().get::<Rejection>().unwrap();
    assert_eq!(rejection.limiter(), "tenant");
    assert_eq!(used_by(layer.limiter(), &ada).await, [1]);
    let other = ask("ada", "other").await;
    assert_eq!(other.status(), StatusCode::OK);
    let refused = ask("ada", "third").await;
    let rejection = refused.extensions().get::<Rejection>().unwrap();
    assert_eq!(rejection.limiter(), "user");
    drop((open, other));
    tokio::time::sleep(Duration::from_millis(20)).await;
    assert_eq!(used_by(layer.limiter(), &ada).await, [0]);
    assert_eq!(used_by(&tenants, &acme).await, [0]);
}

#[tokio::test]
async fn a_level_of_slots_beside_one_of_rates_only() {
    let store = MemoryStore::new();
    let tenants = RateLimiter::new(store.clone(), Quota::in_flight(1)).name("tenant");
    let layer = RateLimitLayer::new(store, Quota::per_hour(9))
        .key(key::global())
        .and(tenants.clone(), key::global());
    let open = stream(&layer).await;
    assert_eq!(used(layer.limiter()).await, [1]);
    assert_eq!(used(&tenants).await, [1]);
    assert_eq!(stream(&layer).await.status(), StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(used(layer.limiter()).await, [1]);
    drop(open);
    until_used(&tenants, 0).await;
}

#[tokio::test]
async fn plans_have_slots_of_their_own() {
    let layer = layer(Quota::per_hour(100)).quotas_for(|_, parts| {
        let path = parts.uri.path().to_owned();
        async move {
            Ok::<_, Infallible>(match &*path {
                "/pro" => Plan::Quotas(Quota::in_flight(2).into()),
                "/free" => Plan::Quotas(Quota::in_flight(1).into()),
                _ => Plan::Exempt,
            })
        }
    });
    let ask = async |path: &str| {
        let request = Request::get(path).body(()).unwrap();
        answer(&layer, request, Response::new(Frames::new([Ok("one")]))).await
    };
    let open = ask("/free").await;
    assert_eq!(open.status(), StatusCode::OK);
    assert_eq!(ask("/free").await.status(), StatusCode::TOO_MANY_REQUESTS);
    // The slots of a key are the same in every plan.
    let second = ask("/pro").await;
    assert_eq!(second.status(), StatusCode::OK);
    assert_eq!(ask("/pro").await.status(), StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(ask("/exempt").await.status(), StatusCode::OK);
    drop(second);
    tokio::time::sleep(Duration::from_millis(10)).await;
    assert_eq!(ask("/free").await.status(), StatusCode::TOO_MANY_REQUESTS);
    drop(open);
    tokio::time::sleep(Duration::from_millis(10)).await;
    assert_eq!(ask("/free").await.status(), StatusCode::OK);
}

#[tokio::test]
async fn nested_layers_hold_their_slots_for_the_same_time() {
    let (outer, inner) = (layer(Quota::in_flight(2)), layer(Quota::in_flight(1)));
    let handler = service_fn(async |request: Request<()>| {
        let handle = request.extensions().get::<PermitHandle>().unwrap();
        let permit = (request.uri().path() == "/job").then(|| handle.take().unwrap());
        let mut response = Response::new(Frames::new([Ok("one")]));
        response
            .extensions_mut()
            .insert(Arc::new(Mutex::new(permit)));
        Ok::<_, Infallible>(response)
    });
    let service = outer.layer(inner.layer(handler));
    let open = service.clone().oneshot(request()).await.unwrap();
    assert_eq!(
        (used(outer.limiter()).await, used(inner.limiter()).await),
        (vec![1], vec![1])
    );
    // The inner layer refuses, and the outer one holds nothing for it when the body was read.
    let refused = service.clone().oneshot(request()).await.unwrap();
    assert_eq!(refused.status(), StatusCode::TOO_MANY_REQUESTS);
    drop(refused);
    until_used(outer.limiter(), 1).await;
    drop(open);
    until_used(outer.limiter(), 0).await;
    until_used(inner.limiter(), 0).await;

    // A handler that takes the permit takes those of both layers.
    let job = Request::get("/job").body(()).unwrap();
    let response = service.oneshot(job).await.unwrap();
    let taken = response.extensions().get::<Arc<Mutex<Option<Permit>>>>();
    let permit = taken.unwrap().lock().unwrap().take().unwrap();
    drop(response);
    tokio::time::sleep(Duration::from_millis(10)).await;
    assert_eq!(
        (used(outer.limiter()).await, used(inner.limiter()).await),
        (vec![1], vec![1])
    );
    drop(permit);
    until_used(outer.limiter(), 0).await;
    until_used(inner.limiter(), 0).await;
}

#[tokio::test]
async fn processes_share_the_slots_of_streams_on_redis() {
    let server = RedisServer::start();
    let [one, other] = [(); 2].map(|()| {
        let store = RedisStore::open(&server.url()).unwrap();
        layer_on(store.deadline(Duration::from_secs(5)), Quota::in_flight(2))
    });
    let mut first = stream(&one).await;
    let second = stream(&other).await;
    assert!(first.status().is_success() && second.status().is_success());
    for layer in [&one, &other] {
        let refused = stream(layer).await;
        assert_eq!(refused.status(), StatusCode::TOO_MANY_REQUESTS);
    }
    while first.frame().await.is_some() {}
    until_used(other.limiter(), 1).await;
    // This process repeats its refusal for a short time, whatever another one gives back.
    tokio::time::sleep(Duration::from_millis(25)).await;
    let third = stream(&other).await;
    assert_eq!(third.status(), StatusCode::OK);
    drop((second, third));
    until_used(one.limiter(), 0).await;

    let waits = one.clone().wait_up_to(Duration::from_secs(20));
    let open = [stream(&other).await, stream(&other).await];
    let waiting = tokio::spawn(async move { stream(&waits).await.status() });
    tokio::time::sleep(Duration::from_millis(50)).await;
    drop(open);
    assert_eq!(waiting.await.unwrap(), StatusCode::OK);
    until_used(other.limiter(), 0).await;
}

#[tokio::test]
async fn streams_that_a_client_of_http_2_resets_give_their_slots_back() {
    use tonic::service::Routes;
    use tonic::transport::server::TcpIncoming;
    use tonic::transport::{Channel, Server};
    use tower::Service;

    let layer = layer(Quota::in_flight(50));
    let events = get(async || {
        let first = futures_util::stream::iter([Ok::<_, Infallible>(Event::default().data("one"))]);
        Sse::new(first.chain(futures_util::stream::pending()))
    });
    let app = Router::new().route("/", events).layer(layer.clone());
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let server = Server::builder().add_routes(Routes::from(app));
    tokio::spawn(server.serve_with_incoming(TcpIncoming::from(listener)));
    let channel = Channel::from_shared(format!("http://{address}")).unwrap();
    let mut channel = channel.connect().await.unwrap();
    let mut open = Vec::new();
    for _ in 0..50 {
        let request = Request::get("/").body(tonic::body::Body::empty()).unwrap();
        std::future::poll_fn(|cx| channel.poll_ready(cx))
            .await
            .unwrap();
        let mut response = channel.call(request).await.unwrap();
        assert_eq!(response.status(), StatusCode::OK);
        response.frame().await.unwrap().unwrap();
        open.push(response);
    }
    assert_eq!(used(layer.limiter()).await, [50]);
    drop(open);
    until_used(layer.limiter(), 0).await;
}
