//! Triggers every metric and event of the crate.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::{LazyLock, Mutex};
use std::time::Duration;

use axum::http::header::RETRY_AFTER;
use axum::http::{HeaderMap, HeaderValue, Request, StatusCode};
use metrics::Unit;
use metrics_util::MetricKind;
use metrics_util::debugging::DebuggingRecorder;

use tollgate::store::{Batch, Rows, Store, StoreOn, Written};
use tollgate::{
    BlockRule, Error, ErrorKind, FailurePolicy, MemoryStore, Quota, RateLimitLayer, RateLimiter,
    RedisStore, Share, Source, key,
};
use tower::{Layer, ServiceExt, service_fn};
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::layer::{Context, SubscriberExt};

use crate::support::calls::ok;
use crate::support::fakes::fake_store::foreign;
use crate::support::fakes::moody::{Mood, Moody};
use crate::support::redis_server::{RedisServer, run};
use crate::support::timeless::TimelessServer;
use crate::support::{runtime, store_on};

/// Metrics of one name.
#[derive(Debug)]
pub(crate) struct Family {
    /// As Prometheus calls it.
    pub(crate) kind: &'static str,
    pub(crate) unit: Option<Unit>,
    pub(crate) labels: BTreeMap<String, BTreeSet<String>>,
}

/// An event of a check: its fields, without the text.
#[derive(Clone, Debug)]
pub(crate) struct Told {
    pub(crate) level: Level,
    pub(crate) fields: BTreeMap<String, String>,
}

pub(crate) struct Emitted {
    pub(crate) metrics: BTreeMap<String, Family>,
    pub(crate) events: Vec<Told>,
}

/// The keys of the limiters.
pub(crate) const WHO: &str = "ada.lovelace";

pub(crate) static EMITTED: LazyLock<Emitted> = LazyLock::new(|| {
    let subscriber = tracing_subscriber::registry().with(Listener);
    tracing::subscriber::set_global_default(subscriber).expect("the first subscriber");
    let recorder = DebuggingRecorder::new();
    let metrics = recorder.snapshotter();
    let runtime = runtime();
    metrics::with_local_recorder(&recorder, || runtime.block_on(everything()));

    let mut families = BTreeMap::new();
    for (key, unit, ..) in metrics.snapshot().into_vec() {
        let kind = match key.kind() {
            MetricKind::Counter => "counter",
            MetricKind::Gauge => "gauge",
            MetricKind::Histogram => "histogram",
        };
        let labels = BTreeMap::new();
        let (_, key) = key.into_parts();
        let family = families
            .entry(key.name().to_owned())
            .or_insert(Family { kind, unit, labels });
        for label in key.labels() {
            let values = family.labels.entry(label.key().to_owned()).or_default();
            values.insert(label.value().to_owned());
        }
    }
    let events = EVENTS.lock().expect("nobody panics").clone();
    Emitted {
        metrics: families,
        events,
    }
});

async fn everything() {
    let server = RedisServer::start();
    let redis = store_on(&server);
    // Refused by Redis, then by what is remembered of that.
    checks(redis.clone(), 3).await;
    lease(redis.clone()).await;
    permits(redis.clone()).await;
    checks(MemoryStore::new(), 2).await;
    checks(foreign(), 1).await;
    checks(StoreOn::new(InMemory::default()), 1).await;
    blocked().await;
    blocked_after_refusals().await;
    marked().await;
    shared().await;
    paused().await;
    exhausted().await;
    requests().await;
    policies().await;
    crowd().await;
    levels().await;
    told_the_time().await;

    abandoned().await;
    fails(Moody::new(Mood::Hangs)).await;
    fails(Moody::new(Mood::Fails(ErrorKind::InvalidReply))).await;
    // A wrong password.
    run(
        &mut server.connect(),
        &["CONFIG", "SET", "requirepass", "x"],
    );
    fails(store_on(&server)).await;
    fails(Moody::new(Mood::Fails(ErrorKind::Full))).await;
}

