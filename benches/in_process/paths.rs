//! Times each path alone: through the limiter, and through the middleware around a service that answers at
//! once.

use std::convert::Infallible;
use std::future::ready;

use bytes::Bytes;
use divan::{Bencher, black_box};
use http::{Request, Response};
use http_body_util::Empty;
use tollgate::{Algorithm, MemoryStore, Quota, RateLimitLayer, key};
use tower::{Layer, Service, service_fn};

use crate::contestants::{KEYS, Outcome, algorithms, at_once, governor, with_keys};

const THREADS: [usize; 2] = [1, 2];

/// Asks about one key after the other.
fn each_key(bencher: Bencher<'_, '_>, check: impl Fn(usize) -> bool + Sync) {
    let next = std::sync::atomic::AtomicUsize::new(0);
    bencher
        .with_inputs(|| next.fetch_add(1, std::sync::atomic::Ordering::Relaxed) % KEYS)
        .bench_values(|index| black_box(check(index)));
}

#[divan::bench(threads = THREADS, args = Outcome::ALL)]
fn governor_keyed(bencher: Bencher<'_, '_>, outcome: Outcome) {
    each_key(bencher, governor(outcome));
}

#[divan::bench(threads = THREADS, args = algorithms().map(|(_, algorithm)| algorithm))]
fn admitted(bencher: Bencher<'_, '_>, algorithm: Algorithm) {
    each_key(
        bencher,
        with_keys(Outcome::Admitted.quota().with_algorithm(algorithm)),
    );
}

#[divan::bench(threads = THREADS, args = algorithms().map(|(_, algorithm)| algorithm))]
fn refused(bencher: Bencher<'_, '_>, algorithm: Algorithm) {
    each_key(
        bencher,
        with_keys(Outcome::Refused.quota().with_algorithm(algorithm)),
    );
}

async fn answer(_: Request<()>) -> Result<Response<Empty<Bytes>>, Infallible> {
    ready(Ok(Response::new(Empty::new()))).await
}

#[divan::bench]
fn bare_service(bencher: Bencher<'_, '_>) {
    let mut service = service_fn(answer);
    bencher
        .with_inputs(request)
        .bench_local_values(|request| black_box(at_once(service.call(request)).is_ok()));
}

#[divan::bench(args = Outcome::ALL)]
fn through_the_middleware(bencher: Bencher<'_, '_>, outcome: Outcome) {
    let quota: Quota = outcome.quota();
    let layer =
        RateLimitLayer::new(MemoryStore::new(), quota).key(key::header("x-api-key").plain());
    let mut service = layer.layer(service_fn(answer));
    assert!(at_once(service.call(request())).is_ok());
    bencher
        .with_inputs(request)
        .bench_local_values(|request| black_box(at_once(service.call(request)).is_ok()));
}

fn request() -> Request<()> {
    let request = Request::get("/").header("x-api-key", "user:12345");
    request.body(()).expect("a request")
}
