//! `and` and `Level`: several keys in one check, all of them charged or none.

use std::convert::Infallible;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use axum::body::Bytes;
use axum::http::{Request, Response};
use http_body_util::{BodyExt, Full};
use proptest::prelude::*;
use sfv::{BareItem, List, ListEntry, Parser};
use tokio::sync::Barrier;
use tollgate::key::{self, Header};
use tollgate::store::{TestClock, TestStore};
use tollgate::{
    Algorithm, DecisionView, ErrorKind, FailurePolicy, Headers, IetfDraft, Key, Level, MemoryStore,
    MissingKey, Plan, Quota, Quotas, RateLimitLayer, RateLimiter, Rejection, RejectionReason,
    Reservation, Source, Store, WouldReject, problem_json,
};
use tower::{Layer, ServiceExt, service_fn};

use crate::support::calls::told;
use crate::support::calls::{ok, request, stores};
use crate::support::log;
use crate::support::redis_server::RedisServer;
use crate::support::{block_on, store_on};

const HOUR: Duration = Duration::from_secs(3_600);

fn user() -> Header {
    key::header("x-user").plain()
}

fn tenant() -> Header {
    key::header("x-tenant").plain()
}

/// The stored key of a user.
fn ada() -> Key {
    user().of("ada")
}

fn acme() -> Key {
    tenant().of("acme")
}

/// A limiter of a tree, with this many units per hour.
fn limiter(store: &Arc<dyn Store>, name: &str, limit: u32) -> RateLimiter {
    RateLimiter::new(Arc::clone(store), Quota::per_hour(limit)).name(name)
}

fn memory() -> Arc<dyn Store> {
    Arc::new(MemoryStore::new())
}

/// The limiters of a user, a tenant and the service.
struct Tree {
    user: RateLimiter,
    tenant: RateLimiter,
    service: RateLimiter,
}

impl Tree {
    fn new(store: &Arc<dyn Store>, limits: [u32; 3]) -> Self {
        let [user, tenant, service] = limits;
        Self {
            user: limiter(store, "user", user),
            tenant: limiter(store, "tenant", tenant),
            service: limiter(store, "service", service),
        }
    }

    fn layer(&self) -> RateLimitLayer {
        self.user_layer()
            .and(self.tenant.clone(), tenant())
            .and(self.service.clone(), key::global())
    }

    fn user_layer(&self) -> RateLimitLayer {
        RateLimitLayer::from(self.user.clone()).key(user())
    }

    /// The used units of ada, of acme and of the service.
    async fn used(&self) -> [u32; 3] {
        [
            used_by(&self.user, &ada()).await,
            used_by(&self.tenant, &acme()).await,
            used_by(&self.service, &Key::global()).await,
        ]
    }

