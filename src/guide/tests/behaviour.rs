//! Defaults that are not constants: what is done where nothing was told, in words of the page.

use std::convert::Infallible;
use std::net::{Ipv6Addr, SocketAddr};
use std::num::NonZeroU32;
use std::time::Duration;

use http::header::{CONTENT_LENGTH, CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderMap, Request, Response};
use tower::{Layer, ServiceExt, service_fn};

use crate::key::{KeyExtractor, PeerAddr, extractor as key};
use crate::store::{Checked, TestStore};
use crate::decision::{DecisionView, Source};
use crate::error::ErrorKind;
use crate::limiter::{FailurePolicy, RateLimiter};
use crate::middleware::{Headers, RateLimitLayer, Rejection, ResponseBody, WouldReject};
use crate::store::{MemoryStore, RedisStore};
use crate::quota::Quota;

/// What is done about this.
pub(super) fn of(name: &str) -> String {
    let text = match name {
        "algorithm" => return format!("`{:?}`", Quota::per_minute(1).counted_by()),
        "quota's name" => Quota::per_minute(1).name().map_or("none", |_| "one"),
        "name" => return format!("`{}`", asked().limiter().as_str()),
        "cost" => return format!("{} unit", asked().cost()),
        "skip" => "nothing", // It was asked.
        "quotas" if asked().quotas() == limiter(TestStore::new()).quotas() => "the layer's own",
        "patience" if !waits() => "not at all",
        "settled" if stays_charged() => "the charge stays",
        "dry run"
            if answer(&layer(used_up()))
                .extensions()
                .get::<WouldReject>()
                .is_none() =>
        {
            "it refuses"
        }
        "key" if asked().key() == &key::peer_ip().of(address().ip()) => "`peer_ip()`",
        "ipv6 prefix" => return ipv6_prefixes(),
        "missing key" => {
            return format!(
                "refused with {}",
                status(&layer(TestStore::new()).key(key::header("x")))
            );
        }
        "unknown peer" => {
            return format!(
                "refused with {}",
                status_of(&layer(TestStore::new()), Request::new(()))
            );
        }
        "trusted" => {
            return format!(
                "nobody is trusted: {}",
                status(&layer(TestStore::new()).key(key::client_ip()))
            );
        }
        "header" if is_hashed(&key::header("x-key")) => "hashed",
        "extension"
            if key::extension::<String>()
                .of(&"ada".to_owned())
                .as_str()
                .ends_with("=ada") =>
        {
            "as it is"
        }
        "grpc" if grpc_call_on(&layer(used_up())).status() == 429 => "an HTTP status",
        "refused upload" => return format!("`Connection: {}`", closes_refused_upload()),
        "status" => return status(&layer(used_up())).to_string(),
        "body" => return format!("`{}`", body().trim_end()),
        "headers" => return dialects(),
        // A second of this century.
        "reset" if header(refused().headers(), "x-ratelimit-reset") > 1_700_000_000 => "Unix time",
        "rounding" if header(refused().headers(), RETRY_AFTER.as_str()) == 2 => "rounded up",
        "policy of a layer" if fails_to(&layer(failing())) == Some(Source::Fallback) => {
            "`fall_back()`"
        }
        "policy of a limiter" if block_on(limiter(failing()).check("ada")).is_err() => "the error",
        "share"
            if FailurePolicy::fall_back().share(NonZeroU32::MIN) == FailurePolicy::fall_back() =>
        {
            "the whole limit"
        }
        "tracked" if tracks_nobody() => "no key",
        "batches" if batches() => "on",
        "time to live" if crate::algorithm::time_to_live_millis(60_000_000) == 121_000 => {
            "two windows and a second"
        }
        "most cost" => return most_cost(),
        "max keys" => return thousands(MemoryStore::new().max_keys()),
        _ => return format!("something else, or nothing that tests know: {name}"),
    };
    text.to_owned()
}

/// Of a store that counts, one that refuses, or one that fails.
fn layer(store: TestStore) -> RateLimitLayer {
    RateLimitLayer::new(store, Quota::per_minute(9))
}

fn limiter(store: TestStore) -> RateLimiter {
    RateLimiter::new(store, Quota::per_minute(9))
}

fn used_up() -> TestStore {
    let store = TestStore::new();
    store.refuse_all(Duration::from_millis(1_001));
    store
}

fn failing() -> TestStore {
    let store = TestStore::new();
    store.fail_all(ErrorKind::Unavailable);
    store
}

fn address() -> SocketAddr {
    (Ipv6Addr::new(0x2001, 0xdb8, 1, 2, 3, 4, 5, 6), 4711).into()
}

fn request() -> Request<()> {
    let mut request = Request::new(());
    request.extensions_mut().insert(PeerAddr(address()));
    request
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    runtime
        .enable_time()
        .build()
        .expect("a runtime")
        .block_on(future)
}

