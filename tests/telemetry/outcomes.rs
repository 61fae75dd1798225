//! Metrics by outcome, events by level, and no key in either.

use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::time::Duration;

use axum::http::Request;
use metrics::{LocalRecorderGuard, set_default_local_recorder};
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle, PrometheusRecorder};
use metrics_util::debugging::{DebugValue, DebuggingRecorder};
use tollgate::store::protocol::CircuitBreaker;
use tollgate::store::{TestClock, TestStore};
use tollgate::{
    ErrorKind, FailurePolicy, Key, Level, MemoryStore, MissingKey, Plan, Quota, RateLimitLayer,
    RateLimiter, RedisStore, Share, Source, Store, key,
};
use tower::{Layer, ServiceExt, service_fn};

use crate::support::calls::ok;
use crate::support::cluster::Cluster;
use crate::support::fakes::fake_store::foreign;
use crate::support::redis_server::{RedisServer, signal};
use crate::support::{log, runtime, store_on};

/// A key that must not appear in metrics or events.
pub(crate) const WHO: &str = "ada-lovelace";

/// The values of a recorder since the last read, by name and labels.
type Told = BTreeMap<String, DebugValue>;

/// A recorder of this thread alone, until it is dropped.
fn record() -> (&'static DebuggingRecorder, LocalRecorderGuard<'static>) {
    let recorder: &'static DebuggingRecorder = Box::leak(Box::default());
    (recorder, set_default_local_recorder(recorder))
}

fn told(recorder: &DebuggingRecorder) -> Told {
    let told = recorder.snapshotter().snapshot().into_vec();
    let told = told.into_iter().map(|(key, _, about, value)| {
        assert!(about.is_some(), "{key:?} says what it is");
        let key = key.key();
        let labels = key
            .labels()
            .map(|label| format!("{}={}", label.key(), label.value()));
        let labels: Vec<_> = labels.collect();
        (format!("{}{{{}}}", key.name(), labels.join(",")), value)
    });
    told.collect()
}

/// The counters that are not zero.
fn counted(recorder: &DebuggingRecorder) -> BTreeMap<String, u64> {
    let counters = told(recorder)
        .into_iter()
        .filter_map(|(name, value)| match value {
            DebugValue::Counter(0) => None,
            DebugValue::Counter(count) => Some((name, count)),
            _ => None,
        });
    counters.collect()
}

/// The metrics of this thread as Prometheus would scrape them, with the current values of gauges. The other
/// recorder has only changes since the last read.
pub(crate) fn scrape() -> (PrometheusHandle, LocalRecorderGuard<'static>) {
    let recorder = Box::new(PrometheusBuilder::new().build_recorder());
    let recorder: &'static PrometheusRecorder = Box::leak(recorder);
    (recorder.handle(), set_default_local_recorder(recorder))
}

pub(crate) fn scraped(handle: &PrometheusHandle, series: &str) -> f64 {
    let text = handle.render();
    let mut lines = text.lines();
    let value = lines.find_map(|line| line.strip_prefix(series)?.trim().parse().ok());
    value.unwrap_or_else(|| panic!("no {series} in {text}"))
}

fn gauge(told: &Told, name: &str) -> f64 {
    match told.get(name) {
        Some(DebugValue::Gauge(value)) => **value,
        other => panic!("{name} is {other:?} of {told:?}"),
    }
}

fn checks(limiter: &str, outcome: &str, source: &str) -> String {
    format!("tollgate_checks_total{{limiter={limiter},outcome={outcome},source={source}}}")
}

fn waits(store: &str, outcome: &str) -> String {
    format!("tollgate_store_duration_seconds{{store={store},outcome={outcome}}}")
}

fn layer(store: impl Store, quota: Quota) -> RateLimitLayer {
    RateLimitLayer::new(store, quota)
        .name("search")
        .key(key::header("x-api-key").plain())
}

/// What a request of this key is answered; one without, where there is none.
async fn ask(layer: &RateLimitLayer, key: Option<&str>) -> u16 {
    let mut request = Request::new(());
    if let Some(key) = key {
        request
            .headers_mut()
            .insert("x-api-key", key.parse().unwrap());
    }
    let service = layer.layer(service_fn(ok::<()>));
    service.oneshot(request).await.unwrap().status().as_u16()
}

#[tokio::test]
async fn each_request_is_counted_once_by_what_came_of_it() {
    let (recorder, _guard) = record();
    let open = layer(MemoryStore::new(), Quota::per_hour(2));
    for _ in 0..5 {
        ask(&open, Some(WHO)).await;
    }
    ask(&open, None).await;
    let exempt = open.clone().on_missing_key(MissingKey::Exempt);
    ask(&exempt, None).await;
    ask(&open.clone().skip(|_| true), Some(WHO)).await;
    let plans = open.clone().quotas_for(|_, _| async { Plan::Exempt });
    ask(&plans, Some(WHO)).await;
    let dry = open.clone().dry_run();
    ask(&dry, Some(WHO)).await;
    ask(&dry, None).await;
    let free = open.cost(|_| 0);
    ask(&free, Some(WHO)).await;
    let expected = [
        (checks("search", "admitted", "memory"), 3),
        (checks("search", "exempt", "none"), 3),
        (checks("search", "no_key", "none"), 1),
        (checks("search", "refused", "memory"), 3),
        (checks("search", "would_reject", "memory"), 1),
        (checks("search", "would_reject", "none"), 1),
    ];
    assert_eq!(counted(recorder), BTreeMap::from(expected));
}

#[tokio::test]
async fn checks_by_a_store_outside_have_the_name_of_the_store_as_their_source() {
    for (breaker, source) in [
        (CircuitBreaker::new().name("sqlite"), "sqlite"),
        (CircuitBreaker::new(), "other"),
    ] {
        let (recorder, _guard) = record();
        log::keep();
        let store = foreign().circuit_breaker(breaker);
        let limiter = RateLimiter::new(store, Quota::per_hour(9));
        // The name and the tracking of rejected keys are set later, too.
        let limiters = [
            limiter.clone(),
            limiter.clone().name("named"),
            limiter
                .track_rejected_keys(NonZeroUsize::MIN)
                .name("tracked"),
        ];
        for limiter in limiters {
            let decision = limiter.check(WHO).await.unwrap();
            assert_eq!(decision.source(), Source::Other);
            assert!(!limiter.check_n(WHO, 2).await.unwrap().is_allowed());
        }
        let counts = ["default", "named", "tracked"].map(|limiter| {
            ["admitted", "refused"].map(|outcome| (checks(limiter, outcome, source), 1))
        });
        assert_eq!(counted(recorder), counts.into_iter().flatten().collect());
        let lines = log::all_kept();
        let refused = lines.iter().filter(|line| line.contains("check refused"));
        let field = format!("source=\"{source}\"");
        assert!(
            refused.clone().all(|line| line.contains(&field)),
            "{lines:?}"
        );
        assert_eq!(refused.count(), 3, "{lines:?}");
    }
}

