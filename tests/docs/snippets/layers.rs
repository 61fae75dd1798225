//! The settings of a layer.

use std::collections::HashMap;
use std::future::ready;
use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::extract::MatchedPath;
use http::StatusCode;
use tollgate::{
    FailurePolicy, Headers, IetfDraft, Key, Level, MemoryStore, MissingKey, Plan, Quota, Quotas,
    RateLimitLayer, RateLimiter, cors, key,
};

use super::Done;

fn layer() -> RateLimitLayer {
    RateLimitLayer::new(MemoryStore::new(), Quota::per_minute(100))
}

#[test]
fn a_name_of_a_string() {
    let tenant = String::from("acme");
    let _reference = layer().name(&tenant);
    let _formatted = layer().name(format!("{tenant}-search"));
    let _text = layer().name("search");
    let _shared = layer().name(Arc::<str>::from("search"));
}

#[test]
fn switched_off_in_tests() {
    let is_production = false;
    let layer = layer();
    let _layer = if is_production {
        layer
    } else {
        layer.disable()
    };
}

#[test]
fn costs() {
    let _constant = layer().cost(|_| 10);
    let _by_method = layer().cost(|parts| if parts.method == "POST" { 5 } else { 1 });
    let _by_route = layer().cost(|parts| match parts.extensions.get::<MatchedPath>() {
        Some(path) if path.as_str() == "/export" => 10,
        _ => 1,
    });
}

#[test]
fn health_checks_and_preflights_are_skipped() {
    let _path = layer().skip(|parts| parts.uri.path() == "/healthz");
    let _preflight = layer().skip(cors::is_preflight);
}

#[test]
fn missing_keys() {
    let layer = layer().key(key::header("x-api-key"));
    let _exempt = layer.clone().on_missing_key(MissingKey::Exempt);
    let _reject = layer.on_missing_key(MissingKey::Reject);
}

#[test]
fn plans_of_a_map() {
    let tenant = key::header("x-tenant-id");
    let plans = HashMap::from([(tenant.of("acme"), Quotas::from(Quota::per_second(50)))]);
    let plans = Arc::new(plans);
    let _layer = layer().key(tenant).quotas_for(move |key, _parts| {
        let plan = plans.get(key).cloned();
        async move { plan }
    });
}

#[derive(Clone, Default)]
struct Database {
    plans: Arc<Mutex<HashMap<Key, String>>>,
}

impl Database {
    async fn plan_of(&self, key: &Key) -> Result<Option<String>, std::io::Error> {
        tokio::task::yield_now().await;
        let plans = self.plans.lock();
        let plans = plans.map_err(|_| std::io::Error::other("poisoned"))?;
        Ok(plans.get(key).cloned())
    }
}

#[test]
fn plans_of_a_database() {
    let database = Database::default();
    let _layer = layer().quotas_for(move |key, _parts| {
        let (database, key) = (database.clone(), key.clone());
        async move {
            match database.plan_of(&key).await {
                Ok(Some(text)) => text.parse::<Plan>().map_err(std::io::Error::other),
                Ok(None) => Ok(Plan::Default),
                Err(error) => Err(error),
            }
        }
    });
}

#[test]
fn plans_of_an_async_function() {
    async fn quotas_of(database: Database, key: Key) -> Option<Quota> {
        let found = database.plan_of(&key).await.ok()??;
        found.parse().ok()
    }
    let database = Database::default();
    let _layer = layer().quotas_for(move |key, _| quotas_of(database.clone(), key.clone()));
}

#[test]
fn plans_of_a_header() {
    let _layer = layer().quotas_for(|_, parts| {
        let is_gold = parts
            .headers
            .get("x-plan")
            .is_some_and(|plan| plan == "gold");
        async move { is_gold.then(|| Quota::per_minute(1_000)) }
    });
}

