//! The page of defaults: compares each value with the code.

use std::fmt::Debug;
use std::time::Duration;

use http::header::{CONNECTION, CONTENT_LENGTH, RETRY_AFTER};
use http::{HeaderMap, HeaderValue};
use http_body_util::BodyExt;
use metrics_util::debugging::DebuggingRecorder;
use tollgate::key::{self, KeyExtractor};
use tollgate::store::{
    Answer, Answers, Check, CircuitBreaker, QuotaAnswer, Store, StoreFuture, StoreId, StoreParts,
    TestClock, TestStore,
};
use tollgate::{
    Algorithm, BlockRule, DecisionView, FailurePolicy, Headers, Level, MemoryStore, OutboundLayer,
    Quota, RateLimiter, RedisStore, Rejection, Source,
};

use super::block_on;
use super::requests::{
    address, checked, failing, grpc_request, layer, refusing, request, send, send_request,
    without_address, without_key,
};
use crate::markdown::Block;
use crate::support::moody::Moody;

/// Checks the second cell of each row against the settings that the first one links to. A first cell without
/// links is the name of a fact. A default in words, like "nothing", is not checked.
pub(super) fn defaults(block: &Block) -> Result<(), String> {
    for row in block.rows() {
        let value = &row[1];
        if !value.contains(|each: char| each == '`' || each.is_ascii_digit()) {
            continue;
        }
        let links = row[0].split("](crate::").skip(1);
        let mut names: Vec<_> = links
            .filter_map(|link| Some(link.split_once(')')?.0))
            .collect();
        let fact = row[0].replace('`', "");
        if names.is_empty() {
            names.push(&fact);
        }
        for name in names {
            let (default, is_default) = default_of(name)
                .ok_or_else(|| format!("{name}: tests/docs/sources/defaults.rs lacks it"))?;
            if value != default || !is_default {
                return Err(format!(
                    "{name}: {value:?} should be {default:?}, and is: {is_default}"
                ));
            }
        }
    }
    Ok(())
}