#[tokio::test]
async fn who_decided_is_told_while_the_store_fails() {
    let (recorder, _guard) = record();
    let store = TestStore::new();
    store.fail_all(ErrorKind::Unavailable);
    let falls_back = layer(store.clone(), Quota::per_hour(2));
    let open = falls_back.clone().on_failure(FailurePolicy::open());
    let closed = falls_back.clone().on_failure(FailurePolicy::closed());
    for _ in 0..3 {
        ask(&falls_back, Some(WHO)).await;
    }
    assert_eq!(
        (ask(&open, Some(WHO)).await, ask(&closed, Some(WHO)).await),
        (200, 503)
    );
    let mut told = counted(recorder);
    let errors = told.remove("tollgate_store_errors_total{store=test,error_type=unavailable}");
    assert_eq!(errors, Some(5));
    let expected = [
        (checks("search", "admitted", "fallback"), 2),
        (checks("search", "admitted", "none"), 1),
        (checks("search", "failed", "none"), 1),
        (checks("search", "refused", "fallback"), 1),
    ];
    assert_eq!(told, BTreeMap::from(expected));
}

#[tokio::test]
async fn a_breaker_that_opens_and_closes_is_seen() {
    const OPEN: &str = "tollgate_circuit_breakers_open{store=\"test\"}";
    let (prometheus, _guard) = scrape();
    let store = TestStore::new();
    let limiter = RateLimiter::new(store.clone(), Quota::per_hour(9));
    store.fail_all(ErrorKind::Unavailable);
    for _ in 0..10 {
        let _ = limiter.check(WHO).await;
    }
    assert_eq!(scraped(&prometheus, OPEN), 1.0);
    store.recover();
    let patience = std::time::Instant::now() + Duration::from_secs(5);
    while limiter.check(WHO).await.is_err() {
        assert!(std::time::Instant::now() < patience, "it closes");
        store.clock().advance(Duration::from_millis(600));
        tokio::task::yield_now().await;
    }
    assert_eq!(scraped(&prometheus, OPEN), 0.0);
}

#[tokio::test(start_paused = true)]
async fn a_wait_is_one_check_and_what_is_no_check_is_not_counted() {
    let (recorder, _guard) = record();
    let clock = TestClock::new();
    let limiter = RateLimiter::new(MemoryStore::with_clock(clock.clone()), Quota::per_minute(2));
    let limiter = limiter.name("jobs");
    let mut taken = limiter.check_n(WHO, 2).await.unwrap();
    taken.refund(1).await.unwrap();
    taken.settle(2).await.unwrap();
    let _ = limiter.peek(WHO).await.unwrap();
    let _ = limiter.admin().status(WHO).await.unwrap();
    let waiting =
        tokio::spawn(async move { limiter.until_ready(WHO, 1, Duration::from_secs(300)).await });
    while !waiting.is_finished() {
        tokio::time::advance(Duration::from_secs(1)).await;
        clock.advance(Duration::from_secs(1));
        tokio::task::yield_now().await;
    }
    assert!(waiting.await.unwrap().unwrap().is_allowed());
    let expected = [(checks("jobs", "admitted", "memory"), 2)];
    assert_eq!(counted(recorder), BTreeMap::from(expected));
}

#[tokio::test]
async fn a_cost_that_never_passes_is_refused() {
    let (recorder, _guard) = record();
    let limiter = RateLimiter::new(MemoryStore::new(), Quota::per_minute(2)).name("jobs");
    log::keep();
    assert!(limiter.check_n(WHO, 3).await.is_err());
    let events = log::all_kept();
    let [event] = events.as_slice() else {
        panic!("{events:?}");
    };
    for part in ["INFO", "refused", "error.type=\"cost_exceeds_limit\""] {
        assert!(event.contains(part) && !event.contains(WHO), "{event}");
    }
    let expected = [(checks("jobs", "refused", "none"), 1)];
    assert_eq!(counted(recorder), BTreeMap::from(expected));
}

#[tokio::test]
async fn checks_of_a_share_are_counted_by_its_name_and_others_have_no_such_label() {
    let (recorder, _guard) = record();
    let shares = [
        Share::of("critical").reserve(2),
        Share::of("batch").at_most(1),
    ];
    let quotas = [Quota::per_hour(9), Quota::per_day(4).shares(shares)];
    let limiter = RateLimiter::new(MemoryStore::new(), quotas).name("shared");
    for share in [
        "batch", "batch", "unknown", "unknown", "critical", "critical",
    ] {
        let level = limiter.level(WHO).share(share);
        let _ = RateLimiter::check_all([level]).await.unwrap();
    }
    let _ = limiter.check(WHO).await.unwrap();
    let in_share = |outcome, share| {
        let series = checks("shared", outcome, "memory");
        series.replace('}', &format!(",share={share}}}"))
    };
    let mut expected = BTreeMap::from([
        (in_share("admitted", "batch"), 1),
        (in_share("refused", "batch"), 1),
        (in_share("admitted", "critical"), 2),
        (checks("shared", "admitted", "memory"), 1),
        (checks("shared", "refused", "memory"), 2),
    ]);
    assert_eq!(counted(recorder), expected);

    // A block, and a fallback.
    limiter
        .admin()
        .block(WHO, Duration::from_secs(9))
        .await
        .unwrap();
    let _ = RateLimiter::check_all([limiter.level(WHO).share("batch")])
        .await
        .unwrap();
    expected = BTreeMap::from([(in_share("refused", "batch").replace("memory", "block"), 1)]);
    assert_eq!(counted(recorder), expected);
    let store = TestStore::new();
    store.fail_all(ErrorKind::Unavailable);
    let shares = [Share::of("batch").at_most(1)];
    let layer = layer(store, Quota::per_hour(4).shares(shares)).share(|_| Some("batch"));
    assert_eq!(
        (ask(&layer, Some(WHO)).await, ask(&layer, Some(WHO)).await),
        (200, 429)
    );
    let mut told = counted(recorder);
    told.retain(|name, _| name.starts_with("tollgate_checks_total"));
    let fallback = |outcome| {
        let series = checks("search", outcome, "fallback");
        (series.replace('}', ",share=batch}"), 1)
    };
    assert_eq!(told, BTreeMap::from(["admitted", "refused"].map(fallback)));
}

