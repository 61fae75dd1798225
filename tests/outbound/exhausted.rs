//! Keys whose allowance is used up: for how long they are paused, who knows, and what becomes of calls that wait.

use std::convert::Infallible;
use std::time::{Duration, Instant};

use http::{HeaderMap, Request, Response, StatusCode};
use http_body_util::Empty;
use tollgate::store::TestClock;
use tollgate::{
    BlockReason, Key, MemoryStore, OutboundLayer, Quota, RateLimiter, RedisStore, Source,
};
use tower::{Layer, ServiceExt, service_fn};

use crate::support::redis_server::RedisServer;
use crate::support::until;

const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_secs(60);
const HOUR: Duration = Duration::from_secs(3_600);
const DAY: Duration = Duration::from_secs(86_400);

const QUOTA: Quota = Quota::per_minute(1_000);

fn limiter() -> RateLimiter {
    RateLimiter::new(MemoryStore::with_clock(TestClock::new()), QUOTA)
}

/// An answer of the status 429.
fn refuse(limiter: &RateLimiter, lines: &[(&'static str, &str)]) -> Option<Duration> {
    let mut headers = HeaderMap::new();
    for (name, value) in lines {
        headers.append(*name, value.parse().expect("a value"));
    }
    limiter.observe("ada", StatusCode::TOO_MANY_REQUESTS, &headers)
}

/// By whom the key is refused, and for how long.
async fn refusal(limiter: &RateLimiter) -> (Source, Option<Duration>) {
    let decision = limiter.check("ada").await.expect("a decision");
    (decision.source(), decision.retry_after())
}

#[tokio::test]
async fn a_wait_of_hours_is_obeyed_up_to_what_the_user_allows() {
    for (allowed, expected) in [
        (None, HOUR),
        // Never less than any other answer.
        (Some(MINUTE), HOUR),
        (Some(2 * HOUR), 2 * HOUR),
        (Some(DAY), Duration::from_secs(13_262)),
    ] {
        let mut limiter = limiter();
        if let Some(allowed) = allowed {
            limiter = limiter.max_exhausted_pause(allowed);
        }
        assert_eq!(
            refuse(&limiter, &[("retry-after", "13262")]),
            Some(expected)
        );
        assert_eq!(refusal(&limiter).await, (Source::Exhausted, Some(expected)));
    }
}

#[tokio::test]
async fn a_wait_of_an_hour_or_less_is_no_exhaustion_unless_the_answer_says_so() {
    let rejected = [
        ("retry-after", "20"),
        ("anthropic-ratelimit-unified-7d-status", "rejected"),
        ("anthropic-ratelimit-unified-7d-reset", "1"),
    ];
    for (lines, expected) in [
        (&[("retry-after", "3600")][..], (Source::Paused, HOUR)),
        (
            &[("retry-after", "3601")],
            (Source::Exhausted, 3_601 * SECOND),
        ),
        (
            &[("retry-after", "20"), ("x-should-retry", "true")],
            (Source::Paused, 20 * SECOND),
        ),
        (
            &[("retry-after", "20"), ("x-should-retry", "false")],
            (Source::Exhausted, 20 * SECOND),
        ),
        (&rejected, (Source::Exhausted, 20 * SECOND)),
        (&[], (Source::Paused, SECOND)),
        // The longest pause of an answer without a wait, at once.
        (&[("x-should-retry", "false")], (Source::Exhausted, MINUTE)),
    ] {
        let limiter = limiter().max_exhausted_pause(DAY);
        refuse(&limiter, lines);
        let (source, wait) = expected;
        assert_eq!(refusal(&limiter).await, (source, Some(wait)), "{lines:?}");
    }
}

#[tokio::test]
async fn a_default_pause_beyond_the_longest_pause_is_no_exhaustion() {
    let limiter = limiter().default_pause(DAY, DAY).max_exhausted_pause(DAY);
    refuse(&limiter, &[]);
    assert_eq!(refusal(&limiter).await, (Source::Paused, Some(HOUR)));
}

#[tokio::test]
async fn of_a_pause_and_an_exhaustion_the_longer_one_is_told() {
    let limiter = limiter().max_exhausted_pause(DAY);
    refuse(&limiter, &[("x-should-retry", "false")]);
    let exhausted = (Source::Exhausted, Some(MINUTE));
    assert_eq!(refusal(&limiter).await, exhausted);
    assert_eq!(limiter.pause("ada", SECOND), MINUTE);
    assert_eq!(refusal(&limiter).await, exhausted);
    assert_eq!(limiter.pause("ada", HOUR), HOUR);
    assert_eq!(refusal(&limiter).await, (Source::Paused, Some(HOUR)));
    // By a wait that a client library tells.
    assert_eq!(limiter.pause("ada", 2 * HOUR), 2 * HOUR);
    assert_eq!(refusal(&limiter).await, (Source::Exhausted, Some(2 * HOUR)));
}

#[tokio::test]
async fn a_call_that_waits_is_refused_at_once_if_the_rest_is_longer_than_its_wait() {
    let limiter = RateLimiter::new(MemoryStore::new(), QUOTA).max_exhausted_pause(DAY);
    refuse(&limiter, &[("retry-after", "13262")]);
    let began = Instant::now();
    let decision = limiter.until_ready("ada", 1, HOUR).await;
    let decision = decision.expect("a decision");
    assert_eq!(decision.source(), Source::Exhausted);
    assert!(decision.retry_after() > Some(3 * HOUR));
    assert!(began.elapsed() < SECOND, "{:?}", began.elapsed());
}

#[tokio::test]
async fn calls_that_wait_for_units_are_refused_when_the_answer_comes() {
    let limiter = RateLimiter::new(MemoryStore::new(), Quota::per_minute(1));
    assert_eq!(refusal(&limiter).await.0, Source::Memory);
    let waiting: Vec<_> = (0..3)
        .map(|_| {
            let limiter = limiter.clone();
            tokio::spawn(async move { limiter.until_ready("ada", 1, 10 * MINUTE).await })
        })
        .collect();
    tokio::time::sleep(SECOND / 10).await;
    let began = Instant::now();
    refuse(&limiter, &[("retry-after", "13262")]);
    for call in waiting {
        let decision = call.await.expect("an end").expect("a decision");
        assert_eq!(decision.source(), Source::Exhausted);
    }
    assert!(began.elapsed() < 3 * SECOND, "{:?}", began.elapsed());
}

#[tokio::test]
async fn an_outbound_request_of_an_exhausted_key_is_answered_at_once() {
    let limiter = RateLimiter::new(MemoryStore::new(), QUOTA).max_exhausted_pause(DAY);
    let layer = OutboundLayer::new(limiter.clone());
    let upstream = service_fn(async |_: Request<Empty<bytes::Bytes>>| {
        let answer = Response::builder()
            .status(429)
            .header("retry-after", "13262");
        Ok::<_, Infallible>(
            answer
                .body(Empty::<bytes::Bytes>::new())
                .expect("an answer"),
        )
    });
    let mut statuses = Vec::new();
    let began = Instant::now();
    for _ in 0..2 {
        let request = Request::get("http://ada/")
            .body(Empty::new())
            .expect("a request");
        let answer = layer
            .layer(upstream)
            .oneshot(request)
            .await
            .expect("an answer");
        statuses.push(answer.status().as_u16());
    }
    assert_eq!(statuses, [429, 429]);
    assert!(began.elapsed() < SECOND, "{:?}", began.elapsed());
    assert_eq!(refusal(&limiter).await.0, Source::Exhausted);
}

#[tokio::test]
async fn all_processes_know_an_exhausted_key_and_an_operator_lifts_it_in_all() {
    let server = RedisServer::start();
    let [here, there] = [(); 2].map(|()| {
        let store = RedisStore::open(&server.url()).expect("a URL");
        RateLimiter::new(store.deadline(10 * SECOND), QUOTA).max_exhausted_pause(DAY)
    });
    assert_eq!(refusal(&there).await.0, Source::Redis);
    refuse(&here, &[("retry-after", "13262")]);
    until(async || refusal(&there).await.0 == Source::Exhausted).await;
    let left = refusal(&there).await.1;
    assert!(
        left > Some(13_250 * SECOND) && left <= Some(13_262 * SECOND),
        "{left:?}"
    );
    for limiter in [&here, &there] {
        let status = limiter.admin().status("ada").await.expect("a status");
        assert_eq!(status.block_reason, Some(BlockReason::Exhausted));
        let blocked = limiter.admin().blocked().await.expect("a list");
        let keys: Vec<_> = blocked.into_iter().map(|(key, _)| key).collect();
        assert_eq!(keys, [Key::from("ada")]);
    }
    there.admin().unblock("ada").await.expect("unblocked");
    assert_eq!(refusal(&there).await.0, Source::Redis);
    until(async || refusal(&here).await.0 == Source::Redis).await;
}