/// Returns the default of a setting as the page writes it, and whether the code has it.
pub(super) fn default_of(setting: &str) -> Option<(&'static str, bool)> {
    // Its Debug shows its clock, which clones share.
    let untouched = RedisStore::open("redis://127.0.0.1:1").expect("a URL");
    let second = Duration::from_secs(1);
    let deadline = Duration::from_millis(100);
    let set = |set: &dyn Fn(RedisStore) -> RedisStore| set(untouched.clone());
    Some(match setting {
        "Quota::with_algorithm" => {
            let algorithm = Quota::per_minute(1).algorithm();
            ("`SlidingLog`", algorithm == Algorithm::SlidingLog)
        }
        "RateLimiter::name" | "RateLimitLayer::name" => {
            ("`default`", checked().limiter.as_str() == "default")
        }
        "RateLimitLayer::cost" => ("1 unit", checked().cost == 1),
        "RateLimitLayer::key" => {
            let key = key::peer_ip().of(address().ip());
            ("`peer_ip()`", checked().key == key)
        }
        "RateLimitLayer::on_missing_key" => ("rejected with 400", without_key() == 400),
        "key::peer_ip" => ("rejected with 500", without_address() == 500),
        "key::PeerIp::ipv6_prefix" => {
            let key = key::peer_ip().of(address().ip());
            ("64 bits", key.as_str().ends_with("/64"))
        }
        "key::ClientIp::ipv6_prefix" => {
            let key = key::client_ip().of(address().ip());
            ("64 bits", key.as_str().ends_with("/64"))
        }
        "key::ClientIp::behind" | "key::ClientIp::hops" => {
            let layer = layer(TestStore::new()).key(key::client_ip());
            ("no proxy is trusted: 500", send(&layer).status() == 500)
        }
        "key::ClientIp::forwarded" | "key::ClientIp::header" => {
            ("`X-Forwarded-For`", reads_x_forwarded_for())
        }
        "RateLimitLayer::status" => ("429", send(&refusing()).status() == 429),
        "RateLimitLayer::responder" => ("`rate limit exceeded`", body() == "rate limit exceeded\n"),
        "RateLimitLayer::grpc" => {
            let status = send_request(&refusing(), grpc_request()).status();
            ("an HTTP status, also for `application/grpc`", status == 429)
        }
        "RateLimitLayer::without_connection_close" => ("`Connection: close`", closes_upload()),
        "RateLimitLayer::headers" => (
            "`X-RateLimit-*`",
            Headers::default() == Headers::x_ratelimit(),
        ),
        "Retry-After of a 503" => {
            let response = send(&failing().on_failure(FailurePolicy::closed()));
            ("1 s", seconds(response.headers()) == 1)
        }
        "Quota::slot_lease" => {
            let lease = Quota::in_flight(1).window();
            ("15 s", lease == Duration::from_secs(15))
        }
        "LevelCheck::slots" | "RateLimitLayer::slots" | "Level::slots" => (
            "1 slot",
            format!("{:?}", key_level()).contains("slots: 1,") && takes_a_slot(),
        ),
        "RateLimiter::max_wait" => ("60 s", waits_for_a_minute()),
        "lease of a slot" => ("5 s to 10 min", slot_leases_are_bounded()),
        "OutboundLayer::wait_up_to" => {
            let limiter = RateLimiter::new(MemoryStore::new(), Quota::per_minute(9));
            let layer = format!("{:?}", OutboundLayer::new(limiter));
            ("30 s", layer.contains("max_wait: 30s,"))
        }
        "RateLimiter::max_hold" => ("1 h", held(7_200) == Some(3_600)),
        "longest wait that an upstream can tell" => (
            "31 days",
            held(31 * 86_400).is_some() && held(31 * 86_400 + 1).is_none(),
        ),
        "RateLimitLayer::on_failure" => ("`fall_back()`", falls_back()),
        "RedisStore::deadline" => {
            let [same, other] = [deadline, second].map(|time| set(&|store| store.deadline(time)));
            ("100 ms", is_default(&untouched, &same, &other))
        }
        "store::CircuitBreaker::deadline" => {
            let new = CircuitBreaker::new;
            let [same, other] = [deadline, second].map(|time| new().deadline(time));
            ("100 ms", is_default(&new(), &same, &other))
        }
        "RedisStore::fallback_keys" => {
            let [same, other] = [100_000, 1].map(|keys| set(&|store| store.fallback_keys(keys)));
            ("100 000", is_default(&untouched, &same, &other))
        }
        "store::CircuitBreaker::fallback_keys" => {
            let new = CircuitBreaker::new;
            let [same, other] = [100_000, 1].map(|keys| new().fallback_keys(keys));
            ("100 000", is_default(&new(), &same, &other))
        }
        "RedisStore::prefix" => {
            let [same, other] = ["tollgate", "shop"].map(|name| set(&|store| store.prefix(name)));
            ("`tollgate`", is_default(&untouched, &same, &other))
        }
        "RedisStore::refusal_cache" => {
            let times = [second, deadline];
            let [same, other] = times.map(|time| set(&|store| store.refusal_cache(time)));
            ("1 s at most", is_default(&untouched, &same, &other))
        }
        "RedisStore::block_list_refresh" => {
            let times = [second, deadline];
            let [same, other] = times.map(|time| set(&|store| store.block_list_refresh(time)));
            ("1 s", is_default(&untouched, &same, &other))
        }
        "BlockRule::within" => {
            let within =
                |minutes: u64| BlockRule::refusals(1).within(Duration::from_secs(60 * minutes));
            ("10 min", within(10) == BlockRule::refusals(1))
        }
        "BlockRule::block_for" => {
            let rule = BlockRule::refusals(1);
            ("10 min", rule == rule.block_for(Duration::from_secs(600)))
        }
        "BlockRule::max_block" => (
            "1 day",
            longest_block() == Some(Duration::from_secs(86_400)),
        ),
        "BlockRule::forget_after" => ("1 day", blocks_are_forgotten_after(86_400)),
        "Admin::block" => ("10 000", blocks_at_most(10_000)),
        "units of one check or credit in a log" => {
            let is_bound = costs_at_most(100_000) && credits_at_most(100_000);
            ("100 000", is_bound)
        }
        "longest lease" => ("1/10 of the shortest window", leases_are_bounded()),
        "lowest limit that is leased" => {
            let is_lowest = checks_before_lease(20).is_none() && checks_before_lease(21).is_some();
            ("21", is_lowest)
        }
        "fewest checks for a lease" => (
            "16 in the time of the lease",
            checks_before_lease(1_000) == Some(16),
        ),
        "units that a lease takes at once" => ("1/8 of what is left", grants_an_eighth()),
        "window of a quota" => ("1 ms to 366 days", windows_are_bounded()),
        "buckets of SlidingBuckets" => ("1 to 1 000", buckets_are_bounded()),
        "MemoryStore::with_max_keys" => (
            "100 000 keys",
            format!("{:?}", MemoryStore::new()).contains("max_keys: 100000"),
        ),
        "store::CircuitBreaker::name" => {
            ("`other`", name_in_metrics(Moody::unavailable()) == "other")
        }
        "MemoryStore::name" => ("`memory`", name_in_metrics(MemoryStore::new()) == "memory"),
        _ => return None,
    })
}

