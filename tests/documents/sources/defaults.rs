//! The page of defaults: each value is shown to be the one of the code.

use std::fmt::Debug;
use std::num::{NonZeroU32, NonZeroUsize};
use std::time::{Duration, Instant};

use http::header::{CONNECTION, CONTENT_LENGTH, RETRY_AFTER};
use http::{HeaderMap, HeaderValue, Request};
use http_body_util::BodyExt;
use metrics_util::debugging::DebuggingRecorder;
use tollgate::key::{self, KeyExtractor};
use tollgate::store::{CircuitBreaker, Store, TestStore};
use tollgate::{
    Algorithm, DecisionView, ErrorKind, FailurePolicy, Headers, Key, MemoryStore, Quota,
    RateLimiter, RedisStore, Rejection, Source, WouldReject,
};

use super::block_on;
use super::requests::{
    address, checked, failing, grpc_request, layer, refusing, request, send, send_request,
    without_address, without_key,
};
use crate::markdown::Block;
use crate::support::moody::Moody;

/// Checks the second cell of each row against the settings that the first one links to. A first cell without
/// links is the name of a fact.
pub(super) fn defaults(block: &Block) -> Result<(), String> {
    for row in block.rows() {
        let links = row[0].split("](crate::").skip(1);
        let mut names: Vec<&str> = links
            .filter_map(|link| Some(link.split_once(')')?.0))
            .collect();
        let fact = row[0].replace('`', "");
        if names.is_empty() {
            names.push(&fact);
        }
        for name in names {
            let (value, is_default) = default_of(name).ok_or_else(|| {
                format!("{name}: add its default to tests/documents/sources/defaults.rs")
            })?;
            if row[1] != value {
                return Err(format!("{name}: {:?} should be {value:?}", row[1]));
            }
            if !is_default {
                return Err(format!("{name}: {value:?} is not the default"));
            }
        }
    }
    Ok(())
}

