//! Allocations of a check of a known key in this process (one a level) and of a refusal, and the memory of a key.

use std::convert::Infallible;
use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use http::{Request, Response, StatusCode};
use tollgate::store::TestClock;
use tollgate::{Algorithm, Key, MemoryStore, Quota, Quotas, RateLimitLayer, RateLimiter, key};
use tower::{Layer, Service, service_fn};

fn check(limiter: &RateLimiter, key: &Key) -> bool {
    match pin!(limiter.check(key)).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(decision) => decision.unwrap().is_allowed(),
        Poll::Pending => panic!("a store in memory answers at once"),
    }
}

/// Sends checks of one key, a tenth of a window apart. Returns how many were admitted, and the number of
/// allocations.
fn checks(limiter: &RateLimiter, clock: &TestClock, count: usize) -> (usize, u64) {
    let key = Key::from("user:12345");
    let mut admitted = 0;
    let counted = allocation_counter::measure(|| {
        for _ in 0..count {
            admitted += usize::from(check(limiter, &key));
            clock.advance(Duration::from_millis(100));
        }
    });
    (admitted, counted.count_total)
}

/// How often memory is asked for to answer this request.
fn allocations_of_a_request(
    layer: &RateLimitLayer,
    request: Request<()>,
    expected: StatusCode,
) -> u64 {
    let mut service = layer.layer(service_fn(async |_: Request<()>| {
        Ok::<_, Infallible>(Response::new(String::new()))
    }));
    let (mut request, mut response) = (Some(request), None);
    let counted = allocation_counter::measure(|| {
        let answer = pin!(service.call(request.take().unwrap()));
        response = match answer.poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(response) => Some(response.unwrap()),
            Poll::Pending => panic!("a store in memory answers at once"),
        };
    });
    assert_eq!(response.unwrap().status(), expected);
    counted.count_total
}

/// How often memory is asked for to refuse this request.
fn allocations_of_a_refusal(layer: &RateLimitLayer, request: Request<()>) -> u64 {
    allocations_of_a_request(layer, request, StatusCode::TOO_MANY_REQUESTS)
}

#[test]
fn an_admitted_request_of_a_known_key_allocates_at_most_nine_times() {
    let quota = Quota::per_hour(1_000).with_algorithm(Algorithm::Gcra);
    let layer =
        RateLimitLayer::new(MemoryStore::new(), quota).key(key::header("x-api-key").plain());
    let request = || {
        Request::get("/")
            .header("x-api-key", "user:12345")
            .body(())
            .unwrap()
    };
    // The first request also makes what the layer keeps.
    allocations_of_a_request(&layer, request(), StatusCode::OK);
    let allocations = allocations_of_a_request(&layer, request(), StatusCode::OK);
    assert!(allocations <= 9, "{allocations}");
}

#[test]
fn a_refused_upload_allocates_no_more_than_any_refusal() {
    let closes = RateLimitLayer::new(MemoryStore::new(), Quota::per_hour(0)).key(key::global());
    let keeps = closes.clone().without_connection_close();
    let request = |name: &str| Request::post("/").header(name, "1024").body(()).unwrap();
    for layer in [&closes, &keeps] {
        // The first refusal of a layer also makes what the layer keeps.
        allocations_of_a_refusal(layer, request("x-length"));
        let upload = allocations_of_a_refusal(layer, request("content-length"));
        let without_body = allocations_of_a_refusal(layer, request("x-length"));
        assert_eq!(upload, without_body);
    }
}

#[test]
fn a_check_of_a_known_key_allocates_at_most_once_a_level() {
    for algorithm in Algorithm::ALL.iter().copied() {
        // Of ten checks in a window, some are refused or none.
        for limit in [4, 1_000] {
            let quotas = [1, 2]
                .map(Duration::from_secs)
                .map(|window| Quota::new(limit, window));
            let quotas = quotas.map(|quota| quota.with_algorithm(algorithm));
            for quotas in [
                Quotas::from(quotas.clone()),
                Quotas::from(quotas[0].clone()),
            ] {
                let clock = TestClock::new();
                let limiter = RateLimiter::new(MemoryStore::with_clock(clock.clone()), quotas);
                // Long enough for a log to be as long as it gets.
                checks(&limiter, &clock, 100);
                let (admitted, allocations) = checks(&limiter, &clock, 1_000);
                assert!(
                    allocations <= 1_000,
                    "{algorithm:?}, limit {limit}: {allocations}"
                );
                assert_eq!(
                    admitted == 1_000,
                    limit == 1_000,
                    "{algorithm:?}: {admitted}"
                );
            }
        }
    }
}

#[test]
fn ten_units_of_a_key_take_at_most_260_bytes() {
    // 15 000 keys have just doubled the table.
    for (limit, keys) in [(10, 10_000), (100, 10_000), (100, 15_000)] {
        let mut filled = None;
        let counted = allocation_counter::measure(|| filled = Some(fill(limit, keys)));
        assert_eq!(filled.unwrap().1, 10 * keys, "all units are there");
        let bytes = u64::try_from(counted.bytes_current).unwrap() / keys as u64;
        assert!(
            bytes <= 260,
            "{bytes} bytes a key, limit {limit}, {keys} keys"
        );
    }
}

/// Keys of ten units each, at ten times, and how many units were admitted.
fn fill(limit: u32, keys: usize) -> (RateLimiter, usize) {
    let store = MemoryStore::with_max_keys(1_000_000);
    let limiter = RateLimiter::new(store, Quota::per_hour(limit));
    let admitted = (0..10 * keys)
        .filter(|check_of| check(&limiter, &Key::from(format!("user:{:05}", check_of % keys))))
        .count();
    (limiter, admitted)
}