#[tokio::test]
async fn plans_with_ever_new_shares_get_a_bounded_number_of_labels() {
    let (recorder, _guard) = record();
    let limiter = RateLimiter::new(MemoryStore::new(), []).name("plans");
    for plan in 0..100 {
        let name = format!("share-{plan}");
        let quota = Quota::per_hour(9).shares([Share::of(&name)]);
        let level = limiter.level(plan.to_string()).quotas(quota).share(&name);
        assert!(RateLimiter::check_all([level]).await.unwrap().is_allowed());
    }
    let counted = counted(recorder);
    let others = counted.get(&checks("plans", "admitted", "memory"));
    assert_eq!((counted.len(), others), (65, Some(&36)));
}

#[tokio::test]
async fn a_recorder_that_is_installed_late_is_told_what_comes() {
    let limiter = RateLimiter::new(MemoryStore::new(), Quota::per_minute(9)).name("late");
    let _ = limiter.check(WHO).await.unwrap();
    let (recorder, _guard) = record();
    for _ in 0..3 {
        let _ = limiter.check(WHO).await.unwrap();
    }
    let expected = [(checks("late", "admitted", "memory"), 3)];
    assert_eq!(counted(recorder), BTreeMap::from(expected));
}

#[tokio::test]
async fn keys_are_told_as_they_come_and_go() {
    const HELD: &str = r#"tollgate_keys{store="sessions",holds="counts"}"#;
    let (prometheus, _guard) = scrape();
    let store = MemoryStore::new().name("sessions");
    let limiter = RateLimiter::new(store.clone(), Quota::per_minute(9));
    for key in 0..50 {
        let _ = limiter.check(format!("{WHO}:{key}")).await.unwrap();
        let held = u32::try_from(store.len()).unwrap();
        assert_eq!(scraped(&prometheus, HELD), f64::from(held));
    }
    for key in 0..20 {
        limiter.admin().reset(format!("{WHO}:{key}")).await.unwrap();
    }
    assert_eq!((scraped(&prometheus, HELD), store.len()), (30.0, 30));
}

#[tokio::test]
async fn calls_to_redis_tell_how_many_checks_they_carried_and_how_long_those_waited() {
    let server = RedisServer::start();
    let (recorder, _guard) = record();
    let limiter = RateLimiter::new(store_on(&server), Quota::per_hour(1)).name("redis");
    let mut all = tokio::task::JoinSet::new();
    let local = tokio::task::LocalSet::new();
    local
        .run_until(async {
            for key in 0..100 {
                let limiter = limiter.clone();
                all.spawn_local(async move { limiter.check(format!("{WHO}:{key}")).await });
            }
            while let Some(checked) = all.join_next().await {
                assert!(checked.unwrap().unwrap().is_allowed());
            }
        })
        .await;
    for _ in 0..3 {
        let _ = limiter.check(format!("{WHO}:1")).await.unwrap();
    }
    let mut told = told(recorder);
    let store = format!("127.0.0.1:{}", server.url().rsplit(':').next().unwrap());
    let store = store.trim_end_matches('/');
    let Some(DebugValue::Histogram(batches)) =
        told.remove(&format!("tollgate_batch_checks{{store={store}}}"))
    else {
        panic!("{told:?}");
    };
    let carried: f64 = batches.iter().map(|checks| **checks).sum();
    // The last two were refused from memory.
    assert_eq!(carried, 101.0);
    assert!(batches.len() < 60, "{batches:?}");
    let waited = told.remove(&waits(store, "ok"));
    let Some(DebugValue::Histogram(waited)) = waited else {
        panic!("{told:?}");
    };
    assert_eq!(waited.len(), 101);
    assert!(
        waited
            .iter()
            .all(|seconds| (0.0..10.0).contains(&**seconds))
    );
    let refusals = gauge(
        &told,
        &format!("tollgate_keys{{store={store},holds=refusals}}"),
    );
    assert_eq!(refusals, 1.0);
    for (outcome, source, count) in [
        ("admitted", "redis", 100),
        ("refused", "redis", 1),
        ("refused", "refusal_cache", 2),
    ] {
        let counted = told.remove(&checks("redis", outcome, source));
        assert_eq!(
            counted,
            Some(DebugValue::Counter(count)),
            "{outcome} {source}"
        );
    }
    assert!(!format!("{told:?}").contains(WHO));
}

/// The number of waits for the store, by how they ended.
fn ends_of_waits(recorder: &DebuggingRecorder) -> BTreeMap<String, usize> {
    let waits = told(recorder).into_iter().filter_map(|(name, value)| {
        let labels = name.strip_prefix("tollgate_store_duration_seconds{store=redis,")?;
        let outcome = labels.strip_prefix("outcome=")?.strip_suffix('}')?;
        match value {
            DebugValue::Histogram(waits) if waits.is_empty() => None,
            DebugValue::Histogram(waits) => Some((outcome.to_owned(), waits.len())),
            _ => None,
        }
    });
    waits.collect()
}

#[tokio::test]
async fn a_wait_is_told_apart_by_how_it_ended_so_that_a_dead_redis_does_not_look_fast() {
    let mut server = RedisServer::start();
    let (recorder, _guard) = record();
    let limiter = RateLimiter::new(store_on(&server).name("redis"), Quota::per_hour(9));
    for _ in 0..3 {
        let _ = limiter.check(WHO).await.unwrap();
    }
    let expected = |outcome: &str, count| BTreeMap::from([(outcome.to_owned(), count)]);
    assert_eq!(ends_of_waits(recorder), expected("ok", 3));

    signal(&server, "STOP");
    let given_up = tokio::time::timeout(Duration::from_millis(1), limiter.check(WHO)).await;
    assert!(given_up.is_err());
    assert_eq!(ends_of_waits(recorder), expected("abandoned", 1));
    let hasty = store_on(&server).name("redis");
    let hasty = hasty.deadline(Duration::from_millis(40));
    let hasty = RateLimiter::new(hasty, Quota::per_hour(9));
    let late = hasty.check(WHO).await.unwrap_err();
    assert_eq!(late.kind(), ErrorKind::Timeout);
    assert_eq!(ends_of_waits(recorder), expected("timeout", 1));

    server.kill();
    let gone = store_on(&server).name("redis");
    let gone = RateLimiter::new(gone, Quota::per_hour(9)).check(WHO).await;
    assert_eq!(gone.unwrap_err().kind(), ErrorKind::Unavailable);
    assert_eq!(ends_of_waits(recorder), expected("unavailable", 1));
}