/// Returns the default of a setting as the page writes it, and whether the code has that default.
#[expect(clippy::too_many_lines, reason = "a table")]
pub(super) fn default_of(setting: &str) -> Option<(&'static str, bool)> {
    // Its Debug shows its clock, which clones share.
    let untouched = RedisStore::open("redis://127.0.0.1:1").expect("a URL");
    let redis = || untouched.clone();
    let second = Duration::from_secs(1);
    let deadline = Duration::from_millis(100);
    let two = NonZeroUsize::MIN.saturating_add(1);
    Some(match setting {
        "Quota::algorithm" => (
            "`SlidingLog`",
            Quota::per_minute(1).counted_by() == Algorithm::SlidingLog,
        ),
        "Quota::named" => ("none", Quota::per_minute(1).name().is_none()),
        "RateLimiter::name" | "RateLimitLayer::name" => {
            ("`default`", checked().limiter().as_str() == "default")
        }
        "RateLimitLayer::cost" => ("1 unit", checked().cost() == 1),
        // `checked` panics if the request is skipped.
        "RateLimitLayer::skip" => ("nothing", checked().cost() > 0),
        "RateLimitLayer::quotas_for" => (
            "the layer's own",
            checked().quotas() == layer(TestStore::new()).limiter().quotas(),
        ),
        "RateLimitLayer::wait_up_to" => ("not at all", !waits()),
        "RateLimitLayer::settle" | "RateLimitLayer::reserve" => {
            ("the charge stays", stays_charged())
        }
        "RateLimitLayer::dry_run" => (
            "it refuses",
            send(&refusing())
                .extensions()
                .get::<WouldReject>()
                .is_none(),
        ),
        "RateLimitLayer::key" => (
            "`peer_ip()`",
            checked().key() == &key::peer_ip().of(address().ip()),
        ),
        "RateLimitLayer::on_missing_key" => ("rejected with 400", without_key() == 400),
        "key::peer_ip" => ("rejected with 500", without_address() == 500),
        "key::PeerIp::ipv6_prefix" => (
            "64 bits",
            key::peer_ip().of(address().ip()).as_str().ends_with("/64"),
        ),
        "key::ClientIp::ipv6_prefix" => (
            "64 bits",
            key::client_ip()
                .of(address().ip())
                .as_str()
                .ends_with("/64"),
        ),
        "key::ClientIp::behind" | "key::ClientIp::hops" => (
            "nobody is trusted: 500",
            send(&layer(TestStore::new()).key(key::client_ip())).status() == 500,
        ),
        "key::ClientIp::forwarded" | "key::ClientIp::header" => {
            ("`X-Forwarded-For`", reads_x_forwarded_for())
        }
        "key::Header::plain" => (
            "hashed",
            !header_key("hunter2").as_str().contains("hunter2"),
        ),
        "key::Extension::secret" => {
            let key = key::extension::<String>().of(&"ada".to_owned());
            ("as it is", key.as_str().ends_with("=ada"))
        }
        "RateLimitLayer::status" => ("429", send(&refusing()).status() == 429),
        "RateLimitLayer::responder" => ("`rate limit exceeded`", body() == "rate limit exceeded\n"),
        "RateLimitLayer::grpc" => (
            "an HTTP status, also for `application/grpc`",
            send_request(&refusing(), grpc_request()).status() == 429,
        ),
        "RateLimitLayer::close_rejected_uploads" => ("`Connection: close`", closes_upload()),
        "RateLimitLayer::headers" => (
            "`X-RateLimit-*`",
            Headers::default() == Headers::x_ratelimit(),
        ),
        // 2023 or later, while a wait is a second.
        "Headers::epoch_reset" | "Headers::delta_reset" => (
            "Unix time",
            number(send(&refusing()).headers(), "x-ratelimit-reset") > 1_700_000_000,
        ),
        // The store refuses for 1.001 s.
        "Retry-After of a 429" => (
            "rounded up",
            number(send(&refusing()).headers(), RETRY_AFTER.as_str()) == 2,
        ),
        "Retry-After of a 503" => {
            let response = send(&failing().on_failure(FailurePolicy::closed()));
            ("1 s", number(response.headers(), RETRY_AFTER.as_str()) == 1)
        }
        "RateLimitLayer::on_failure" => ("`fall_back()`", falls_back()),
        "RateLimiter::on_failure" => {
            let store = TestStore::new();
            store.fail_all(ErrorKind::Unavailable);
            let limiter = RateLimiter::new(store, Quota::per_minute(9));
            ("the error", block_on(limiter.check("ada")).is_err())
        }
        "FailurePolicy::share" => (
            "the whole limit",
            FailurePolicy::fall_back().share(NonZeroU32::MIN) == FailurePolicy::fall_back(),
        ),
        "RedisStore::deadline" => (
            "100 ms",
            is_set_to(deadline, second, |time| redis().deadline(time), &untouched),
        ),
        "store::CircuitBreaker::deadline" => {
            let breaker = CircuitBreaker::new;
            let set = |time| breaker().deadline(time);
            ("100 ms", is_set_to(deadline, second, set, &breaker()))
        }
        "RedisStore::fallback_keys" => {
            let set = |keys| redis().fallback_keys(keys);
            ("100 000", is_set_to(100_000, 1, set, &untouched))
        }
        "store::CircuitBreaker::fallback_keys" => {
            let breaker = CircuitBreaker::new;
            let set = |keys| breaker().fallback_keys(keys);
            ("100 000", is_set_to(100_000, 1, set, &breaker()))
        }
        "RedisStore::prefix" => {
            let set = |prefix| redis().prefix(prefix);
            ("`tollgate`", is_set_to("tollgate", "shop", set, &untouched))
        }
        "RedisStore::hash_tags" => (
            "one for each key",
            format!("{:?}", redis()).contains("hash_tags: None"),
        ),
        "RedisStore::connections" => {
            let set = |count| redis().connections(count);
            (
                "1 for each runtime",
                is_set_to(NonZeroUsize::MIN, two, set, &untouched),
            )
        }
        "RedisStore::batches" => {
            let set = |on| redis().batches(on);
            ("on", is_set_to(true, false, set, &untouched))
        }
        "RedisStore::refusal_cache" => {
            let set = |time| redis().refusal_cache(time);
            ("1 s at most", is_set_to(second, deadline, set, &untouched))
        }
        "RedisStore::block_list_refresh" => {
            let set = |time| redis().block_list_refresh(time);
            ("1 s", is_set_to(second, deadline, set, &untouched))
        }
        "Admin::block" => ("10 000", blocks_at_most(10_000)),
        "units that a check of a log may cost" => ("100 000", costs_at_most(100_000)),
        "MemoryStore::with_max_keys" => ("100 000 keys", MemoryStore::new().max_keys() == 100_000),
        "RateLimiter::track_refused" | "RateLimitLayer::track_refused" => {
            ("no key", tracks_no_key())
        }
        "store::CircuitBreaker::named" => {
            ("`other`", name_in_metrics(Moody::unavailable()) == "other")
        }
        "MemoryStore::named" => ("`memory`", name_in_metrics(MemoryStore::new()) == "memory"),
        "RedisStore::named" => ("its address", name_in_metrics(redis()) == "127.0.0.1:1"),
        _ => return None,
    })
}

/// Whether `untouched` is what `set` makes of `default`, and nothing else.
fn is_set_to<V, T: Debug>(default: V, other: V, set: impl Fn(V) -> T, untouched: &T) -> bool {
    let untouched = format!("{untouched:?}");
    untouched == format!("{:?}", set(default)) && untouched != format!("{:?}", set(other))
}

fn waits() -> bool {
    let began = Instant::now();
    send(&refusing());
    began.elapsed() > Duration::from_secs(1)
}

fn stays_charged() -> bool {
    let layer = layer(TestStore::new());
    send(&layer);
    let key = key::peer_ip().of(address().ip());
    block_on(layer.limiter().peek(key)).is_ok_and(|decision| decision.used() == 1)
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

fn header_key(value: &str) -> Key {
    let request = Request::get("/").header("x-key", value).body(());
    let (parts, ()) = request.expect("a request").into_parts();
    key::header("x-key").extract(&parts).expect("a key")
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

fn number(headers: &HeaderMap, name: &str) -> u64 {
    let value = headers[name].to_str().expect("text");
    value.parse().expect("a number")
}

fn falls_back() -> bool {
    let response = send(&failing());
    let decision = response.extensions().get::<DecisionView>();
    let rejected = response.extensions().get::<Rejection>().is_some();
    !rejected && decision.is_some_and(|decision| decision.source() == Source::Fallback)
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

fn tracks_no_key() -> bool {
    let limiter = refusing().limiter().clone();
    let refused = block_on(limiter.check("ada")).is_ok_and(|decision| !decision.is_allowed());
    refused && limiter.admin().busiest_refused(9).is_empty()
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
