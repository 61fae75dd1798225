//! The span around the call of a store, and the fields of the span around a request.

use std::io::{self, Write};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::http::Request;
use tollgate::{FailurePolicy, MemoryStore, Quota, RateLimitLayer, RateLimiter, RedisStore, key};
use tower::{Layer, ServiceExt, service_fn};
use tracing::field::Empty;
use tracing::level_filters::LevelFilter;
use tracing::subscriber::DefaultGuard;
use tracing::{Instrument, Span, info_span};
use tracing_subscriber::fmt::format::FmtSpan;

use super::outcomes::WHO;
use crate::support::calls::ok;
use crate::support::redis_server::RedisServer;
use crate::support::store_on;

/// The lines of the spans of this thread that have closed.
#[derive(Clone, Default)]
struct Closed(Arc<Mutex<Vec<u8>>>);

impl Write for Closed {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        let mut bytes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        bytes.write(buf)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Closed {
    /// Keeps the spans of this thread, until the guard is dropped.
    fn keep(level: LevelFilter) -> (Self, DefaultGuard) {
        let closed = Self::default();
        let writer = closed.clone();
        let subscriber = tracing_subscriber::fmt()
            .with_max_level(level)
            .with_span_events(FmtSpan::CLOSE)
            .with_writer(move || writer.clone())
            .with_ansi(false)
            .without_time()
            .finish();
        (closed, tracing::subscriber::set_default(subscriber))
    }

    /// The names and fields of the spans that have closed since.
    fn take(&self) -> Vec<String> {
        let mut bytes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let text = String::from_utf8(std::mem::take(&mut *bytes)).expect("text");
        text.lines()
            .filter(|line| line.ends_with(": close"))
            .map(|line| {
                let begin = line.find("tollgate.check").or_else(|| line.find("request"));
                let span = &line[begin.expect("a span")..];
                span.split_inclusive('}').next().expect("fields").to_owned()
            })
            .collect()
    }
}

fn check_span(outcome: &str, source: &str) -> String {
    format!(r#"tollgate.check{{limiter="search" outcome="{outcome}" source="{source}"}}"#)
}

#[tokio::test]
async fn each_call_of_a_store_has_one_debug_span_with_its_outcome() {
    let server = RedisServer::start();
    let (closed, _kept) = Closed::keep(LevelFilter::DEBUG);
    let limiter = RateLimiter::new(store_on(&server), Quota::per_hour(1)).name("search");
    for outcome in ["admitted", "refused"] {
        let _ = limiter.check(WHO).await.unwrap();
        assert_eq!(closed.take(), [check_span(outcome, "redis")]);
    }
    // A remembered refusal calls no store.
    assert!(!limiter.check(WHO).await.unwrap().is_allowed());
    assert_eq!(closed.take(), [] as [String; 0]);
    let slots = RateLimiter::new(store_on(&server), Quota::in_flight(1)).name("search");
    let _permit = slots.acquire(WHO).await.unwrap();
    assert_eq!(closed.take(), [check_span("admitted", "redis")]);

    let nobody = RedisStore::open("redis://127.0.0.1:1").unwrap();
    let failing = RateLimiter::new(nobody.clone(), Quota::per_hour(1)).name("search");
    failing.check(WHO).await.unwrap_err();
    assert_eq!(closed.take(), [check_span("failed", "none")]);
    let falling_back = failing.on_failure(FailurePolicy::fall_back());
    let _ = falling_back.check(WHO).await.unwrap();
    assert_eq!(closed.take(), [check_span("admitted", "fallback")]);

    let memory = RateLimiter::new(MemoryStore::new(), Quota::per_hour(1)).name("search");
    let _ = memory.check(WHO).await.unwrap();
    assert_eq!(closed.take(), [] as [String; 0]);
}

#[tokio::test]
async fn a_check_that_is_given_up_has_a_span_without_an_outcome_and_none_above_debug() {
    let server = RedisServer::start();
    let limiter = RateLimiter::new(store_on(&server), Quota::per_hour(9)).name("search");
    {
        let (closed, _kept) = Closed::keep(LevelFilter::DEBUG);
        let check = limiter.check(WHO);
        let given_up = tokio::time::timeout(Duration::ZERO, check).await;
        assert!(given_up.is_err());
        assert_eq!(closed.take(), [r#"tollgate.check{limiter="search"}"#]);
    }
    let (closed, _kept) = Closed::keep(LevelFilter::INFO);
    let _ = limiter.check(WHO).await.unwrap();
    assert_eq!(closed.take(), [] as [String; 0]);
}

/// The span of a request, with the fields that it gets.
async fn request_span(layer: &RateLimitLayer, path: &str, span: Span) {
    let mut request = Request::get(path).body(()).unwrap();
    if path != "/nobody" {
        request
            .headers_mut()
            .insert("x-api-key", WHO.parse().unwrap());
    }
    let service = layer.layer(service_fn(ok::<()>));
    let _ = service.oneshot(request).instrument(span).await;
}

#[tokio::test]
async fn the_span_of_a_request_gets_the_fields_that_it_declares() {
    let (closed, _kept) = Closed::keep(LevelFilter::INFO);
    let limiter = RateLimiter::new(MemoryStore::new(), Quota::per_hour(1)).name("search");
    let layer = RateLimitLayer::from(limiter.clone())
        .key(key::header("x-api-key").plain())
        .skip(|parts| parts.uri.path() == "/health");
    let alias = limiter.key_alias(key::header("x-api-key").plain().of(WHO));
    for (path, outcome, source) in [
        ("/", "admitted", "memory"),
        ("/", "refused", "memory"),
        ("/health", "exempt", "none"),
        ("/nobody", "no_key", "none"),
    ] {
        let span = info_span!(
            "request",
            tollgate.limiter = Empty,
            tollgate.outcome = Empty,
            tollgate.source = Empty,
            tollgate.key_alias = Empty
        );
        request_span(&layer, path, span).await;
        let alias = match source {
            "memory" => format!(r#" tollgate.key_alias="{alias}""#),
            _ => String::new(),
        };
        let fields = format!(
            r#"tollgate.limiter="search" tollgate.outcome="{outcome}" tollgate.source="{source}"{alias}"#
        );
        assert_eq!(closed.take(), [format!("request{{{fields}}}")], "{path}");
    }
    request_span(&layer, "/", info_span!("request", tollgate.outcome = Empty)).await;
    assert_eq!(closed.take(), [r#"request{tollgate.outcome="refused"}"#]);
    request_span(&layer, "/", info_span!("request", user = 7)).await;
    assert_eq!(closed.take(), ["request{user=7}"]);
}