#[tokio::test]
async fn a_check_without_quotas_is_exempt_and_not_admitted_unchecked() {
    let (recorder, _guard) = record();
    const NONE: [Quota; 0] = [];
    let limiter = RateLimiter::new(MemoryStore::new(), NONE).name("unlimited");
    assert!(limiter.check(WHO).await.unwrap().is_allowed());
    let unlimited = RateLimitLayer::new(MemoryStore::new(), NONE)
        .name("unlimited layer")
        .key(key::header("x-api-key"));
    assert_eq!(ask(&unlimited, Some(WHO)).await, 200);
    let store = MemoryStore::new();
    let user = RateLimiter::new(store.clone(), Quota::per_hour(9)).name("user");
    let tenant = RateLimiter::new(store, NONE).name("unlimited tenant");
    let decision = RateLimiter::check_all([user.level(WHO), tenant.level(WHO)]).await;
    assert!(decision.unwrap().is_allowed());
    let expected = [
        (checks("unlimited", "exempt", "none"), 1),
        (checks("unlimited layer", "exempt", "none"), 1),
        (checks("unlimited tenant", "exempt", "none"), 1),
        (checks("user", "admitted", "memory"), 1),
    ];
    assert_eq!(counted(recorder), BTreeMap::from(expected));
}

/// The units of leases as Prometheus would scrape them: those held, then each event of the limiter `leased`.
fn lease_units(prometheus: &PrometheusHandle) -> (f64, [f64; 4]) {
    let held = scraped(prometheus, r#"tollgate_lease_units_held{limiter="leased"}"#);
    let events = ["granted", "used", "returned", "lost"].map(|event| {
        let labels = format!(r#"{{limiter="leased",event="{event}"}}"#);
        scraped(prometheus, &format!("tollgate_lease_units_total{labels}"))
    });
    (held, events)
}

const LEASE: Duration = Duration::from_secs(1);

fn leased(server: &RedisServer) -> RateLimiter {
    let quota = Quota::new(10_000, Duration::from_secs(10));
    let store = store_on(server).deadline(Duration::from_secs(5));
    RateLimiter::new(store, quota).name("leased").lease(LEASE)
}

/// Checks until a check is admitted from memory.
async fn until_leased(limiter: &RateLimiter) -> tollgate::Decision {
    for _ in 0..1_000 {
        let decision = limiter.check(WHO).await.unwrap();
        if decision.source() == Source::Lease {
            return decision;
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    panic!("no lease");
}

/// Waits until no grant is held, and returns the units of each event.
async fn until_ended(prometheus: &PrometheusHandle) -> [f64; 4] {
    for _ in 0..1_000 {
        let (held, [granted, used, returned, lost]) = lease_units(prometheus);
        // All units are accounted for.
        if held == 0.0 && [used, returned, lost].iter().sum::<f64>() >= granted {
            return [granted, used, returned, lost];
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("a grant does not end: {:?}", lease_units(prometheus));
}

#[tokio::test]
async fn units_of_a_lease_are_used_or_returned_when_their_grant_ends() {
    const FROM_MEMORY: &str =
        r#"tollgate_checks_total{limiter="leased",outcome="admitted",source="lease"}"#;
    let server = RedisServer::start();
    let (prometheus, _guard) = scrape();
    let limiter = leased(&server);
    let mut late = until_leased(&limiter).await;
    let (held, [granted, used, returned, lost]) = lease_units(&prometheus);
    assert!(granted > 0.0);
    assert_eq!((held, [used, returned, lost]), (granted, [0.0; 3]));

    let mut early = until_leased(&limiter).await;
    early.refund(1).await.unwrap();
    let [granted, used, returned, lost] = until_ended(&prometheus).await;
    // The refund went to its grant, so its unit was not used.
    assert_eq!(scraped(&prometheus, FROM_MEMORY), used + 1.0);
    assert_eq!((used + returned, lost), (granted, 0.0));

    late.refund(1).await.unwrap();
    let units = until_ended(&prometheus).await;
    assert_eq!(units, [granted, used, returned + 1.0, 0.0]);
}

#[tokio::test]
async fn units_of_a_release_and_a_reset_are_returned() {
    let server = RedisServer::start();
    let (prometheus, _guard) = scrape();
    let limiter = leased(&server);
    let _ = until_leased(&limiter).await;
    limiter.admin().reset(WHO).await.unwrap();
    let (held, [granted, used, returned, lost]) = lease_units(&prometheus);
    assert_eq!((held, used, lost), (0.0, 1.0, 0.0));
    assert_eq!(returned, granted - 1.0);
    let _ = until_leased(&limiter).await;
    limiter.release().await.unwrap();
    let (held, [granted, used, returned, lost]) = lease_units(&prometheus);
    assert_eq!((held, used, lost), (0.0, 2.0, 0.0));
    assert_eq!(returned, granted - 2.0);
    // The tasks of the grants find them ended.
    tokio::time::sleep(2 * LEASE).await;
    let units = lease_units(&prometheus);
    assert_eq!(units, (0.0, [granted, used, returned, lost]));
}

#[tokio::test]
async fn units_that_cannot_be_returned_are_lost() {
    let mut server = RedisServer::start();
    let (prometheus, _guard) = scrape();
    let limiter = leased(&server);
    let mut decision = until_leased(&limiter).await;
    server.kill();
    let [granted, used, returned, lost] = until_ended(&prometheus).await;
    assert_eq!((used, returned), (1.0, 0.0));
    assert_eq!(lost, granted - 1.0);
    assert!(decision.refund(1).await.is_err());
    let (_, units) = lease_units(&prometheus);
    assert_eq!(units, [granted, 1.0, 0.0, granted]);
}

#[test]
fn units_of_a_runtime_that_shuts_down_are_lost() {
    let server = RedisServer::start();
    let (prometheus, _guard) = scrape();
    let limiter = leased(&server);
    let runtime = runtime();
    drop(runtime.block_on(until_leased(&limiter)));
    drop(runtime);
    let (held, [granted, used, returned, lost]) = lease_units(&prometheus);
    assert_eq!((held, used, returned), (0.0, 1.0, 0.0));
    assert_eq!(lost, granted - 1.0);
}

/// The warnings about leases since the last call.
fn lease_warnings() -> Vec<String> {
    let mut lines = log::all_kept();
    lines.retain(|line| line.contains("different leases"));
    lines
}

#[tokio::test]
async fn two_leases_of_one_name_are_told_once() {
    log::keep();
    let store = MemoryStore::new();
    let leased = |store: &MemoryStore, name: &str, millis| {
        layer(store.clone(), Quota::per_minute(9))
            .name(name)
            .lease(Duration::from_millis(millis))
    };
    let first = leased(&store, "service", 50);
    for layer in [
        first.clone(),
        first.clone().name("another"),
        leased(&MemoryStore::new(), "service", 60),
        // The lease of this name is not that of the first one.
        leased(&store, "service", 70).name("third"),
    ] {
        ask(&layer, Some(WHO)).await;
    }
    assert_eq!(lease_warnings(), [""; 0]);
    for other in [0, 60, 60] {
        ask(&leased(&store, "service", other), Some(WHO)).await;
    }
    let warnings = lease_warnings();
    let [warning] = warnings.as_slice() else {
        panic!("{warnings:?}");
    };
    for part in [
        "WARN",
        "tollgate::W016",
        "limiter=\"service\"",
        "50ms and none",
    ] {
        assert!(warning.contains(part), "{warning}");
    }
}

/// The warnings about limiters of one name since the last call.
fn conflict_warnings() -> Vec<String> {
    let mut lines = log::all_kept();
    lines.retain(|line| line.contains("two limiters of this name"));
    lines
}

/// As the guide advises: the plan of a key goes into the check, so that one limiter serves all plans.
#[tokio::test]
async fn two_limiters_of_one_name_in_memory_are_told_and_plans_of_one_limiter_are_not() {
    log::keep();
    let store = MemoryStore::new();
    let limiter = |limit| RateLimiter::new(store.clone(), Quota::per_minute(limit)).name("jobs");
    let one = limiter(10);
    for plan in [10, 100] {
        let check = one.level("ada").quotas(Quota::per_minute(plan));
        let _ = RateLimiter::check_all([check]).await.unwrap();
    }
    assert_eq!(conflict_warnings(), [""; 0]);
    let other = limiter(100);
    for _ in 0..2 {
        let _ = other.check("ada").await.unwrap();
    }
    let warnings = conflict_warnings();
    let [warning] = warnings.as_slice() else {
        panic!("{warnings:?}");
    };
    assert!(
        warning.contains("\"10/minute\" and \"100/minute\"") && !warning.contains("process"),
        "{warning}"
    );
}

#[tokio::test]
async fn two_layers_of_one_name_with_other_quotas_or_keys_are_told_once_each() {
    log::keep();
    let store = MemoryStore::new();
    let by_address = |store: &MemoryStore, limit| {
        RateLimitLayer::new(store.clone(), Quota::per_minute(limit)).key(key::header("x-user"))
    };
    let site = by_address(&store, 100);
    for same in [
        site.clone(),
        by_address(&store, 100),
        by_address(&MemoryStore::new(), 5),
        by_address(&store, 5).name("login"),
    ] {
        let _ = same.layer(());
    }
    assert_eq!(conflict_warnings(), [""; 0]);
    for _ in 0..2 {
        let _ = by_address(&store, 5).layer(());
    }
    let quotas = conflict_warnings();
    assert_eq!(quotas.len(), 1, "{quotas:?}");
    for part in [
        "WARN",
        "tollgate::W015",
        "limiter=\"default\"",
        "\"100/minute\" and \"5/minute\"",
    ] {
        assert!(quotas[0].contains(part), "{quotas:?}");
    }
    for _ in 0..2 {
        let _ = site.clone().key(key::global()).layer(());
    }
    let keys = conflict_warnings();
    assert_eq!(keys.len(), 1, "{keys:?}");
    assert!(keys[0].contains("keys of different kinds"), "{keys:?}");
}

/// The warnings about limiters without a name since the last call.
fn warnings_of_unnamed() -> Vec<String> {
    let mut lines = log::all_kept();
    lines.retain(|line| line.contains("have the default name"));
    lines
}

#[tokio::test]
async fn limiters_without_a_name_that_are_one_are_not_told() {
    log::keep();
    let store = MemoryStore::new();
    let limiter = RateLimiter::new(store.clone(), Quota::per_minute(9));
    let layer = RateLimitLayer::from(limiter.clone()).key(key::global());
    for layer in [layer.clone(), layer.clone().cost(|_| 2), layer.clone()] {
        let _ = (layer.layer(()), layer.layer(()));
    }
    let _ = limiter.check("ada").await.unwrap();
    let _ = limiter.clone().check("bob").await.unwrap();
    // Nor are these: of another store, with a name, or no longer there.
    let _other = check_unnamed(MemoryStore::new()).await;
    let named = || RateLimiter::new(store.clone(), Quota::per_minute(9)).name("named");
    let (one, other) = (named(), named());
    let _ = (one.check("ada").await, other.check("ada").await);
    drop((limiter, layer));
    drop(check_unnamed(store.clone()).await);
    let _last = check_unnamed(store).await;
    assert_eq!(warnings_of_unnamed(), [""; 0]);
}

#[tokio::test]
async fn two_limiters_without_a_name_of_one_store_are_told_once() {
    log::keep();
    let store = MemoryStore::new();
    let first = check_unnamed(store.clone()).await;
    assert_eq!(warnings_of_unnamed(), [""; 0]);
    let layer = RateLimitLayer::new(store.clone(), Quota::per_minute(9)).key(key::global());
    let _ = layer.layer(());
    let warnings = warnings_of_unnamed();
    let [warning] = warnings.as_slice() else {
        panic!("{warnings:?}");
    };
    for part in ["WARN", "share the counts", "give each limiter its own name"] {
        assert!(warning.contains(part), "{warning}");
    }
    let _third = check_unnamed(store).await;
    let _ = (first.check("ada").await, layer.layer(()));
    assert_eq!(warnings_of_unnamed(), [""; 0]);
}

/// A limiter without a name that has checked.
async fn check_unnamed(store: MemoryStore) -> RateLimiter {
    let limiter = RateLimiter::new(store, Quota::per_minute(9));
    let _ = limiter.check("ada").await.unwrap();
    limiter
}

#[tokio::test]
async fn two_limiters_of_one_name_are_told_at_their_first_checks() {
    log::keep();
    let store = MemoryStore::new();
    let [low, high] = [5, 100]
        .map(|limit| RateLimiter::new(store.clone(), Quota::per_minute(limit)).name("jobs"));
    let _ = low.check("ada").await;
    assert_eq!(
        conflict_warnings(),
        [""; 0],
        "the other one has not checked"
    );
    for _ in 0..2 {
        let _ = RateLimiter::check_all([high.level("ada"), high.level("bob")]).await;
    }
    let warnings = conflict_warnings();
    assert_eq!(warnings.len(), 1, "{warnings:?}");
    assert!(
        warnings[0].contains("\"5/minute\" and \"100/minute\""),
        "{warnings:?}"
    );
}

#[tokio::test]
async fn two_leases_of_one_name_are_told_without_http() {
    let server = RedisServer::start();
    log::keep();
    let short = leased(&server);
    let long = RateLimiter::new(store_on(&server), Quota::per_hour(10_000)).name("leased");
    let long = long.lease(10 * LEASE);
    let _ = (until_leased(&short).await, until_leased(&long).await);
    assert_eq!(lease_warnings(), [""; 0], "these stores are different");
    let store = store_on(&server);
    for lease in [LEASE, 10 * LEASE] {
        let limiter = RateLimiter::new(store.clone(), Quota::per_hour(10_000)).lease(lease);
        let _ = until_leased(&limiter).await;
        // Units are held, so the limiter exists.
        drop(limiter);
    }
    let warnings = lease_warnings();
    assert_eq!(warnings.len(), 1, "{warnings:?}");
    assert!(warnings[0].contains("1s and 10s"), "{warnings:?}");
}

#[tokio::test]
async fn refusals_that_are_remembered_are_told_as_they_come_and_go() {
    const HELD: &str = r#"tollgate_keys{store="counts",holds="refusals"}"#;
    let server = RedisServer::start();
    let (prometheus, _guard) = scrape();
    let limiter = RateLimiter::new(store_on(&server).name("counts"), Quota::per_hour(3));
    let refused = async || {
        assert!(!limiter.check_n(WHO, 3).await.unwrap().is_allowed());
        assert_eq!(scraped(&prometheus, HELD), 1.0);
    };
    assert!(limiter.check(WHO).await.unwrap().is_allowed());
    refused().await;
    assert!(limiter.check(WHO).await.unwrap().is_allowed());
    assert_eq!(scraped(&prometheus, HELD), 0.0, "one is admitted");
    refused().await;
    limiter.admin().reset(WHO).await.unwrap();
    assert_eq!(scraped(&prometheus, HELD), 0.0, "they are forgotten");
}

#[tokio::test]
async fn a_refusal_is_an_event_at_info_that_tells_no_key() {
    log::keep();
    let layer = layer(MemoryStore::new(), Quota::per_hour(1));
    for _ in 0..3 {
        ask(&layer, Some(WHO)).await;
    }
    let events = log::all_kept();
    let refusals: Vec<_> = events
        .iter()
        .filter(|line| line.contains("tollgate::check"))
        .collect();
    assert_eq!(refusals.len(), 2, "{events:?}");
    for line in &refusals {
        for part in [
            "INFO",
            "limiter=\"search\"",
            "outcome=\"refused\"",
            "source=\"memory\"",
            "cost=1",
            "limit=1",
            "retry_after=3599.",
            "left_out=0",
        ] {
            assert!(line.contains(part), "{part} of {line}");
        }
        assert!(!line.contains(WHO), "{line}");
    }
    // One key has one alias.
    let alias = |line: &str| line.split("key_alias=").nth(1).unwrap()[..16].to_owned();
    assert_eq!(alias(refusals[0]), alias(refusals[1]));
}

#[tokio::test]
async fn the_alias_of_a_line_leads_to_the_key_in_each_process_with_the_secret() {
    log::keep();
    let logging = RateLimiter::new(MemoryStore::new(), Quota::per_hour(1)).key_alias_secret("a");
    for _ in 0..2 {
        let _ = logging.check(WHO).await.unwrap();
    }
    let line = log::all_kept()
        .into_iter()
        .find(|line| line.contains("outcome=\"refused\""))
        .unwrap();
    let alias = &line.split("key_alias=").nth(1).unwrap()[..16];
    // Another limiter with the secret, as another process has it, under another name.
    let tracked = NonZeroUsize::new(10).unwrap();
    let operator = RateLimiter::new(MemoryStore::new(), Quota::per_hour(1))
        .key_alias_secret("a")
        .name("operator")
        .track_rejected_keys(tracked);
    assert_eq!(operator.key_alias(WHO), alias);
    let found = async |limiter: &RateLimiter| limiter.admin().find_alias(alias).await.unwrap();
    assert_eq!(found(&operator).await, None);
    for _ in 0..2 {
        let _ = operator.check(WHO).await.unwrap();
    }
    assert_eq!(found(&operator).await, Some(Key::from(WHO)), "rejected");
    let blocking = operator.clone().name("blocking");
    assert_eq!(found(&blocking).await, None);
    for key in ["other", WHO] {
        let blocked = blocking.admin().block(key, Duration::from_secs(60)).await;
        blocked.unwrap();
    }
    assert_eq!(found(&blocking).await, Some(Key::from(WHO)), "blocked");
    let paused = operator.clone().name("paused");
    paused.pause(WHO, Duration::from_secs(60));
    assert_eq!(found(&paused).await, Some(Key::from(WHO)), "paused");
    // Without the secret, or with another one, it says nothing.
    let own = RateLimiter::new(MemoryStore::new(), Quota::per_hour(1));
    for limiter in [own.clone(), own.key_alias_secret("b")] {
        limiter
            .admin()
            .block(WHO, Duration::from_secs(60))
            .await
            .unwrap();
        assert_eq!(found(&limiter).await, None);
    }
}

#[tokio::test]
async fn refusals_do_not_fill_the_log() {
    log::keep();
    let layer = layer(MemoryStore::new(), Quota::per_hour(0));
    let begin = std::time::Instant::now();
    for _ in 0..1_000 {
        ask(&layer, Some(WHO)).await;
    }
    let seconds = begin.elapsed().as_secs() + 2;
    let refusals = u64::try_from(log::all_kept().len()).unwrap();
    assert!((10..=10 * seconds).contains(&refusals), "{refusals}");
}

#[tokio::test]
async fn a_dry_run_tells_of_its_refusals_in_total() {
    log::keep();
    let layer = layer(MemoryStore::new(), Quota::per_hour(0)).dry_run();
    for _ in 0..100 {
        ask(&layer, Some(WHO)).await;
    }
    let lines = log::all_kept();
    assert!(
        lines.iter().all(|line| !line.contains("tollgate::check")),
        "{lines:?}"
    );
}

#[tokio::test]
async fn the_top_rejected_keys_are_told_when_asked_for() {
    let tracked = NonZeroUsize::new(2).unwrap();
    let layer = layer(MemoryStore::new(), Quota::per_hour(1)).track_rejected_keys(tracked);
    for (key, times) in [("a", 3), ("b", 9), ("c", 2)] {
        for _ in 0..times {
            ask(&layer, Some(key)).await;
        }
    }
    let told = layer.limiter().admin().top_rejected_keys(9);
    let told: Vec<_> = told
        .iter()
        .map(|key| (key.key.as_str(), key.refused, key.error))
        .collect();
    assert_eq!(
        told,
        [("header:x-api-key=b", 8, 0), ("header:x-api-key=c", 3, 2)]
    );
    assert!(layer.limiter().admin().top_rejected_keys(0).is_empty());
}

/// A layer of a user's limit, a tenant's and that of the whole service.
fn tree(limits: [u32; 3]) -> RateLimitLayer {
    let store = MemoryStore::new();
    let [user, tenant, service] = limits.map(Quota::per_hour);
    let tenants = RateLimiter::new(store.clone(), tenant).name("tenant");
    let tenants = Level::new(tenants, key::header("x-tenant-id").plain());
    let service = RateLimiter::new(store.clone(), service).name("service");
    RateLimitLayer::new(store, user)
        .name("user")
        .key(key::header("x-api-key").plain())
        .and_level(tenants.on_missing_key(MissingKey::Exempt))
        .and(service, key::global())
}

async fn ask_as_tenant(layer: &RateLimitLayer) -> u16 {
    let mut request = Request::new(());
    for name in ["x-api-key", "x-tenant-id"] {
        request.headers_mut().insert(name, WHO.parse().unwrap());
    }
    let service = layer.layer(service_fn(ok::<()>));
    service.oneshot(request).await.unwrap().status().as_u16()
}

#[tokio::test]
async fn each_level_counts_its_admissions_and_only_the_refusing_one_a_refusal() {
    let (recorder, _guard) = record();
    let layer = tree([9, 2, 9]);
    for status in [200, 200, 429, 429] {
        assert_eq!(ask_as_tenant(&layer).await, status);
    }
    ask_as_tenant(&layer.clone().dry_run()).await;
    // The level of the tenant is left out.
    ask(&layer, Some(WHO)).await;
    ask(&layer, None).await;
    ask_as_tenant(&layer.skip(|_| true)).await;
    let expected = [
        (checks("user", "admitted", "memory"), 3),
        (checks("tenant", "admitted", "memory"), 2),
        (checks("service", "admitted", "memory"), 3),
        (checks("tenant", "refused", "memory"), 2),
        (checks("tenant", "would_reject", "memory"), 1),
        (checks("tenant", "exempt", "none"), 2),
        (checks("user", "no_key", "none"), 1),
        (checks("user", "exempt", "none"), 1),
        (checks("service", "exempt", "none"), 1),
    ];
    assert_eq!(counted(recorder), BTreeMap::from(expected));
}

#[tokio::test]
async fn each_level_counts_what_decided_it_while_the_store_fails() {
    let (recorder, _guard) = record();
    let store = TestStore::new();
    store.fail_all(ErrorKind::Unavailable);
    let limiter =
        |name: &'static str| RateLimiter::new(store.clone(), Quota::per_hour(1)).name(name);
    let (user, tenant) = (limiter("user"), limiter("tenant"));
    let falls_back = user.on_failure(FailurePolicy::fall_back());
    let open = tenant.clone().on_failure(FailurePolicy::open());
    for admitted in [true, false] {
        let levels = [falls_back.level(WHO), open.level(WHO)];
        let decision = RateLimiter::check_all(levels).await.unwrap();
        assert_eq!(decision.is_allowed(), admitted);
    }
    let failed = RateLimiter::check_all([falls_back.level(WHO), tenant.level(WHO)]).await;
    assert!(failed.is_err());
    let mut counted = counted(recorder);
    counted.retain(|name, _| name.starts_with("tollgate_checks"));
    let expected = [
        (checks("user", "admitted", "fallback"), 1),
        (checks("tenant", "admitted", "none"), 1),
        (checks("user", "refused", "fallback"), 1),
        (checks("tenant", "failed", "none"), 1),
    ];
    assert_eq!(counted, BTreeMap::from(expected));
}

#[tokio::test]
async fn the_top_rejected_keys_of_a_layer_are_told_level_by_level() {
    let tracked = NonZeroUsize::new(9).unwrap();
    let store = MemoryStore::new();
    let tenants = RateLimiter::new(store.clone(), Quota::per_hour(2)).name("tenant");
    let layer = RateLimitLayer::new(store, Quota::per_hour(9))
        .name("user")
        .key(key::header("x-api-key").plain())
        .track_rejected_keys(tracked)
        .and(
            tenants.track_rejected_keys(tracked),
            key::header("x-tenant-id").plain(),
        );
    for _ in 0..5 {
        ask_as_tenant(&layer).await;
    }
    let refused = layer.limiters().map(|limiter| {
        let keys = limiter.admin().top_rejected_keys(9);
        let keys = keys
            .iter()
            .map(|key| (key.key.as_str().to_owned(), key.refused));
        keys.collect::<Vec<_>>()
    });
    let tenant = (format!("header:x-tenant-id={WHO}"), 3);
    assert_eq!(refused.collect::<Vec<_>>(), [vec![], vec![tenant]]);
}

#[tokio::test]
async fn stores_of_one_name_add_up_and_one_that_is_gone_holds_nothing() {
    const HELD: &str = r#"tollgate_keys{store="memory",holds="counts"}"#;
    let (prometheus, _guard) = scrape();
    let stores = [3, 5].map(|keys| (MemoryStore::new(), keys));
    for (store, keys) in &stores {
        let limiter = RateLimiter::new(store.clone(), Quota::per_minute(9));
        for key in 0..*keys {
            let _ = limiter.check(format!("{WHO}:{key}")).await.unwrap();
        }
    }
    assert_eq!(scraped(&prometheus, HELD), 8.0);
    let [(gone, _), (store, _)] = stores;
    drop(gone);
    assert_eq!(scraped(&prometheus, HELD), 5.0);
    drop(store);
    assert_eq!(scraped(&prometheus, HELD), 0.0);
}

#[tokio::test]
async fn what_may_be_rare_begins_at_zero() {
    let server = RedisServer::start();
    let (recorder, _guard) = record();
    let limiter = RateLimiter::new(store_on(&server).name("counts"), Quota::per_hour(1));
    let _ = limiter.check(WHO).await.unwrap();
    let told = told(recorder);
    for name in [
        checks("default", "refused", "redis"),
        checks("default", "failed", "none"),
        "tollgate_store_errors_total{store=counts,error_type=timeout}".to_owned(),
        // Each outcome of an outage: a series that begins in it would hide its first seconds.
        checks("default", "admitted", "fallback"),
        checks("default", "refused", "fallback"),
        checks("default", "admitted", "none"),
    ] {
        assert_eq!(told.get(&name), Some(&DebugValue::Counter(0)), "{told:?}");
    }
    assert_eq!(
        gauge(&told, "tollgate_circuit_breakers_open{store=counts}"),
        0.0
    );
}

/// Fails until its breaker is open.
async fn open_breaker(limiter: &RateLimiter) {
    for _ in 0..10 {
        let _ = limiter.check(WHO).await;
    }
}

#[tokio::test]
async fn a_breaker_that_opened_before_anybody_looked_is_told() {
    let store = TestStore::new();
    store.fail_all(ErrorKind::Unavailable);
    let limiter = RateLimiter::new(store.clone(), Quota::per_hour(9));
    open_breaker(&limiter).await;
    let (handle, _guard) = scrape();
    let patience = std::time::Instant::now() + Duration::from_secs(5);
    // A probe is asked in the background, and fails.
    while !handle.render().contains("tollgate_store_errors_total") {
        assert!(std::time::Instant::now() < patience, "it is probed");
        store.clock().advance(Duration::from_millis(600));
        let _ = limiter.check(WHO).await;
        tokio::task::yield_now().await;
    }
    assert_eq!(
        scraped(&handle, "tollgate_circuit_breakers_open{store=\"test\"}"),
        1.0
    );
}

#[tokio::test]
async fn breakers_of_stores_of_one_name_are_told_each() {
    const OPEN: &str = "tollgate_circuit_breakers_open{store=\"test\"}";
    let (handle, _guard) = scrape();
    let one = TestStore::new();
    // Another circuit breaker, of the same name.
    let other = one.clone().deadline(Duration::from_secs(7));
    one.fail_all(ErrorKind::Unavailable);
    other.fail_all(ErrorKind::Unavailable);
    let [one, other] = [one, other].map(|store| RateLimiter::new(store, Quota::per_hour(9)));
    open_breaker(&one).await;
    assert_eq!(scraped(&handle, OPEN), 1.0);
    open_breaker(&other).await;
    assert_eq!(scraped(&handle, OPEN), 2.0);
    drop(one);
    assert_eq!(scraped(&handle, OPEN), 1.0);
}

/// The open breakers of the store `idle`.
fn idle_open(handle: &PrometheusHandle) -> f64 {
    scraped(handle, "tollgate_circuit_breakers_open{store=\"idle\"}")
}

/// Waits until the breakers of the store `idle` are all closed, and checks nothing meanwhile.
async fn until_closed_without_checks(handle: &PrometheusHandle) {
    let patience = std::time::Instant::now() + Duration::from_secs(30);
    while idle_open(handle) > 0.0 {
        assert!(std::time::Instant::now() < patience, "they stay open");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// A limiter of the store `idle`, whose server has answered.
async fn idle_limiter(server: &RedisServer) -> RateLimiter {
    let store = RedisStore::open(&server.url())
        .expect("a URL")
        .deadline(Duration::from_secs(10));
    let limiter = RateLimiter::new(store.name("idle"), Quota::per_hour(9));
    let _ = limiter.check(WHO).await.expect("Redis answers");
    limiter
}

/// A server that was killed, and a limiter whose checks have opened the breaker.
async fn opened_by_a_killed_server(handle: &PrometheusHandle) -> (RedisServer, RateLimiter) {
    let mut server = RedisServer::start();
    let limiter = idle_limiter(&server).await;
    server.kill();
    while idle_open(handle) == 0.0 {
        let _ = limiter.check(WHO).await;
    }
    (server, limiter)
}

#[tokio::test]
async fn a_breaker_closes_when_the_store_is_back_though_nobody_checks() {
    let (handle, _guard) = scrape();
    let (server, limiter) = opened_by_a_killed_server(&handle).await;
    let _server = RedisServer::spawn(server.port());
    until_closed_without_checks(&handle).await;
    let decision = limiter.check(WHO).await.expect("the next check asks Redis");
    assert_eq!(decision.source(), Source::Redis);
}

#[tokio::test]
async fn a_breaker_that_callers_who_gave_up_have_opened_closes_though_nobody_checks() {
    let (handle, _guard) = scrape();
    let server = RedisServer::start();
    let limiter = idle_limiter(&server).await;
    signal(&server, "STOP");
    while idle_open(&handle) == 0.0 {
        // A quarter of the deadline, and a little more.
        let _ = tokio::time::timeout(Duration::from_millis(30), limiter.check(WHO)).await;
    }
    signal(&server, "CONT");
    until_closed_without_checks(&handle).await;
}

#[tokio::test]
async fn the_breakers_of_a_cluster_close_when_a_replica_takes_over_though_nobody_checks() {
    let (handle, _guard) = scrape();
    let mut cluster = Cluster::start();
    let store = RedisStore::open(&cluster.url())
        .expect("a URL")
        .deadline(Duration::from_secs(10));
    let limiter = RateLimiter::new(store.name("idle"), Quota::per_hour(9));
    let check_all = async || {
        for key in 0..20 {
            let _ = limiter.check(key.to_string()).await;
        }
    };
    check_all().await;
    cluster.nodes[0].kill();
    while idle_open(&handle) == 0.0 {
        check_all().await;
    }
    until_closed_without_checks(&handle).await;
}

/// A limiter that is gone does not probe for ever.
#[tokio::test]
async fn a_breaker_without_a_limiter_leaves_the_gauge() {
    let (handle, _guard) = scrape();
    let (_server, limiter) = opened_by_a_killed_server(&handle).await;
    drop(limiter);
    until_closed_without_checks(&handle).await;
}