/// Returns for how many seconds a `Retry-After` of so many holds a key back.
fn held(seconds: u64) -> Option<u64> {
    let store = MemoryStore::with_clock(TestClock::new());
    let limiter = RateLimiter::new(store, Quota::per_minute(9));
    let response = http::Response::builder().status(429);
    let response = response.header(RETRY_AFTER, seconds).body(());
    let held = limiter.observe("ada", &response.expect("a response"));
    held.map(|held| held.as_secs())
}

/// Whether setting the default changes nothing, and setting another value does.
fn is_default(untouched: &impl Debug, same: &impl Debug, other: &impl Debug) -> bool {
    let shown = format!("{untouched:?}");
    shown == format!("{same:?}") && shown != format!("{other:?}")
}

fn reads_x_forwarded_for() -> bool {
    let mut request = request();
    let client = HeaderValue::from_static("192.0.2.7");
    request.headers_mut().insert("x-forwarded-for", client);
    let extractor = key::client_ip().behind(["2001:db8::/32"]);
    let (parts, ()) = request.into_parts();
    extractor
        .extract(&parts)
        .is_ok_and(|key| key.as_str().contains("192.0.2.7"))
}

fn body() -> String {
    let body = send(&refusing()).into_body().collect();
    let bytes = block_on(body).expect("a body").to_bytes();
    String::from_utf8(bytes.to_vec()).expect("text")
}

fn closes_upload() -> bool {
    let mut request = request();
    let headers = request.headers_mut();
    headers.insert(CONTENT_LENGTH, HeaderValue::from_static("9"));
    let response = send_request(&refusing(), request);
    response
        .headers()
        .get(CONNECTION)
        .is_some_and(|value| value == "close")
}

fn seconds(headers: &HeaderMap) -> u64 {
    let value = headers[RETRY_AFTER].to_str().expect("text");
    value.parse().expect("a number")
}

fn falls_back() -> bool {
    let response = send(&failing());
    let decision = response.extensions().get::<DecisionView>();
    let rejected = response.extensions().get::<Rejection>().is_some();
    !rejected && decision.is_some_and(|decision| decision.source() == Source::Fallback)
}

/// The default of `BlockRule::block_for`.
const FIRST_BLOCK: Duration = Duration::from_secs(600);

/// Whether the second block of a key is a first one again after so many seconds, and not before.
fn blocks_are_forgotten_after(seconds: u64) -> bool {
    let rule = BlockRule::refusals(1).doubling();
    // The duration of the second block, if the first one ended that long ago.
    let second_after = |quiet: Duration| {
        let clock = TestClock::new();
        let limiter = RateLimiter::new(
            MemoryStore::with_clock(clock.clone()),
            Quota::new(1, Duration::from_secs(300 * 86_400)),
        );
        let limiter = limiter.block_after(rule);
        let refuse = || (0..2).for_each(|_| drop(block_on(limiter.check("ada"))));
        refuse();
        clock.advance(FIRST_BLOCK + quiet);
        refuse();
        let status = block_on(limiter.admin().peek("ada"));
        status.ok()?.blocked_for
    };
    let quiet = Duration::from_secs(seconds);
    second_after(quiet) == Some(FIRST_BLOCK)
        && second_after(quiet - Duration::from_micros(1)) == Some(2 * FIRST_BLOCK)
}

/// The tenth block of a key whose blocks double, which is the longest.
fn longest_block() -> Option<Duration> {
    let clock = TestClock::new();
    let store = MemoryStore::with_clock(clock.clone());
    let limiter = RateLimiter::new(store, Quota::new(1, Duration::from_secs(300 * 86_400)));
    let limiter = limiter.block_after(BlockRule::refusals(1).doubling());
    let mut longest = None;
    for _ in 0..10 {
        (0..2).for_each(|_| drop(block_on(limiter.check("ada"))));
        longest = block_on(limiter.admin().peek("ada")).ok()?.blocked_for;
        clock.advance(longest?);
    }
    longest
}

fn blocks_at_most(keys: usize) -> bool {
    let admin = RateLimiter::new(MemoryStore::new(), Quota::per_minute(9)).admin();
    let hour = Duration::from_secs(3_600);
    let block = |key: usize| block_on(admin.block(format!("{key}"), hour)).is_ok();
    (0..keys).all(block) && !block(keys)
}

fn costs_at_most(units: u32) -> bool {
    let limiter = RateLimiter::new(TestStore::new(), Quota::per_minute(u32::MAX));
    let costs = |units| block_on(limiter.check_n("ada", units)).is_ok();
    costs(units) && !costs(units + 1)
}

