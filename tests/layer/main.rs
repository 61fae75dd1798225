//! Features of a layer beyond counting: plans, waiting, settling, dry runs, skipped requests and diagnostics.

#[path = "../support/mod.rs"]
mod support;

mod blocking;
mod contract;
mod diagnostics;
mod dry_run;
mod in_handler;
mod law_of_settling;
mod levels;
mod plans;
mod responders;
mod settling;
mod skipping;
mod switched_off;
mod ten_thousand;
mod waiting;

use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use axum::http::{Request, Response};
use tollgate::{Algorithm, Key, KeyExtractor, RateLimitLayer, RateLimiter, key};
use tower::{Layer, ServiceExt, service_fn};

use support::calls::{ok, request};

/// Returns each algorithm, with 10 buckets.
fn algorithms() -> impl Iterator<Item = Algorithm> {
    Algorithm::ALL.iter().map(|facts| facts.with_buckets(10))
}

/// Each path is a key: `/ada`.
fn by_path() -> impl KeyExtractor {
    key::from_fn(|parts| Some(Key::from(parts.uri.path())))
}

/// A request to a path.
fn to(path: &str) -> Request<()> {
    let mut request = request(());
    *request.uri_mut() = path.parse().expect("a path");
    request
}

/// What a request to a path is answered, where the service behind says ok.
async fn ask(layer: &RateLimitLayer, path: &str) -> Response<()> {
    let service = layer.layer(service_fn(ok::<()>));
    let response = service.oneshot(to(path)).await.expect("nothing fails");
    response.map(drop)
}

async fn status(layer: &RateLimitLayer, path: &str) -> u16 {
    ask(layer, path).await.status().as_u16()
}

/// A header as text; `-` where there is none.
fn told<'a, B>(response: &'a Response<B>, name: &str) -> &'a str {
    let value = response.headers().get(name);
    value.map_or("-", |value| value.to_str().expect("text"))
}

/// The units that count for a key.
async fn used(limiter: &RateLimiter, key: &str) -> u32 {
    limiter.peek(key).await.expect("the store answers").used()
}

/// A future that a test polls by hand.
struct ByHand<F>(Pin<Box<F>>);

fn by_hand<F: Future>(future: F) -> ByHand<F> {
    ByHand(Box::pin(future))
}

impl<F: Future> ByHand<F> {
    /// Polls it once with a waker that does nothing.
    fn poll(&mut self) -> Poll<F::Output> {
        let mut nobody = Context::from_waker(Waker::noop());
        self.0.as_mut().poll(&mut nobody)
    }

    async fn end(self) -> F::Output {
        self.0.await
    }
}