fn limiter(store: impl Store) -> RateLimiter {
    RateLimiter::new(store, Quota::per_hour(1))
}

/// Rows that the first change loses to another process.
#[derive(Default)]
struct InMemory(Mutex<BTreeMap<String, Vec<u8>>>);

impl Rows for InMemory {
    async fn change(&self, batch: &mut Batch) -> Result<Written, Error> {
        let is_lost = batch.attempt() == 0;
        let mut rows = self.0.lock().expect("nobody panics");
        let names = batch.names();
        let values = names.map(|name| rows.get(name.as_str()).cloned()).collect();
        let writes = batch.decide(1_000_000, values);
        if is_lost {
            return Ok(Written::Nothing);
        }
        for write in writes {
            rows.insert(write.name.to_string(), write.value.unwrap_or_default());
        }
        Ok(Written::All)
    }
}

async fn checks(store: impl Store, times: u32) {
    let limiter = limiter(store);
    for _ in 0..times {
        let _ = limiter.check(WHO).await.expect("the store answers");
    }
}

/// Checks until a check is admitted from units that the process holds.
async fn lease(store: impl Store) {
    let limiter = RateLimiter::new(store, Quota::per_minute(1_000)).name("leased");
    let limiter = limiter.lease(Duration::from_secs(6));
    for _ in 0..1_000 {
        let decision = limiter.check(WHO).await.expect("the store answers");
        if decision.source() == Source::Lease {
            return;
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    panic!("no check is admitted from memory");
}

/// Takes a permit and drops it.
async fn permits(store: impl Store) {
    let limiter = RateLimiter::new(store, Quota::in_flight(1)).name("permits");
    drop(limiter.acquire(WHO).await.expect("a slot is free"));
    let held = self::limiter(MemoryStore::new()).name("held");
    let held = held.reserve_lease(Duration::from_secs(15));
    drop(held.acquire(WHO).await.expect("a unit is left"));
}

async fn fails(store: impl Store) {
    assert!(limiter(store).check(WHO).await.is_err());
}

async fn abandoned() {
    let limiter = limiter(Moody::new(Mood::Hangs));
    let check = tokio::time::timeout(Duration::from_millis(1), limiter.check(WHO));
    assert!(check.await.is_err());
}

async fn blocked() {
    let limiter = limiter(MemoryStore::new());
    let block = limiter.admin().block(WHO, Duration::from_secs(60)).await;
    block.expect("memory can block");
    assert!(!limiter.check(WHO).await.expect("a decision").is_allowed());
}

async fn blocked_after_refusals() {
    let limiter = limiter(MemoryStore::new()).name("blocking");
    let limiter = limiter.block_after(BlockRule::refusals(1));
    for _ in 0..2 {
        let _ = limiter.check(WHO).await.expect("a decision");
    }
}

/// A check that warns, and one that exceeds a soft quota.
async fn marked() {
    let quotas = [Quota::per_hour(9), Quota::per_hour(1).soft().warn_at(100)];
    let limiter = RateLimiter::new(MemoryStore::new(), quotas).name("marked");
    for _ in 0..2 {
        assert!(limiter.check(WHO).await.expect("a decision").is_allowed());
    }
}

/// A check of a share.
async fn shared() {
    let quota = Quota::per_hour(9).shares([Share::of("batch").at_most(5)]);
    let limiter = RateLimiter::new(MemoryStore::new(), quota).name("shared");
    let decision = RateLimiter::check_all([limiter.level(WHO).share("batch")]).await;
    assert!(decision.expect("a decision").is_allowed());
}

/// An upstream tells to wait, and then something that makes no sense.
async fn paused() {
    let limiter = limiter(MemoryStore::new()).name("upstream");
    for seconds in ["60", "-1"] {
        let headers = HeaderMap::from_iter([(RETRY_AFTER, HeaderValue::from_static(seconds))]);
        limiter.observe(WHO, StatusCode::TOO_MANY_REQUESTS, &headers);
    }
    let decision = limiter.check(WHO).await.expect("a decision");
    assert_eq!(decision.source(), Source::Paused);
}

/// An upstream tells a wait beyond what usual pauses last.
async fn exhausted() {
    let limiter = limiter(MemoryStore::new())
        .name("exhausted")
        .max_pause(Duration::from_secs(60))
        .max_exhausted_pause(Duration::from_secs(3_600));
    let headers = HeaderMap::from_iter([(RETRY_AFTER, HeaderValue::from_static("600"))]);
    limiter.observe(WHO, StatusCode::TOO_MANY_REQUESTS, &headers);
    let decision = limiter.check(WHO).await.expect("a decision");
    assert_eq!(decision.source(), Source::Exhausted);
}

/// The number of refusals at once.
pub(crate) const CROWD: usize = 100;

async fn crowd() {
    let limiter = limiter(MemoryStore::new()).name("crowd");
    for _ in 0..=CROWD {
        let _ = limiter.check(WHO).await.expect("memory answers");
    }
}

/// Exempt, without a key, and what a dry run would refuse.
async fn requests() {
    let layer = RateLimitLayer::new(MemoryStore::new(), Quota::per_hour(0))
        .key(key::header("x-api-key"))
        .skip(|parts| parts.uri.path() == "/healthz");
    for (layer, path, who, status) in [
        (layer.clone(), "/healthz", None, 200),
        (layer.clone(), "/", None, 400),
        (layer.clone(), "/", Some(WHO), 429),
        (layer.dry_run(), "/", Some(WHO), 200),
    ] {
        let mut request = Request::new(());
        *request.uri_mut() = path.parse().expect("a path");
        if let Some(who) = who {
            let who = who.parse().expect("the value of a header");
            request.headers_mut().insert("x-api-key", who);
        }
        let answer = layer.layer(service_fn(ok::<()>)).oneshot(request).await;
        assert_eq!(answer.expect("nothing fails").status(), status);
    }
}

/// A check of two keys is admitted.
async fn levels() {
    let store = MemoryStore::new();
    let quotas = [Quota::per_minute(9), Quota::per_hour(7)];
    let user = RateLimiter::new(store.clone(), quotas).name("user of a level");
    let tenant = RateLimiter::new(store, Quota::per_hour(5)).name("tenant of a level");
    let levels = [user.level(WHO), tenant.level(WHO).cost(2)];
    let decision = RateLimiter::check_all(levels).await;
    assert!(decision.expect("the store answers").is_allowed());
}

/// A check on a server that refuses TIME in scripts.
async fn told_the_time() {
    let server = TimelessServer::start();
    let store = RedisStore::open(&server.url()).expect("a URL");
    checks(store.deadline(Duration::from_secs(10)), 1).await;
}

/// Of a store that fails often enough for its breaker to open.
async fn policies() {
    for policy in [
        FailurePolicy::fall_back(),
        FailurePolicy::open(),
        FailurePolicy::closed(),
    ] {
        let limiter = limiter(Moody::unavailable()).on_failure(policy);
        for _ in 0..6 {
            let _ = limiter.check(WHO).await;
        }
    }
}

static EVENTS: Mutex<Vec<Told>> = Mutex::new(Vec::new());

/// Listens to the events of checks.
struct Listener;

impl<S: Subscriber> tracing_subscriber::Layer<S> for Listener {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        if event.metadata().target() != "tollgate::check" {
            return;
        }
        let mut fields = Fields::default();
        event.record(&mut fields);
        fields.0.remove("message");
        EVENTS.lock().expect("nobody panics").push(Told {
            level: *event.metadata().level(),
            fields: fields.0,
        });
    }
}

#[derive(Default)]
struct Fields(BTreeMap<String, String>);

impl Visit for Fields {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.0.insert(field.name().to_owned(), format!("{value:?}"));
    }
}