#[test]
fn plans_that_are_ready() {
    let _layer = layer().quotas_for(|_key, _parts| ready(Quota::per_minute(5)));
    let _list = layer().quotas_for(|_, _| async { vec![Quota::per_minute(5)] });
    let _exempt = layer().quotas_for(|_, _| async { Plan::Exempt });
    let _without_async = layer().quotas_for(|_, _| ready(Plan::Exempt));
}

#[test]
fn outgoing_requests_wait() {
    let _layer = layer()
        .key(key::global())
        .headers(Headers::none())
        .wait_up_to(Duration::from_secs(30));
}

#[test]
fn settled_by_the_response() {
    let _failures = layer().settle(|_, head, _| u32::from(head.status.is_client_error()));
    let _size = layer().cost(|_| 64).settle(|decision, _, size| {
        let kib = size.exact().map(|bytes| bytes.div_ceil(1_024));
        kib.and_then(|kib| u32::try_from(kib).ok())
            .unwrap_or_else(|| decision.cost())
    });
}

#[test]
fn failure_policies() -> Done {
    let _open = layer().on_failure(FailurePolicy::open());
    let _closed = layer().on_failure(FailurePolicy::closed());
    let _replicas = layer().on_failure(FailurePolicy::fall_back().replicas(4));
    Ok(())
}

#[test]
fn header_fields() {
    let _ietf = layer().headers(Headers::ietf(IetfDraft::Draft11));
    let _both = layer().headers(Headers::x_ratelimit().and(Headers::ietf(IetfDraft::Draft07)));
    let _epoch = layer().headers(Headers::x_ratelimit());
    let _delta = layer().headers(Headers::x_ratelimit().delta_reset());
    let _none = layer().headers(Headers::none());
}

#[test]
fn a_dry_run() {
    let _layer = layer().dry_run();
}

#[test]
fn other_settings() -> Done {
    let layer = layer()
        .status(StatusCode::SERVICE_UNAVAILABLE)
        .reserve()
        .lease(Duration::from_millis(50))
        .without_connection_close()
        .track_refused(NonZeroUsize::new(100).ok_or("zero")?);
    assert_eq!(layer.limiters().count(), 1);
    assert!(format!("{layer:?}").contains("RateLimitLayer"));
    Ok(())
}

#[test]
fn a_grpc_server() {
    let limit = layer().key(key::header("x-api-key")).grpc();
    let _server = tonic::transport::Server::builder().layer(limit);
}

#[test]
fn users_tenants_and_the_service() {
    let store = MemoryStore::new();
    let tenant = RateLimiter::new(store.clone(), Quota::per_minute(1_000)).name("tenant");
    let tokens = RateLimiter::new(store.clone(), Quota::per_minute(90_000)).name("tokens");
    let service = RateLimiter::new(store.clone(), Quota::per_second(20_000)).name("service");
    let level = Level::new(tokens, key::header("x-tenant-id"))
        .cost(|parts| if parts.method == "POST" { 1_000 } else { 1 })
        .on_missing_key(MissingKey::Exempt)
        .quotas_for(|key, _parts| {
            let is_acme = *key == key::header("x-tenant-id").of("acme");
            async move { is_acme.then(|| Quota::per_minute(500_000)) }
        })
        .settle(|decision, head, _| {
            if head.status.is_success() {
                decision.cost()
            } else {
                0
            }
        });
    let layer = RateLimitLayer::new(store, Quota::per_minute(60))
        .name("user")
        .key(key::header("x-api-key"))
        .and(tenant, key::header("x-tenant-id"))
        .and_level(level)
        .and(service, key::global());
    assert_eq!(layer.limiters().count(), 4);
}

#[test]
fn returned_from_a_function() {
    fn limit(store: MemoryStore, per_minute: u32) -> RateLimitLayer {
        RateLimitLayer::new(store, Quota::per_minute(per_minute)).name("site")
    }
    let _layer = limit(MemoryStore::new(), 100);
}
