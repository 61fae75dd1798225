//! The page of defaults: compares each value with the code.

use std::fmt::Debug;
use std::time::Duration;

use http::header::RETRY_AFTER;
use http::{Request, Response};
use tollgate::store::{Checked, CircuitBreaker, TestClock, TestStore};
use tollgate::{
    Algorithm, BlockRule, FailurePolicy, Headers, MemoryStore, OutboundLayer, Quota, Quotas,
    RateLimiter, RedisStore, Rejection, key,
};

use super::block_on;
use super::requests::{address, failing, layer, refusing, send, send_request};
use crate::markdown::Block;

/// Checks the second cell of each row against the settings that the first one links to. A first cell without
/// links is the name of a fact. A default in words, like "nothing", is not checked.
pub(super) fn defaults(block: &Block) -> Result<(), String> {
    for row in block.rows() {
        let value = &*row[1];
        if !value.contains(|each: char| each == '`' || each.is_ascii_digit()) {
            continue;
        }
        let fact = row[0].replace('`', "");
        let links = row[0].split("](crate::").skip(1);
        let mut names: Vec<_> = links
            .filter_map(|link| Some(link.split_once(')')?.0))
            .collect();
        if names.is_empty() {
            names.push(&fact);
        }
        for name in names {
            if !(is_default(name, value) || BOUNDS_OF_TESTS.contains(&(name, value))) {
                return Err(format!(
                    "{name} is not {value}, or tests/docs/sources/defaults.rs lacks the row"
                ));
            }
        }
    }
    Ok(())
}

/// Bounds that other tests hold, and that no getter has.
const BOUNDS_OF_TESTS: [(&str, &str); 9] = [
    // src/quota/block_rule.rs
    ("BlockRule::max_block", "1 day"),
    ("BlockRule::forget_after", "1 day"),
    // tests/checks/admin.rs
    ("Admin::block", "10 000"),
    // src/limiter/lease and tests/leases
    ("lowest limit that is leased", "21"),
    ("fewest checks for a lease", "16 in the time of the lease"),
    ("units that a lease takes at once", "1/8 of what is left"),
    // tests/telemetry/outcomes.rs
    ("store::CircuitBreaker::name", "`other`"),
    ("MemoryStore::name", "`memory`"),
    // tests/in_flight/permits.rs
    ("LevelCheck::slots", "1 slot"),
];