/// What comes of a request, which is answered with what its handler was told.
fn answer_to(layer: &RateLimitLayer, request: Request<()>) -> Response<ResponseBody<String>> {
    let inner = service_fn(|request: Request<()>| async move {
        let mut response = Response::new(String::new());
        if let Some(decision) = request.extensions().get::<DecisionView>() {
            response.extensions_mut().insert(decision.clone());
        }
        Ok::<_, Infallible>(response)
    });
    block_on(layer.layer(inner).oneshot(request)).unwrap_or_else(|never| match never {})
}

/// What comes of a request for which there is no room.
pub(super) fn refused() -> Response<ResponseBody<String>> {
    answer(&layer(used_up()))
}

/// The response to a call of gRPC for which there is room in three seconds.
pub(super) fn refused_grpc() -> Response<ResponseBody<String>> {
    let store = TestStore::new();
    store.refuse_all(Duration::from_secs(3));
    grpc_call_on(&layer(store).grpc())
}

fn grpc_call_on(layer: &RateLimitLayer) -> Response<ResponseBody<String>> {
    let mut request = request();
    *request.method_mut() = http::Method::POST;
    let grpc = http::HeaderValue::from_static("application/grpc");
    request.headers_mut().insert(CONTENT_TYPE, grpc);
    answer_to(layer, request)
}

/// `Connection` of the response to a refused upload.
fn closes_refused_upload() -> String {
    let mut request = request();
    request
        .headers_mut()
        .insert(CONTENT_LENGTH, http::HeaderValue::from_static("9"));
    let refused = answer_to(&layer(used_up()), request);
    let connection = refused.headers().get(http::header::CONNECTION);
    let connection = connection.map_or("-", |value| value.to_str().expect("text"));
    connection.to_owned()
}

fn answer(layer: &RateLimitLayer) -> Response<ResponseBody<String>> {
    answer_to(layer, request())
}

fn status_of(layer: &RateLimitLayer, request: Request<()>) -> u16 {
    answer_to(layer, request).status().as_u16()
}

fn status(layer: &RateLimitLayer) -> u16 {
    status_of(layer, request())
}

/// What a store is asked for a request.
fn asked() -> Checked {
    let store = TestStore::new();
    answer(&layer(store.clone()));
    store.take_checks().pop().expect("a check")
}

fn waits() -> bool {
    let began = std::time::Instant::now();
    answer(&layer(used_up()));
    began.elapsed() > Duration::from_secs(1)
}

fn stays_charged() -> bool {
    let store = TestStore::new();
    answer(&layer(store.clone()));
    let key = key::peer_ip().of(address().ip());
    block_on(limiter(store).peek(key)).is_ok_and(|decision| decision.used() == 1)
}

fn ipv6_prefixes() -> String {
    let peer = key::peer_ip().of(address().ip());
    let client = key::client_ip().of(address().ip());
    assert_eq!(peer, client);
    let (_, bits) = peer.as_str().split_once('/').expect("a prefix");
    format!("{bits} bits")
}

fn is_hashed(header: &key::Header) -> bool {
    let (parts, ()) = Request::get("/")
        .header("x-key", "hunter2")
        .body(())
        .expect("a request")
        .into_parts();
    header
        .extract(&parts)
        .is_ok_and(|key| !key.as_str().contains("hunter2"))
}

fn body() -> String {
    use http_body_util::BodyExt;
    let body = refused().into_body().collect();
    let bytes = block_on(body).expect("a body").to_bytes();
    String::from_utf8(bytes.to_vec()).expect("text")
}

fn header(headers: &HeaderMap, name: &str) -> u64 {
    headers[name]
        .to_str()
        .expect("text")
        .parse()
        .expect("a number")
}

fn dialects() -> String {
    assert_eq!(Headers::default(), Headers::x_ratelimit());
    "`X-RateLimit-*`".to_owned()
}

fn fails_to(layer: &RateLimitLayer) -> Option<Source> {
    let response = answer(layer);
    assert!(response.extensions().get::<Rejection>().is_none());
    Some(response.extensions().get::<DecisionView>()?.source())
}

fn tracks_nobody() -> bool {
    let limiter = limiter(used_up());
    let refused = block_on(limiter.check("ada")).is_ok_and(|decision| !decision.is_allowed());
    refused && limiter.admin().busiest_refused(9).is_empty()
}

fn batches() -> bool {
    let store = RedisStore::open("redis://127.0.0.1").expect("a URL");
    let shown = format!("{store:?}");
    shown == format!("{:?}", store.batches(true))
}

fn most_cost() -> String {
    let limiter = RateLimiter::new(TestStore::new(), Quota::per_minute(u32::MAX));
    let is_taken = |cost| block_on(limiter.check_n("ada", cost)).is_ok();
    assert!(is_taken(100_000) && !is_taken(100_001));
    thousands(100_000)
}

fn thousands(count: usize) -> String {
    format!("{} {:03}", count / 1_000, count % 1_000)
}