    /// Waits until these units count. Settlements run in the background.
    async fn counts(&self, units: [u32; 3]) {
        let patience = Instant::now() + Duration::from_secs(10);
        loop {
            let used = self.used().await;
            if used == units {
                return;
            }
            assert!(Instant::now() < patience, "{used:?} units, not {units:?}");
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }
}

async fn used_by(limiter: &RateLimiter, key: &Key) -> u32 {
    limiter.peek(key).await.expect("the store answers").used()
}

/// A request with these headers.
fn with(headers: &[(&'static str, &str)]) -> Request<()> {
    let mut request = request(());
    for (name, value) in headers {
        let value = value.parse().expect("a value");
        request.headers_mut().insert(*name, value);
    }
    request
}

fn by_ada() -> Request<()> {
    with(&[("x-user", "ada"), ("x-tenant", "acme")])
}

async fn send(layer: &RateLimitLayer, request: Request<()>) -> Response<Bytes> {
    let service = layer.layer(service_fn(ok::<()>));
    let (parts, body) = service.oneshot(request).await.unwrap().into_parts();
    let body = body.collect().await.unwrap().to_bytes();
    Response::from_parts(parts, body)
}

async fn status(layer: &RateLimitLayer) -> u16 {
    send(layer, by_ada()).await.status().as_u16()
}

/// Sends a request, and returns what a handler does with its head.
async fn handled<T: Send + 'static>(
    layer: &RateLimitLayer,
    request: Request<()>,
    handle: impl Fn(&Request<()>) -> T,
) -> T {
    let seen = Mutex::new(None);
    let service = layer.layer(service_fn(async |request: Request<()>| {
        *seen.lock().unwrap() = Some(handle(&request));
        Ok::<_, Infallible>(Response::new(Full::<Bytes>::from("ok")))
    }));
    let response = service.oneshot(request).await.unwrap();
    assert_eq!(response.status(), 200);
    seen.into_inner().unwrap().expect("the handler ran")
}

fn rejection<B>(response: &Response<B>) -> &Rejection {
    response.extensions().get().expect("a rejection")
}

#[tokio::test]
async fn a_request_is_charged_at_all_levels_or_at_none() {
    let server = RedisServer::start();
    for store in stores(&server) {
        for (limits, admitted, refusing) in [
            ([2, 9, 9], 2, "user"),
            ([9, 3, 9], 3, "tenant"),
            ([9, 9, 4], 4, "service"),
        ] {
            let tree = Tree::new(&store, limits);
            for (limiter, key) in [
                (&tree.user, ada()),
                (&tree.tenant, acme()),
                (&tree.service, Key::global()),
            ] {
                limiter.admin().reset(key).await.unwrap();
            }
            let layer = tree.layer();
            let began = Instant::now();
            for sent in 1..=6 {
                let response = send(&layer, by_ada()).await;
                let is_admitted = sent <= admitted;
                assert_eq!(response.status().is_success(), is_admitted, "{limits:?}");
                if !is_admitted {
                    assert_eq!(rejection(&response).limiter(), refusing);
                    // The hour began with the first request, by the clock of Redis.
                    let wait: u64 = told(&response, "retry-after").parse().unwrap();
                    let least = (HOUR - began.elapsed()).as_secs();
                    assert!((least..=3_600).contains(&wait), "{wait}");
                }
                assert_eq!(tree.used().await, [sent.min(admitted); 3], "{limits:?}");
            }
        }
    }
}

#[tokio::test]
async fn each_level_counts_its_own_keys() {
    let tree = Tree::new(&memory(), [1, 2, 4]);
    let layer = tree.layer();
    for (user, tenant, status) in [
        ("ada", "acme", 200),
        ("ada", "acme", 429),
        ("bob", "acme", 200),
        ("eve", "acme", 429),
        ("eve", "initech", 200),
        ("dan", "initech", 200),
        // The service is full.
        ("joe", "hooli", 429),
    ] {
        let response = send(&layer, with(&[("x-user", user), ("x-tenant", tenant)])).await;
        assert_eq!(response.status(), status, "{user} of {tenant}");
    }
    assert_eq!(tree.used().await, [1, 2, 4]);
}

#[tokio::test]
async fn a_level_costs_what_the_layer_costs_or_its_own_cost() {
    let tree = Tree::new(&memory(), [100; 3]);
    let of_the_tenant = Level::new(tree.tenant.clone(), tenant()).cost(|parts| {
        let asked = parts.headers.get("x-tokens").expect("a header");
        asked.to_str().unwrap().parse().unwrap()
    });
    let layer = tree
        .user_layer()
        .and_level(of_the_tenant)
        .and(tree.service.clone(), key::global())
        // Also if it is set after the levels.
        .cost(|_| 3);
    let mut request = by_ada();
    request
        .headers_mut()
        .insert("x-tokens", "40".parse().unwrap());
    let costs = handled(&layer, request, |request| {
        let decision = request.extensions().get::<DecisionView>().unwrap();
        let costs = decision.levels().map(|level| level.cost());
        costs.collect::<Vec<_>>()
    })
    .await;
    assert_eq!(costs, [3, 40, 3]);
    assert_eq!(tree.used().await, [3, 40, 3]);
}

#[tokio::test]
async fn a_cost_above_a_limit_of_a_level_is_refused_without_a_wait() {
    let tree = Tree::new(&memory(), [100, 10, 100]);
    let layer = tree.layer().cost(|_| 11);
    let response = send(&layer, by_ada()).await;
    assert_eq!(response.status(), 429);
    assert_eq!(told(&response, "retry-after"), "-");
    assert_eq!(rejection(&response).limiter(), "tenant");
    assert_eq!(tree.used().await, [0; 3]);
}

#[tokio::test]
async fn a_cost_that_no_log_charges_is_500_at_the_level_that_has_it() {
    let tree = Tree::new(&memory(), [9, u32::MAX, 9]);
    let dear = Level::new(tree.tenant.clone(), tenant()).cost(|_| 100_001);
    let layer = tree.user_layer().and_level(dear);
    log::keep();
    let response = send(&layer, by_ada()).await;
    assert_eq!(response.status(), 500);
    assert_eq!(rejection(&response).limiter(), "tenant");
    let log = log::kept();
    assert_eq!(log.len(), 1, "{log:?}");
    assert!(
        log[0].contains("limiter=\"tenant\"") && log[0].contains("100001"),
        "{log:?}"
    );
    assert_eq!(tree.used().await, [0; 3]);
}

#[tokio::test]
async fn a_level_of_cost_0_passes_its_limit_and_the_others_are_charged() {
    let store = memory();
    let tree = Tree::new(&store, [9; 3]);
    for _ in 0..5 {
        assert!(tree.tenant.check(acme()).await.unwrap().is_allowed());
    }
    // Lowered below the used units.
    let lowered = limiter(&store, "tenant", 2);
    for level_of_service in [9, 1] {
        let looks = Level::new(lowered.clone(), tenant()).cost(|_| 0);
        let service = limiter(&store, "service", level_of_service);
        let layer = tree
            .user_layer()
            .and_level(looks)
            .and(service, key::global());
        let response = send(&layer, by_ada()).await;
        if level_of_service == 9 {
            assert_eq!(response.status(), 200);
        } else {
            // Only a level with a cost refuses.
            assert_eq!(response.status(), 429);
            assert_eq!(rejection(&response).limiter(), "service");
        }
        assert_eq!(tree.used().await, [1, 5, 1]);
    }
    // If every level is free, the request passes, but not a limit of 0.
    let free_of = |service| {
        RateLimitLayer::from(lowered.clone())
            .key(tenant())
            .and(limiter(&store, "service", service), key::global())
            .cost(|_| 0)
    };
    let free = free_of(1);
    assert_eq!(status(&free).await, 200);
    let response = send(&free_of(0), by_ada()).await;
    assert_eq!(response.status(), 429);
    assert_eq!(rejection(&response).limiter(), "service");
    assert_eq!(told(&response, "retry-after"), "-");
    // But not if its key is blocked.
    lowered.admin().block(acme(), HOUR).await.unwrap();
    let response = send(&free, by_ada()).await;
    assert_eq!(response.status(), 429);
    assert_eq!(rejection(&response).limiter(), "tenant");
}

#[tokio::test]
async fn a_missing_key_rejects_or_leaves_its_level_out() {
    let tree = Tree::new(&memory(), [9; 3]);
    let strict = tree.layer();
    for (headers, missing, limiter) in [
        (&[("x-user", "ada")][..], "x-tenant", "tenant"),
        (&[("x-tenant", "acme")], "x-user", "user"),
    ] {
        let response = send(&strict, with(headers)).await;
        assert_eq!(response.status(), 400);
        assert_eq!(rejection(&response).limiter(), limiter);
        let text = String::from_utf8_lossy(response.body()).into_owned();
        assert!(text.contains(missing), "{text}");
    }
    assert_eq!(tree.used().await, [0; 3]);

    let lenient = Level::new(tree.tenant.clone(), tenant()).on_missing_key(MissingKey::Exempt);
    let layer = tree
        .user_layer()
        .and_level(lenient.clone())
        .and(tree.service.clone(), key::global());
    let levels = |request: &Request<()>| {
        let decision = request.extensions().get::<DecisionView>().unwrap();
        let levels = decision.levels().map(|level| level.limiter().to_owned());
        levels.collect::<Vec<_>>()
    };
    let all = handled(&layer, by_ada(), levels).await;
    assert_eq!(all, ["user", "tenant", "service"]);
    let without_tenant = handled(&layer, with(&[("x-user", "ada")]), levels).await;
    assert_eq!(without_tenant, ["user", "service"]);
    assert_eq!(tree.used().await, [2, 1, 2]);
    // The first level may be left out too.
    let layer = layer.on_missing_key(MissingKey::Exempt);
    let without_user = handled(&layer, with(&[("x-tenant", "acme")]), levels).await;
    assert_eq!(without_user, ["tenant", "service"]);
    assert_eq!(tree.used().await, [2, 2, 3]);

    // If nothing is left, nothing is counted.
    let layer = tree.user_layer().on_missing_key(MissingKey::Exempt);
    let layer = layer.and_level(lenient);
    let decided = |request: &Request<()>| request.extensions().get::<DecisionView>().is_some();
    assert!(!handled(&layer, with(&[]), decided).await);
    let response = send(&layer, with(&[])).await;
    assert_eq!(response.status(), 200);
    assert!(response.headers().is_empty(), "{:?}", response.headers());
}

#[tokio::test]
async fn a_skipped_request_passes_all_levels() {
    let tree = Tree::new(&memory(), [0; 3]);
    let layer = tree.layer().skip(|_| true);
    assert_eq!(status(&layer).await, 200);
}

/// A level of the tenant whose plan is this one.
fn with_plan(tree: &Tree, plan: Plan) -> Level {
    Level::new(tree.tenant.clone(), tenant()).quotas_for(move |_, _| {
        let plan = plan.clone();
        async move { plan }
    })
}

#[tokio::test]
async fn each_level_has_the_quotas_of_its_own_plan() {
    let tree = Tree::new(&memory(), [9, 1, 9]);
    let gold = Plan::Quotas(Quotas::from(Quota::per_hour(3)));
    let layer = tree
        .user_layer()
        .and_level(with_plan(&tree, gold))
        .and(tree.service.clone(), key::global());
    for sent in 1..=5 {
        let response = send(&layer, by_ada()).await;
        assert_eq!(response.status().is_success(), sent <= 3);
        if sent > 3 {
            assert_eq!(rejection(&response).limiter(), "tenant");
            assert_eq!(told(&response, "x-ratelimit-limit"), "3");
        }
    }
    assert_eq!(tree.used().await, [3; 3]);
    let default = tree.user_layer().and_level(with_plan(&tree, Plan::Default));
    assert_eq!(status(&default).await, 429);
}

#[tokio::test]
async fn a_plan_that_exempts_leaves_only_its_level_out() {
    let tree = Tree::new(&memory(), [9, 0, 9]);
    let exempt = with_plan(&tree, Plan::Exempt);
    let layer = tree
        .user_layer()
        .and_level(exempt.clone())
        .and(tree.service.clone(), key::global())
        .headers(Headers::ietf(IetfDraft::Draft11));
    let response = send(&layer, by_ada()).await;
    assert_eq!(response.status(), 200);
    assert_eq!(
        told(&response, "ratelimit-policy"),
        r#""user";q=9;w=3600, "service";q=9;w=3600"#
    );
    assert_eq!(tree.used().await, [1, 0, 1]);
    // If every plan exempts, nothing is counted.
    let layer = tree
        .user_layer()
        .quotas_for(|_, _| async { Plan::Exempt })
        .and_level(exempt);
    let response = send(&layer, by_ada()).await;
    assert_eq!(response.status(), 200);
    assert!(response.headers().is_empty(), "{:?}", response.headers());
}

#[tokio::test]
async fn the_plans_of_all_levels_are_looked_up_at_the_same_time() {
    let tree = Tree::new(&memory(), [9; 3]);
    let barrier = Arc::new(Barrier::new(2));
    let meets = |barrier: &Arc<Barrier>| {
        let barrier = Arc::clone(barrier);
        async move {
            barrier.wait().await;
            Plan::Default
        }
    };
    let (one, two) = (Arc::clone(&barrier), barrier);
    let level = Level::new(tree.tenant.clone(), tenant());
    let layer = tree
        .user_layer()
        .quotas_for(move |_, _| meets(&one))
        .and_level(level.quotas_for(move |_, _| meets(&two)));
    let answered = tokio::time::timeout(Duration::from_secs(10), status(&layer)).await;
    assert_eq!(answered, Ok(200));
}

/// A level of the tenant whose plan cannot be looked up, with this policy.
fn without_plan(tree: &Tree, policy: FailurePolicy) -> Level {
    let limiter = tree.tenant.clone().on_failure(policy);
    let level = Level::new(limiter, tenant());
    level.quotas_for(|_, _| async { Err::<Quota, _>("no database") })
}

#[tokio::test]
async fn a_failed_lookup_is_for_the_policy_of_its_level() {
    let server = RedisServer::start();
    for store in stores(&server) {
        for (policy, statuses, counted) in [
            (FailurePolicy::closed(), [503; 3], 0),
            (FailurePolicy::open(), [200; 3], 3),
            // By the quotas of the limiter.
            (FailurePolicy::fall_back(), [200, 200, 429], 2),
        ] {
            let tree = Tree::new(&store, [9, 2, 9]);
            tree.user.admin().reset(ada()).await.unwrap();
            tree.service.admin().reset(Key::global()).await.unwrap();
            let layer = tree
                .user_layer()
                .and_level(without_plan(&tree, policy))
                .and(tree.service.clone(), key::global());
            for expected in statuses {
                let response = send(&layer, by_ada()).await;
                assert_eq!(response.status(), expected, "{policy:?}");
                if expected != 200 {
                    assert_eq!(rejection(&response).limiter(), "tenant");
                }
            }
            let [user, _, service] = tree.used().await;
            assert_eq!([user, service], [counted; 2], "{policy:?}");
        }
    }
}

#[tokio::test]
async fn a_failed_lookup_leaves_the_other_levels_to_a_store_that_learns_of_its_slots() {
    let server = RedisServer::start_cluster();
    // Not opened as a cluster: the levels of the first check are in several slots.
    let store: Arc<dyn Store> = Arc::new(store_on(&server));
    let tree = Tree::new(&store, [9; 3]);
    let layer = tree
        .user_layer()
        .and_level(without_plan(&tree, FailurePolicy::fall_back()))
        .and(tree.service.clone(), key::global());
    for counted in 1..=2 {
        let response = send(&layer, by_ada()).await;
        assert_eq!(response.status(), 200);
        let [user, _, service] = tree.used().await;
        assert_eq!([user, service], [counted; 2]);
    }
}

#[tokio::test]
async fn levels_that_cannot_be_checked_together_are_500_and_one_line_says_why() {
    let store = memory();
    let layer = RateLimitLayer::from(limiter(&store, "user", 9)).key(user());
    let elsewhere = limiter(&memory(), "tenant", 9);
    let same = limiter(&store, "user", 5);
    for (other, names, remedy) in [
        (elsewhere, ["user", "tenant"], "one store"),
        (same, ["user"; 2], "its own name"),
    ] {
        let layer = layer.clone().and(other, user());
        log::keep();
        for _ in 0..3 {
            let response = send(&layer, by_ada()).await;
            assert_eq!(response.status(), 500);
            assert_eq!(told(&response, "retry-after"), "-");
            let reason = rejection(&response).reason();
            assert!(
                matches!(reason, RejectionReason::Failed(error) if error.kind() == ErrorKind::Misconfigured)
            );
        }
        let mut log = log::kept();
        // That they share a name is told, too.
        log.retain(|line| !line.contains("WARN"));
        assert_eq!(log.len(), 1, "{log:?}");
        let [one, other] = names;
        for text in ["ERROR", "answering 500", one, other, remedy] {
            assert!(log[0].contains(text), "{text}: {log:?}");
        }
        // Whatever the policy, and in a dry run it passes.
        assert_eq!(
            status(&layer.clone().on_failure(FailurePolicy::open())).await,
            500
        );
        assert_eq!(status(&layer.dry_run()).await, 200);
    }
}

#[tokio::test]
async fn while_the_store_fails_closed_wins_fallbacks_are_decided_together_and_open_admits() {
    let closed = FailurePolicy::closed();
    let open = FailurePolicy::open();
    let fall_back = FailurePolicy::fall_back();
    for (policies, statuses) in [
        ([closed, open, fall_back], [503; 3]),
        ([fall_back, open, closed], [503; 3]),
        ([open; 3], [200; 3]),
        ([fall_back, fall_back, open], [200, 200, 429]),
        ([open, open, fall_back], [200; 3]),
    ] {
        let failing = TestStore::new();
        failing.fail_all(ErrorKind::Unavailable);
        let store: Arc<dyn Store> = Arc::new(failing.clone());
        let tree = Tree::new(&store, [9, 2, 9]);
        let [user_policy, tenant_policy, service_policy] = policies;
        let level = |limiter: &RateLimiter, policy| limiter.clone().on_failure(policy);
        let layer = RateLimitLayer::from(level(&tree.user, user_policy))
            .key(user())
            .and(level(&tree.tenant, tenant_policy), tenant())
            .and(level(&tree.service, service_policy), key::global());
        for expected in statuses {
            assert_eq!(status(&layer).await, expected, "{policies:?}");
        }
        failing.recover();
    }
}

#[tokio::test]
async fn a_level_without_a_policy_has_that_of_the_layer() {
    let store = TestStore::new();
    store.fail_all(ErrorKind::Unavailable);
    let store: Arc<dyn Store> = Arc::new(store);
    let tree = Tree::new(&store, [1; 3]);
    // The default of layers: the counts of this process.
    let layer = tree.layer();
    assert_eq!([status(&layer).await, status(&layer).await], [200, 429]);
    // Set after the levels, or before them.
    let open = FailurePolicy::open();
    let after = tree.layer().on_failure(open);
    let before = tree.user_layer().on_failure(open);
    let before = before
        .and(tree.tenant.clone(), tenant())
        .and(tree.service.clone(), key::global());
    for layer in [after, before] {
        assert_eq!(sources(&layer, by_ada()).await, [Source::None; 3]);
    }
    let closed = FailurePolicy::closed();
    assert_eq!(status(&tree.layer().on_failure(closed)).await, 503);
    // Its own policy stays.
    let open = tree.service.clone().on_failure(FailurePolicy::open());
    let layer = tree.user_layer().and(open, key::global());
    let layer = layer.on_failure(FailurePolicy::fall_back());
    assert_eq!(
        sources(&layer, with(&[("x-user", "bob")])).await,
        [Source::Fallback, Source::None]
    );
}

/// The source of the decision at each level.
async fn sources(layer: &RateLimitLayer, request: Request<()>) -> Vec<Source> {
    let sources = |request: &Request<()>| {
        let decision = request.extensions().get::<DecisionView>().unwrap();
        let sources = decision.levels().map(|level| level.source());
        sources.collect()
    };
    handled(layer, request, sources).await
}

#[tokio::test]
async fn a_request_waits_until_all_levels_admit_it() {
    let window = Duration::from_millis(100);
    let server = RedisServer::start();
    for store in stores(&server) {
        let service = RateLimiter::new(Arc::clone(&store), Quota::new(1, window)).name("service");
        let layer = RateLimitLayer::new(store, Quota::per_hour(4))
            .name("user")
            .key(user())
            .and(service, key::global())
            .wait_up_to(Duration::from_secs(20));
        let begin = Instant::now();
        for turn in 0..4 {
            assert_eq!(status(&layer).await, 200);
            let least = (window * turn).saturating_sub(Duration::from_millis(2));
            assert!(begin.elapsed() >= least, "{turn}: {:?}", begin.elapsed());
        }
        // The user would have to wait an hour.
        let begin = Instant::now();
        tokio::time::sleep(window).await;
        let response = send(&layer, by_ada()).await;
        assert_eq!(response.status(), 429);
        assert_eq!(rejection(&response).limiter(), "user");
        assert!(begin.elapsed() < Duration::from_secs(15));
    }
}

#[tokio::test]
async fn a_dry_run_tells_which_level_would_reject() {
    let tree = Tree::new(&memory(), [9, 1, 9]);
    let layer = tree.layer().dry_run();
    for would_reject in [None, Some("tenant"), Some("tenant")] {
        let response = send(&layer, by_ada()).await;
        assert_eq!(response.status(), 200);
        let told = response.extensions().get::<WouldReject>();
        let limiter = told.map(|told| told.rejection().limiter());
        assert_eq!(limiter, would_reject);
    }
    assert_eq!(tree.used().await, [1; 3]);
}

#[tokio::test]
async fn the_log_names_the_level_that_refused() {
    let tree = Tree::new(&memory(), [9, 1, 9]);
    let layer = tree.layer();
    log::keep();
    assert_eq!([status(&layer).await, status(&layer).await], [200, 429]);
    let lines = log::all_kept();
    let refused: Vec<_> = lines
        .iter()
        .filter(|line| line.contains("refused"))
        .collect();
    assert_eq!(refused.len(), 1, "{lines:?}");
    assert!(refused[0].contains("limiter=\"tenant\""), "{lines:?}");
}

#[tokio::test]
async fn blocking_a_key_of_one_level_blocks_the_requests_there() {
    let tree = Tree::new(&memory(), [9; 3]);
    let layer = tree.layer().headers(Headers::ietf(IetfDraft::Draft11));
    let names = layer.limiters().map(|limiter| limiter.quotas().len());
    assert_eq!(names.collect::<Vec<_>>(), [1; 3]);
    let admin = layer.limiters().nth(1).expect("a tenant").admin();
    admin.block(acme(), HOUR).await.unwrap();
    let response = send(&layer, by_ada()).await;
    assert_eq!(response.status(), 429);
    assert_eq!(rejection(&response).limiter(), "tenant");
    // All policies are listed, also of the levels that were not asked.
    assert_eq!(
        told(&response, "ratelimit-policy"),
        r#""user";q=9;w=3600, "tenant";q=9;w=3600, "service";q=9;w=3600"#
    );
    assert_eq!(told(&response, "ratelimit"), r#""tenant";r=0;t=3600"#);
    assert_eq!(tree.used().await, [0; 3]);
    admin.unblock(acme()).await.unwrap();
    assert_eq!(status(&layer).await, 200);
}

/// Parses a list of policies: the name and the parameters of each.
fn items(text: &str) -> Vec<(String, Vec<(String, i64)>)> {
    let list: List = Parser::new(text).parse().expect(text);
    let item = |entry: ListEntry| {
        let ListEntry::Item(item) = entry else {
            panic!("{text}");
        };
        let BareItem::String(name) = item.bare_item else {
            panic!("{text}");
        };
        let number = |value: &BareItem| match value {
            BareItem::Integer(number) => i64::from(*number),
            other => panic!("{other:?}"),
        };
        let parameters = item.params.iter();
        let parameters = parameters.map(|(name, value)| (name.to_string(), number(value)));
        (name.to_string(), parameters.collect())
    };
    list.into_iter().map(item).collect()
}

#[tokio::test]
async fn six_policies_parse_with_six_names_and_the_refusing_ones_are_listed() {
    let store = memory();
    let both = [Quota::per_second(1_000), Quota::per_hour(2)];
    let named = [Quota::per_minute(2).with_name("User"), Quota::per_day(50)];
    let user_limit = RateLimiter::new(Arc::clone(&store), named).name("user");
    let tenant_limit = RateLimiter::new(Arc::clone(&store), both).name("tenant");
    let service = RateLimiter::new(Arc::clone(&store), Quota::per_minute(70)).name("user");
    let region = RateLimiter::new(store, Quota::per_minute(80)).name("region \"eu\"");
    let layer = RateLimitLayer::from(user_limit)
        .key(user())
        .and(tenant_limit, tenant())
        .and(service, key::global())
        .and(region, key::global())
        .headers(Headers::default().and(Headers::ietf(IetfDraft::Draft11)));
    let names = [
        "User",
        "user-1d",
        "tenant-1s",
        "tenant-1h",
        "user-2",
        "region \"eu\"",
    ];
    let listed = |response: &Response<Bytes>, header| {
        let items = items(told(response, header)).into_iter();
        items.map(|(name, _)| name).collect::<Vec<_>>()
    };
    for sent in 1..=3 {
        let response = send(&layer, by_ada()).await;
        assert_eq!(listed(&response, "ratelimit-policy"), names);
        let policies = items(told(&response, "ratelimit-policy"));
        assert_eq!(policies[3].1, [("q".into(), 2), ("w".into(), 3_600)]);
        if sent < 3 {
            assert_eq!(listed(&response, "ratelimit"), names);
            assert_eq!(told(&response, "x-ratelimit-limit"), "2");
        } else {
            assert_eq!(response.status(), 429);
            assert_eq!(listed(&response, "ratelimit"), ["User", "tenant-1h"]);
            // The longest wait, of the hour.
            assert_eq!(told(&response, "retry-after"), "3600");
            assert_eq!(rejection(&response).limiter(), "tenant");
        }
    }
    let response = send(&layer.responder(problem_json()), by_ada()).await;
    let document: serde_json::Value = serde_json::from_slice(response.body()).unwrap();
    assert_eq!(
        document["violated-policies"],
        serde_json::json!(["User", "tenant-1h"])
    );
}

#[tokio::test]
async fn a_level_that_nothing_counted_has_a_policy_but_no_numbers() {
    let tree = Tree::new(&memory(), [9, 5, 9]);
    let open = without_plan(&tree, FailurePolicy::open());
    let layer = tree
        .user_layer()
        .and_level(open)
        .headers(Headers::default().and(Headers::ietf(IetfDraft::Draft11)));
    let response = send(&layer, by_ada()).await;
    // Although the tenant would have fewer units left.
    assert_eq!(told(&response, "x-ratelimit-limit"), "9");
    assert_eq!(
        told(&response, "ratelimit-policy"),
        r#""user";q=9;w=3600, "tenant";q=5;w=3600"#
    );
    assert_eq!(told(&response, "ratelimit"), r#""user";r=8;t=3600"#);
}

#[tokio::test]
async fn the_older_drafts_list_the_policies_of_all_levels() {
    let layer = Tree::new(&memory(), [9, 5, 7]).layer();
    let response = send(&layer.headers(Headers::ietf(IetfDraft::Draft07)), by_ada()).await;
    assert_eq!(
        told(&response, "ratelimit-policy"),
        "9;w=3600, 5;w=3600, 7;w=3600"
    );
    assert_eq!(
        told(&response, "ratelimit"),
        "limit=5, remaining=4, reset=3600"
    );
}

#[tokio::test]
async fn the_layer_settles_the_levels_of_its_cost_and_the_others_settle_themselves() {
    let server = RedisServer::start();
    for store in stores(&server) {
        let tree = Tree::new(&store, [100; 3]);
        let calls = Arc::new(AtomicU32::new(0));
        let called = Arc::clone(&calls);
        let level = Level::new(tree.tenant.clone(), tenant()).cost(|_| 40);
        let settled = level.clone().settle(|decision, _, _| {
            assert_eq!((decision.cost(), decision.limit()), (40, 100));
            25
        });
        let layer = |level| {
            let called = Arc::clone(&called);
            tree.user_layer()
                .cost(|_| 10)
                .and_level(level)
                .and(tree.service.clone(), key::global())
                .settle(move |decision, _, _| {
                    // The tenant has fewer units left, but this is not its cost.
                    assert_eq!(decision.cost(), 10);
                    called.fetch_add(1, Ordering::SeqCst);
                    decision.cost() - 6
                })
        };
        assert_eq!(status(&layer(settled)).await, 200);
        tree.counts([4, 25, 4]).await;
        assert_eq!(calls.load(Ordering::SeqCst), 1);
        // A level with its own cost and without its own settlement stays charged.
        assert_eq!(status(&layer(level)).await, 200);
        tree.counts([8, 65, 8]).await;
    }
}

#[tokio::test]
async fn a_handler_settles_each_level_once() {
    let server = RedisServer::start();
    for store in stores(&server) {
        let tree = Tree::new(&store, [100; 3]);
        let tokens = Level::new(tree.tenant.clone(), tenant()).cost(|_| 40);
        let layer = tree
            .user_layer()
            .cost(|_| 10)
            .and_level(tokens)
            .and(tree.service.clone(), key::global())
            .reserve();
        let reservation = |request: &Request<()>| {
            let reservation = request.extensions().get::<Reservation>();
            reservation.expect("a reservation").clone()
        };
        let reserved = handled(&layer, by_ada(), reservation).await;
        reserved.settle_level(&tree.tenant, 55);
        tree.counts([10, 55, 10]).await;
        reserved.settle_level(&tree.tenant, 1);
        reserved.settle(3);
        tree.counts([3, 55, 3]).await;
        reserved.settle(0);
        reserved.clone().settle_level(&tree.user, 0);
        tree.counts([3, 55, 3]).await;
        // A level that shares the cost may be settled alone, too.
        let reserved = handled(&layer, by_ada(), reservation).await;
        reserved.settle_level(&tree.service, 0);
        reserved.settle(4);
        tree.counts([7, 95, 3]).await;
        // To settle for what is held changes nothing, and is a settlement.
        tree.tenant.admin().reset(acme()).await.unwrap();
        let reserved = handled(&layer, by_ada(), reservation).await;
        reserved.settle_level(&tree.tenant, 40);
        reserved.settle_level(&tree.tenant, 0);
        reserved.settle(0);
        tree.counts([7, 40, 3]).await;
    }
}

#[tokio::test]
async fn a_handler_that_settles_a_level_that_is_not_there_is_told_once() {
    let tree = Tree::new(&memory(), [9; 3]);
    let layer = tree.layer().reserve();
    log::keep();
    for _ in 0..2 {
        handled(&layer, by_ada(), |request| {
            let reservation = request.extensions().get::<Reservation>().unwrap();
            reservation.settle_level(&limiter(&memory(), "tokens", 9), 0);
        })
        .await;
    }
    let log = log::kept();
    assert_eq!(log.len(), 1, "{log:?}");
    assert!(
        log[0].contains("WARN") && log[0].contains("tokens"),
        "{log:?}"
    );
    assert_eq!(tree.used().await, [2; 3]);
}

#[tokio::test]
async fn a_settlement_finds_its_level_if_others_were_left_out() {
    let tree = Tree::new(&memory(), [100; 3]);
    let without_key = Level::new(tree.tenant.clone(), tenant()).on_missing_key(MissingKey::Exempt);
    let level = Level::new(tree.service.clone(), key::global());
    let layer = tree
        .user_layer()
        .and_level(without_key)
        .and_level(level.cost(|_| 40).settle(|_, _, _| 30))
        .settle(|_, _, _| 0);
    let response = send(&layer, with(&[("x-user", "ada")])).await;
    assert_eq!(response.status(), 200);
    tree.counts([0, 0, 30]).await;
    // Also if only the level of the handler is left.
    let layer = layer.on_missing_key(MissingKey::Exempt).reserve();
    handled(&layer, with(&[]), |request| {
        let reservation = request.extensions().get::<Reservation>().unwrap();
        reservation.settle_level(&tree.service, 5);
    })
    .await;
    tree.counts([0, 0, 35]).await;
}

#[tokio::test]
async fn two_layers_that_charge_one_count_at_any_level_are_warned_of() {
    let tree = Tree::new(&memory(), [9; 3]);
    let inner = RateLimitLayer::from(limiter(&memory(), "inner", 9)).key(user());
    let outer = tree.layer();
    for (inner, lines) in [
        (inner.clone(), 0),
        (RateLimitLayer::from(tree.tenant.clone()).key(tenant()), 1),
        (
            tree.user_layer()
                .name("other")
                .and(tree.service.clone(), key::global()),
            1,
        ),
    ] {
        log::keep();
        let service = outer.layer(inner.layer(service_fn(ok::<()>)));
        for _ in 0..2 {
            let response = service.clone().oneshot(by_ada()).await.unwrap();
            assert_eq!(response.status(), 200);
        }
        let log = log::kept();
        assert_eq!(log.len(), lines, "{log:?}");
        assert!(log.iter().all(|line| line.contains("charged twice")));
    }
}

#[tokio::test]
async fn an_outer_layer_lengthens_the_wait_by_the_cost_of_each_level() {
    let store = memory();
    let gcra = |limit| Quota::per_hour(limit).with_algorithm(Algorithm::Gcra);
    let tokens = RateLimiter::new(Arc::clone(&store), gcra(10)).name("tokens");
    // The requests have fewer units left than the tokens, but enough.
    let outer = RateLimitLayer::new(Arc::clone(&store), gcra(3))
        .name("requests")
        .key(user())
        .and_level(Level::new(tokens, user()).cost(|_| 6));
    let inner = RateLimiter::new(store, Quota::per_second(1)).name("inner");
    assert!(inner.check(ada()).await.unwrap().is_allowed());
    let inner = RateLimitLayer::from(inner).key(user());
    let service = outer.layer(inner.layer(service_fn(ok::<()>)));
    let response = service.oneshot(by_ada()).await.unwrap();
    assert_eq!(rejection(&response).limiter(), "inner");
    // 2 of 6 tokens are missing, and one returns every 6 minutes.
    assert_eq!(told(&response, "retry-after"), "720");
}

/// A random tree: up to four levels with up to two quotas each, and the cost at each level.
fn any_tree() -> impl Strategy<Value = Vec<(Vec<Quota>, u32)>> {
    let algorithm = prop_oneof![
        Just(Algorithm::SlidingLog),
        Just(Algorithm::SlidingCounter),
        Just(Algorithm::FixedWindow),
        Just(Algorithm::Gcra),
    ];
    let quota = (3_u32..20, 1_u64..100, algorithm).prop_map(|(limit, seconds, algorithm)| {
        Quota::new(limit, Duration::from_secs(seconds)).with_algorithm(algorithm)
    });
    let level = (prop::collection::vec(quota, 1..3), 0_u32..4);
    prop::collection::vec(level, 1..5)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn a_client_that_waits_for_retry_after_passes(tree in any_tree(), pauses in prop::collection::vec(0_u64..5_000, 40)) {
        block_on(async {
            let clock = TestClock::new();
            let store = MemoryStore::with_clock(clock.clone());
            let mut levels = tree.iter().zip(1..).map(|((quotas, cost), number)| {
                let limiter = RateLimiter::new(store.clone(), quotas.clone()).name(format!("level-{number}"));
                let cost = *cost;
                (limiter, cost)
            });
            let (first, cost) = levels.next().unwrap();
            let mut layer = RateLimitLayer::from(first).key(user()).cost(move |_| cost);
            for (limiter, cost) in levels {
                layer = layer.and_level(Level::new(limiter, user()).cost(move |_| cost));
            }
            for pause in pauses {
                clock.advance(Duration::from_millis(pause));
                let response = send(&layer, by_ada()).await;
                if response.status() == 200 {
                    continue;
                }
                let wait = told(&response, "retry-after").parse().unwrap();
                clock.advance(Duration::from_secs(wait));
                let response = send(&layer, by_ada()).await;
                assert_eq!(response.status(), 200, "after {wait} s");
            }
        });
    }
}

#[test]
fn layers_and_levels_print_their_limiters_and_no_keys() {
    let tree = Tree::new(&memory(), [9; 3]);
    let printed = format!("{:?}", tree.layer());
    for name in ["user", "tenant", "service"] {
        assert!(printed.contains(&format!("name: \"{name}\"")), "{printed}");
    }
    let level = Level::new(tree.tenant, tenant()).on_missing_key(MissingKey::Exempt);
    let printed = format!("{level:?}");
    assert!(printed.contains("Exempt") && printed.contains("tenant"));
}