fn credits_at_most(units: u32) -> bool {
    let admin = RateLimiter::new(TestStore::new(), Quota::per_minute(u32::MAX)).admin();
    let credits = |units| block_on(admin.credit("ada", units)).is_ok();
    credits(units) && !credits(units + 1)
}

fn leases_are_bounded() -> bool {
    let quotas = [Quota::per_hour(9), Quota::per_minute(9)];
    let limiter = RateLimiter::new(TestStore::new(), quotas);
    let longest = Duration::from_secs(6);
    let is_lease = |lease| limiter.clone().try_lease(lease).is_ok();
    is_lease(longest) && !is_lease(longest + Duration::from_micros(1))
}

/// A store that grants as many units as a check asks for.
struct Granting;

impl Store for Granting {
    fn id(&self) -> StoreId {
        StoreId::unique()
    }

    fn check(&self, checks: &[Check<'_>], answers: &mut Answers) -> Option<StoreFuture> {
        for (check, answer) in checks.iter().zip(answers.iter_mut()) {
            let quotas = check.quotas.iter();
            let admitted = quotas.map(|quota| QuotaAnswer::admitted(1, quota.window()));
            *answer = Answer::new(Source::Other, admitted).with_extra_units(check.extra_units);
        }
        None
    }

    fn parts(&self) -> StoreParts {
        let mut parts = StoreParts::default();
        parts.supports_leases = true;
        parts
    }
}

/// Returns how many checks of a key ask the store before one is admitted from memory.
fn checks_before_lease(limit: u32) -> Option<usize> {
    let limiter = RateLimiter::new(Granting, Quota::per_hour(limit));
    let limiter = limiter.lease(Duration::from_secs(360));
    block_on(async {
        for checks in 0..100 {
            let decision = limiter.check("ada").await.expect("the store answers");
            if decision.source() == Source::Lease {
                return Some(checks);
            }
            // So that the request for units is answered.
            tokio::task::yield_now().await;
        }
        None
    })
}

/// The part that the script of Redis charges.
fn grants_an_eighth() -> bool {
    include_str!("../../../lua/decide.lua").contains("floor(min(8 * more, least) / 8)")
}

fn key_level() -> Level {
    Level::new(
        RateLimiter::new(MemoryStore::new(), Quota::in_flight(9)),
        key::global(),
    )
}

fn takes_a_slot() -> bool {
    let limiter = RateLimiter::new(MemoryStore::new(), Quota::in_flight(9));
    let permit = block_on(limiter.acquire("ada"));
    permit.is_ok_and(|permit| permit.decision().used() == 1)
}

/// No test waits for a minute.
fn waits_for_a_minute() -> bool {
    include_str!("../../../src/limiter/in_flight/acquire.rs")
        .contains("DEFAULT_MAX_WAIT: Duration = Duration::from_secs(60);")
}

fn slot_leases_are_bounded() -> bool {
    let is_lease = |lease: &str| format!("1 in-flight:{lease}").parse::<Quota>().is_ok();
    !is_lease("4999ms") && is_lease("5s") && is_lease("600s") && !is_lease("600001ms")
}

fn windows_are_bounded() -> bool {
    let (shortest, longest) = (
        Duration::from_millis(1),
        Duration::from_secs(366 * 24 * 3_600),
    );
    let micro = Duration::from_micros(1);
    let is_window = |window| Quota::try_new(1, window).is_ok();
    is_window(shortest)
        && is_window(longest)
        && !is_window(shortest - micro)
        && !is_window(longest + micro)
}

fn buckets_are_bounded() -> bool {
    let is_number = |buckets| {
        let quota = format!("1/minute sliding-buckets:{buckets}");
        quota.parse::<Quota>().is_ok()
    };
    !is_number(0) && is_number(1) && is_number(1_000) && !is_number(1_001)
}

/// Returns the label `store` of the metrics.
fn name_in_metrics(store: impl Store) -> String {
    let recorder = DebuggingRecorder::new();
    metrics::with_local_recorder(&recorder, || {
        let limiter = RateLimiter::new(store, Quota::per_minute(9));
        let _ = block_on(limiter.check("ada"));
    });
    let metrics = recorder.snapshotter().snapshot().into_vec();
    let labels = metrics
        .iter()
        .flat_map(|(metric, ..)| metric.key().labels());
    let mut stores = labels.filter(|label| label.key() == "store");
    stores
        .next()
        .map(|label| label.value().to_owned())
        .unwrap_or_default()
}