/// Whether the code has the default that the page writes like this.
pub(super) fn is_default(setting: &str, value: &str) -> bool {
    match (setting, value) {
        ("Quota::with_algorithm", "`SlidingLog`") => {
            Quota::per_minute(1).algorithm() == Algorithm::SlidingLog
        }
        ("RateLimiter::name" | "RateLimitLayer::name", "`default`") => {
            of_layer("name: \"default\"")
        }
        ("RateLimitLayer::cost", "1 unit") => checked(|check| check.cost == 1),
        ("OutboundLayer::wait_up_to", "30 s") => {
            let limiter = RateLimiter::new(MemoryStore::new(), Quota::per_minute(9));
            has(&OutboundLayer::new(limiter), "max_wait: 30s,")
        }
        ("RateLimiter::max_hold", "1 h") => held(7_200) == Some(3_600),
        ("BlockRule::within", "10 min") => has(&BlockRule::refusals(1), "within: 600s"),
        ("BlockRule::block_for", "10 min") => has(&BlockRule::refusals(1), "first: 600s"),

        ("Quota::slot_lease", "15 s") => Quota::in_flight(1).window().as_secs() == 15,
        ("RateLimitLayer::slots" | "Level::slots", "1 slot") => of_layer("slots: 1,"),
        ("RateLimiter::max_wait", "60 s") => text_of_a_full_line().contains("of 60s"),

        ("RateLimitLayer::key", "`peer_ip()`") => {
            checked(|check| check.key == key::peer_ip().of(address().ip()))
        }
        ("RateLimitLayer::on_missing_key", "rejected with 400") => {
            let by_header = layer(TestStore::new()).key(key::header("x-api-key"));
            send(&by_header).status() == 400
        }
        ("key::peer_ip", "rejected with 500") => {
            send_request(&layer(TestStore::new()), Request::default()).status() == 500
        }
        ("key::PeerIp::ipv6_prefix" | "key::ClientIp::ipv6_prefix", "64 bits") => {
            let address = address().ip();
            let keys = [key::peer_ip().of(address), key::client_ip().of(address)];
            keys.iter().all(|key| key.as_str().ends_with("/64"))
        }
        ("key::ClientIp::behind" | "key::ClientIp::hops", "no proxy is trusted: 500") => {
            send(&layer(TestStore::new()).key(key::client_ip())).status() == 500
        }
        ("key::ClientIp::forwarded" | "key::ClientIp::header", "`X-Forwarded-For`") => {
            has(&key::client_ip(), "source: List(XForwardedFor)")
        }

        ("RateLimitLayer::status", "429") => send(&refusing()).status() == 429,
        ("RateLimitLayer::responder", "`rate limit exceeded`") => {
            let refused = send(&refusing());
            let rejection = refused.extensions().get::<Rejection>();
            rejection.is_some_and(|rejection| rejection.to_string() == "rate limit exceeded")
        }
        ("RateLimitLayer::grpc", "an HTTP status, also for `application/grpc`") => {
            send(&refusing()).status() == 429
        }
        ("RateLimitLayer::without_connection_close", "`Connection: close`") => {
            of_layer("closes_rejected_uploads: true")
        }
        ("RateLimitLayer::headers", "`X-RateLimit-*`") => {
            of_layer(&format!("headers: {:?}", Headers::x_ratelimit()))
        }

        ("RateLimitLayer::on_failure", "`fall_back()`") => {
            let policy = FailurePolicy::fall_back();
            of_layer(&format!("on_failure: Some({policy:?})"))
        }
        ("RedisStore::deadline", "100 ms") => of_redis("deadline: 100ms"),
        ("RedisStore::fallback_keys", "100 000") => of_redis("fallback_keys: None"),
        ("RedisStore::prefix", "`tollgate`") => of_redis("prefix: \"tollgate\""),
        ("RedisStore::refusal_cache", "1 s at most") => of_redis("refusal_max_age: None"),
        ("RedisStore::block_list_refresh", "1 s") => of_redis("block_list_refresh: 1s"),
        ("store::CircuitBreaker::deadline", "100 ms") => of_breaker("deadline: 100ms"),
        ("store::CircuitBreaker::fallback_keys", "100 000") => of_breaker("keys: 100000"),
        ("MemoryStore::with_max_keys", "100 000 keys") => {
            has(&MemoryStore::new(), "max_keys: 100000")
        }

        ("window of a quota", "1 ms to 366 days") => {
            are_bounds(["1/999us", "1/1ms", "1/366d", "1/367d"])
        }
        ("buckets of SlidingBuckets", "1 to 1 000") => {
            are_bounds(["0", "1", "1000", "1001"].map(|n| format!("1/s sliding-buckets:{n}")))
        }
        ("lease of a slot", "5 s to 10 min") => {
            are_bounds(["4s", "5s", "10m", "601s"].map(|lease| format!("1 in-flight:{lease}")))
        }
        ("units of one check or credit in a log", "100 000") => {
            let limiter = RateLimiter::new(TestStore::new(), Quota::per_minute(u32::MAX));
            let admin = limiter.admin();
            let is_charged = |units| block_on(limiter.check_n("ada", units)).is_ok();
            let is_credited = |units| block_on(admin.credit("ada", units)).is_ok();
            let fits = |units| [is_charged(units), is_credited(units)];
            fits(100_000) == [true; 2] && fits(100_001) == [false; 2]
        }
        ("longest lease", "1/10 of the shortest window") => {
            let quotas = [Quota::per_hour(9), Quota::per_minute(9)];
            let limiter = RateLimiter::new(TestStore::new(), quotas);
            let lease = |millis| limiter.clone().try_lease(Duration::from_millis(millis));
            lease(6_000).is_ok() && lease(6_001).is_err()
        }
        ("longest wait that an upstream can tell", "31 days") => {
            held(31 * 86_400).is_some() && held(31 * 86_400 + 1).is_none()
        }
        ("Retry-After of a 503", "1 s") => {
            send(&failing().on_failure(FailurePolicy::closed())).headers()[RETRY_AFTER] == "1"
        }
        _ => false,
    }
}

/// Whether the debug output has a field with its value.
fn has(shown: &impl Debug, field: &str) -> bool {
    format!("{shown:?}").contains(field)
}

fn of_layer(field: &str) -> bool {
    has(&layer(TestStore::new()), field)
}

fn of_breaker(field: &str) -> bool {
    has(&CircuitBreaker::new(), field)
}

fn of_redis(field: &str) -> bool {
    let store = RedisStore::open("redis://127.0.0.1:1").expect("a URL");
    has(&store, field)
}

/// Whether the check of a request is so.
fn checked(is_so: impl Fn(&Checked) -> bool) -> bool {
    let store = TestStore::new();
    send(&layer(store.clone()));
    store.take_checks().first().is_some_and(is_so)
}

/// Whether the quotas in the middle are valid, and those around them are not.
fn are_bounds<T: AsRef<str>>(quotas: [T; 4]) -> bool {
    quotas.map(|text| text.as_ref().parse::<Quotas>().is_ok()) == [false, true, true, false]
}

/// Returns for how many seconds a `Retry-After` of so many holds a key back.
fn held(seconds: u64) -> Option<u64> {
    let store = MemoryStore::with_clock(TestClock::new());
    let limiter = RateLimiter::new(store, Quota::per_minute(9));
    let response = Response::builder().status(429);
    let response = response.header(RETRY_AFTER, seconds).body(());
    let held = limiter.observe("ada", &response.expect("a response"));
    held.map(|held| held.as_secs())
}

/// Returns the error of a call that may not wait, which names the longest wait.
fn text_of_a_full_line() -> String {
    let limiter = RateLimiter::new(MemoryStore::new(), Quota::in_flight(1)).queue(0);
    block_on(async {
        let _permit = limiter.acquire("ada").await.expect("a slot");
        let error = limiter.acquire("ada").await.expect_err("a full line");
        error.to_string()
    })
}
