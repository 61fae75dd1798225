//! `Level::skip`: a level is left out for some requests, and the others limit them in the same check.

use std::convert::Infallible;

use axum::body::Bytes;
use axum::http::{Request, Response};
use http_body_util::Empty;
use tollgate::store::TestStore;
use tollgate::{
    DecisionView, FailurePolicy, Headers, IetfDraft, Key, Level, MemoryStore, MissingKey, Quota,
    RateLimitLayer, RateLimiter, Rejection, key,
};
use tower::{Layer, ServiceExt, service_fn};

use crate::support::calls::{ask, ok, status, to, told};
use crate::support::fakes::moody::Moody;

const EXPORT: &str = "/shop.v1.Search/Export";
const QUERY: &str = "/shop.v1.Search/Query";

fn limiter(store: &TestStore, name: &str, limit: u32) -> RateLimiter {
    RateLimiter::new(store.clone(), Quota::per_hour(limit)).name(name)
}

/// The limit of one method.
fn of_export(limiter: &RateLimiter) -> Level {
    Level::new(limiter.clone(), key::global()).skip(|parts| parts.uri.path() != EXPORT)
}

fn of_all(limiter: &RateLimiter) -> RateLimitLayer {
    RateLimitLayer::from(limiter.clone()).key(key::global())
}

async fn used(limiter: &RateLimiter) -> u32 {
    limiter.peek(Key::global()).await.unwrap().used()
}

#[tokio::test]
async fn refused_calls_of_one_method_are_not_charged_to_the_limit_of_all() {
    let store = TestStore::new();
    let [all, export] =
        [("all", 15), ("export", 5)].map(|(name, limit)| limiter(&store, name, limit));
    let layer = of_all(&all).and_level(of_export(&export)).grpc();
    let mut refusals = Vec::new();
    for _ in 0..15 {
        let response = ask(&layer, EXPORT).await;
        let rejection = response.extensions().get::<Rejection>();
        refusals.extend(rejection.map(|rejection| rejection.limiter().to_owned()));
    }
    assert_eq!(refusals, ["export"; 10]);
    assert_eq!([used(&all).await, used(&export).await], [5, 5]);
    // The ten units that are left are for the other methods.
    for _ in 0..10 {
        assert_eq!(status(&layer, QUERY).await, 200);
    }
    let refused = ask(&layer, QUERY).await;
    assert_eq!(
        refused.extensions().get::<Rejection>().unwrap().limiter(),
        "all"
    );
    assert_eq!([used(&all).await, used(&export).await], [15, 5]);
}

/// What the guide's page about placement says of both.
#[tokio::test]
async fn levels_are_one_check_and_layers_are_not() {
    let store = TestStore::new();
    let names = ["outer", "inner"];
    let limits = names.map(|name| limiter(&store, name, if name == "outer" { 15 } else { 5 }));
    let [outer, inner] = limits.each_ref().map(of_all);
    let nested = outer.layer(inner.layer(service_fn(ok::<()>)));
    for _ in 0..15 {
        let _ = nested.clone().oneshot(to("/")).await;
    }
    assert_eq!(limits[0].peek(Key::global()).await.unwrap().remaining(), 0);
    let store = TestStore::new();
    let limits = names.map(|name| limiter(&store, name, if name == "outer" { 15 } else { 5 }));
    let levels = of_all(&limits[0]).and(limits[1].clone(), key::global());
    for _ in 0..15 {
        let _ = ask(&levels, "/").await;
    }
    assert_eq!(limits[0].peek(Key::global()).await.unwrap().remaining(), 10);
}

#[tokio::test]
async fn a_level_that_is_left_out_is_neither_asked_nor_told_and_needs_no_key_no_cost_and_no_plan() {
    let store = TestStore::new();
    let [all, export] = ["all", "export"].map(|name| limiter(&store, name, 9));
    let level = Level::new(export.clone(), key::header("x-api-key"))
        .cost(|_| panic!("the cost was asked"))
        .quotas_for(|_, _| async { panic!("the plan was asked") as Option<Quota> })
        .skip(|parts| parts.uri.path() != EXPORT);
    let layer = of_all(&all)
        .and_level(level)
        .headers(Headers::ietf(IetfDraft::Draft11));
    let response = ask(&layer, QUERY).await;
    assert_eq!(response.status(), 200);
    assert_eq!(told(&response, "ratelimit-policy"), r#""all";q=9;w=3600"#);
    assert_eq!(told(&response, "ratelimit"), r#""all";r=8;t=3600"#);
    assert_eq!(store.take_checks().len(), 1);
    // For its own requests it needs a key.
    assert_eq!(status(&layer, EXPORT).await, 400);
    assert_eq!(used(&all).await, 1);
}

#[tokio::test]
async fn each_level_is_left_out_by_its_own_closure_whatever_its_place() {
    let store = TestStore::new();
    let names = ["all", "export", "query"];
    let [all, export, query] = names.map(|name| limiter(&store, name, 9));
    let own = Level::new(query.clone(), key::global()).skip(|parts| parts.uri.path() != QUERY);
    let layer = of_all(&all)
        .and_level(of_export(&export))
        .and_level(own.cost(|_| 4));
    let handler = service_fn(async |request: Request<()>| {
        let decision = request.extensions().get::<DecisionView>().unwrap();
        let levels: Vec<_> = decision
            .levels()
            .map(|level| level.limiter().to_owned())
            .collect();
        Ok::<_, Infallible>(Response::new(levels.join(" ")))
    });
    let service = layer.layer(handler.map_response(|response: Response<String>| {
        let text = response.body().clone();
        let mut response = response.map(|_| Empty::<Bytes>::new());
        response.extensions_mut().insert(text);
        response
    }));
    for (path, expected) in [(QUERY, "all query"), (EXPORT, "all export"), ("/", "all")] {
        let request = to(path);
        let response = service.clone().oneshot(request).await.unwrap();
        assert_eq!(response.extensions().get::<String>().unwrap(), expected);
    }
    assert_eq!(
        [used(&all).await, used(&export).await, used(&query).await],
        [3, 1, 4]
    );
}

#[tokio::test]
async fn if_all_levels_are_left_out_nothing_is_checked() {
    // A store that fails would refuse whatever it is asked.
    let limiter = |name: &str| {
        RateLimiter::new(Moody::unavailable(), Quota::per_hour(0))
            .name(name)
            .on_failure(FailurePolicy::closed())
    };
    let level = Level::new(limiter("export"), key::global()).skip(|_| true);
    let layer = RateLimitLayer::from(limiter("all"))
        .key(key::header("x-api-key"))
        .on_missing_key(MissingKey::Exempt)
        .and_level(level);
    let handler = service_fn(async |request: Request<()>| {
        assert!(request.extensions().get::<DecisionView>().is_none());
        let body = Empty::<Bytes>::new();
        Ok::<_, Infallible>(Response::new(body))
    });
    let request = to(QUERY);
    let response = layer.layer(handler).oneshot(request).await.unwrap();
    assert_eq!(response.status(), 200);
    assert!(response.headers().is_empty(), "{:?}", response.headers());
}

#[tokio::test]
async fn the_closure_of_the_layer_exempts_from_all_levels() {
    let store = MemoryStore::new();
    let export = RateLimiter::new(store.clone(), Quota::per_hour(0)).name("export");
    let layer = RateLimitLayer::new(store, Quota::per_hour(0))
        .key(key::global())
        .and_level(of_export(&export))
        .skip(|parts| parts.uri.path() == EXPORT);
    assert_eq!(status(&layer, EXPORT).await, 200);
    assert_eq!(status(&layer, QUERY).await, 429);
}
