//! Refusals that tell no wait: for how long each pauses its key.

use std::time::Duration;

use http::{HeaderMap, HeaderValue, StatusCode};
use tollgate::store::TestClock;
use tollgate::{MemoryStore, Quota, RateLimiter};

const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_secs(60);

fn limiter(clock: &TestClock) -> RateLimiter {
    RateLimiter::new(
        MemoryStore::with_clock(clock.clone()),
        Quota::per_minute(1_000),
    )
}

/// How long an answer without headers pauses a key.
fn answer(limiter: &RateLimiter, key: &str, status: u16) -> Option<Duration> {
    let status = StatusCode::from_u16(status).expect("a status");
    limiter.observe(key, status, &HeaderMap::new())
}

/// The pauses of refusals of one key, each as soon as the last has ended.
fn pauses(limiter: &RateLimiter, clock: &TestClock, count: usize) -> Vec<Duration> {
    let mut pauses = Vec::new();
    for _ in 0..count {
        let pause = answer(limiter, "ada", 429).expect("a pause");
        clock.advance(pause);
        pauses.push(pause);
    }
    pauses
}

#[test]
fn a_refusal_without_a_wait_pauses_for_a_second_and_each_further_one_twice_as_long() {
    let clock = TestClock::new();
    let limiter = limiter(&clock);
    let seconds = [1, 2, 4, 8, 16, 32, 60, 60].map(Duration::from_secs);
    assert_eq!(pauses(&limiter, &clock, 8), seconds);
    // Another key begins at its own.
    assert_eq!(answer(&limiter, "bob", 429), Some(SECOND));
}

#[test]
fn a_pause_grows_up_to_the_longest_and_to_that_of_all_answers() {
    let clock = TestClock::new();
    let limiter = limiter(&clock);
    let short = limiter
        .clone()
        .default_pause(2 * SECOND, 5 * SECOND)
        .name("short");
    assert_eq!(
        pauses(&short, &clock, 3),
        [2, 4, 5].map(Duration::from_secs)
    );
    let one = limiter
        .clone()
        .default_pause(5 * SECOND, SECOND)
        .name("one");
    assert_eq!(pauses(&one, &clock, 2), [5, 5].map(Duration::from_secs));
    let cut = limiter.max_pause(3 * SECOND).name("cut");
    assert_eq!(pauses(&cut, &clock, 3), [1, 2, 3].map(Duration::from_secs));
}

#[test]
fn a_wait_that_tells_no_time_is_none() {
    let clock = TestClock::new();
    for text in ["0", "soon", "-1", "Tue, 24 Nov 2015 23:59:59 GMT"] {
        let limiter = limiter(&clock).name(format!("limiter {text}"));
        let value = HeaderValue::from_static(text);
        let headers = HeaderMap::from_iter([(http::header::RETRY_AFTER, value)]);
        let status = StatusCode::TOO_MANY_REQUESTS;
        assert_eq!(
            limiter.observe("ada", status, &headers),
            Some(SECOND),
            "{text}"
        );
    }
}

#[test]
fn only_a_status_of_too_many_requests_pauses_on_its_own() {
    let clock = TestClock::new();
    for status in 200..600 {
        let limiter = limiter(&clock).name(format!("limiter {status}"));
        let expected = [420, 429, 529].contains(&status).then_some(SECOND);
        assert_eq!(answer(&limiter, "ada", status), expected, "{status}");
    }
    let off = limiter(&clock).default_pause(Duration::ZERO, MINUTE);
    assert_eq!(answer(&off, "ada", 429), None);
}

#[test]
fn requests_that_were_sent_together_are_refused_once() {
    let clock = TestClock::new();
    let limiter = limiter(&clock);
    for _ in 0..100 {
        assert_eq!(answer(&limiter, "ada", 429), Some(SECOND));
    }
    clock.advance(SECOND / 2);
    assert_eq!(answer(&limiter, "ada", 429), Some(SECOND / 2));
    clock.advance(SECOND / 2);
    assert_eq!(answer(&limiter, "ada", 429), Some(2 * SECOND));
}

#[test]
fn a_served_request_after_the_pause_ends_the_growth() {
    let clock = TestClock::new();
    let limiter = limiter(&clock);
    pauses(&limiter, &clock, 3);
    // It was sent before the refusal.
    assert_eq!(answer(&limiter, "ada", 429), Some(8 * SECOND));
    assert_eq!(answer(&limiter, "ada", 200), None);
    clock.advance(8 * SECOND);
    assert_eq!(answer(&limiter, "ada", 429), Some(16 * SECOND));
    clock.advance(16 * SECOND);
    // Neither another key nor a failure is a success.
    assert_eq!(answer(&limiter, "bob", 200), None);
    assert_eq!(answer(&limiter, "ada", 503), None);
    assert_eq!(answer(&limiter, "ada", 429), Some(32 * SECOND));
    clock.advance(32 * SECOND);
    assert_eq!(answer(&limiter, "ada", 404), None);
    assert_eq!(answer(&limiter, "ada", 429), Some(SECOND));
}

#[test]
fn a_time_without_refusals_that_is_as_long_as_the_longest_pause_ends_the_growth() {
    let clock = TestClock::new();
    let limiter = limiter(&clock);
    pauses(&limiter, &clock, 3);
    clock.advance(MINUTE - Duration::from_micros(1));
    assert_eq!(answer(&limiter, "ada", 429), Some(8 * SECOND));
    clock.advance(8 * SECOND + MINUTE);
    assert_eq!(answer(&limiter, "ada", 429), Some(SECOND));
}
