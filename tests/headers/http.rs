//! HTTP with real servers and real clients.

use std::time::{Duration, Instant, SystemTime};

use crate::support::redis_server::RedisServer;
use crate::support::served::{fetch, number, serve};
use axum::extract::{MatchedPath, Path};
use axum::{Extension, Router, routing::get};
use reqwest::{Response, StatusCode};
use tollgate::{
    DecisionView, Headers, IetfDraft, MemoryStore, MissingKey, Quota, RateLimitLayer, RateLimiter,
    RedisStore, Store, key,
};

fn index() -> Router {
    Router::new().route("/", get(|| async { "ok" }))
}

async fn sixty_of_a_hundred_pass(store: impl Store) {
    let layer = RateLimitLayer::new(store, Quota::per_minute(60));
    let layer = layer.headers(Headers::x_ratelimit().delta_reset());
    let url = serve(index().layer(layer)).await;
    let client = reqwest::Client::new();
    for request in 1..=100 {
        let response = client.get(&url).send().await.unwrap();
        let (status, headers) = (response.status(), response.headers().clone());
        let body = response.text().await.unwrap();
        assert_eq!(number(&headers, "x-ratelimit-limit"), 60);
        let reset = number(&headers, "x-ratelimit-reset");
        assert!((50..=60).contains(&reset), "{reset}");
        assert_eq!(headers.get_all("x-ratelimit-remaining").iter().count(), 1);
        if request <= 60 {
            assert_eq!((status, body.as_str()), (StatusCode::OK, "ok"));
            assert_eq!(number(&headers, "x-ratelimit-remaining"), 60 - request);
            assert!(!headers.contains_key("retry-after"));
        } else {
            assert_eq!(status, StatusCode::TOO_MANY_REQUESTS);
            assert_eq!(number(&headers, "x-ratelimit-remaining"), 0);
            assert_eq!(number(&headers, "retry-after"), reset);
            assert_eq!(headers["cache-control"], "no-store");
            assert_eq!(headers["content-type"], "text/plain; charset=utf-8");
            assert_eq!(body, "rate limit exceeded\n");
        }
    }
}

#[tokio::test]
async fn sixty_of_a_hundred_requests_pass_a_limit_of_sixty_in_memory() {
    sixty_of_a_hundred_pass(MemoryStore::new()).await;
}

#[tokio::test]
async fn sixty_of_a_hundred_requests_pass_a_limit_of_sixty_in_redis() {
    let server = RedisServer::start();
    let store = RedisStore::open(&server.url()).unwrap();
    sixty_of_a_hundred_pass(store.deadline(Duration::from_secs(10))).await;
}

/// The Unix time, in whole seconds.
#[expect(
    clippy::disallowed_methods,
    reason = "a client compares it with its clock"
)]
fn unix_time() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    since.unwrap().as_secs()
}

#[tokio::test]
async fn the_reset_is_the_unix_time_at_which_the_wait_of_retry_after_ends() {
    let app = index().layer(RateLimitLayer::new(
        MemoryStore::new(),
        Quota::per_minute(1),
    ));
    let url = serve(app).await;
    fetch(&url, &[]).await;
    let before = unix_time();
    let refused = fetch(&url, &[]).await;
    let after = unix_time();
    assert_eq!(refused.status(), StatusCode::TOO_MANY_REQUESTS);
    let wait = number(refused.headers(), "retry-after");
    let reset = number(refused.headers(), "x-ratelimit-reset");
    // Both are rounded up.
    assert!(
        (before + wait..=after + wait + 1).contains(&reset),
        "{before}, {after}, {wait}: {reset}"
    );
    let drafts = ["ratelimit", "ratelimit-policy"];
    assert!(
        drafts
            .iter()
            .all(|name| !refused.headers().contains_key(*name))
    );
}

#[tokio::test]
async fn not_found_stays_not_found_and_is_counted() {
    let app = index().layer(RateLimitLayer::new(
        MemoryStore::new(),
        Quota::per_minute(2),
    ));
    let url = serve(app).await;
    let missing = fetch(&format!("{url}/missing"), &[]).await;
    assert_eq!(missing.status(), StatusCode::NOT_FOUND);
    assert_eq!(number(missing.headers(), "x-ratelimit-remaining"), 1);
}

#[tokio::test]
async fn waiting_as_long_as_told_lets_the_request_pass() {
    let quota = Quota::new(1, Duration::from_millis(900));
    let url = serve(index().layer(RateLimitLayer::new(MemoryStore::new(), quota))).await;
    let client = reqwest::Client::new();
    let fetch = async || client.get(&url).send().await.unwrap();
    assert_eq!(fetch().await.status(), 200);
    let mut refused = fetch().await;
    // A machine that stood still for a whole window asks again.
    while refused.status() == 200 {
        refused = fetch().await;
    }
    assert_eq!(refused.status(), 429);
    let told = number(refused.headers(), "retry-after");
    assert_eq!(told, 1);
    tokio::time::sleep(Duration::from_secs(told)).await;
    assert_eq!(fetch().await.status(), 200);
}

/// The time in which each level admits one request. The tenant's wait is the longest.
const WINDOWS: [(&str, u64); 3] = [("user", 1), ("tenant", 2), ("service", 1)];

fn levels(store: &(impl Store + Clone)) -> RateLimitLayer {
    let [user, tenant, service] = WINDOWS.map(|(name, seconds)| {
        let quota = Quota::new(1, Duration::from_secs(seconds));
        RateLimiter::new(store.clone(), quota).name(name)
    });
    RateLimitLayer::from(user)
        .key(key::header("x-user"))
        .and(tenant, key::header("x-tenant"))
        .and(service, key::global())
        .headers(Headers::default().and(Headers::ietf(IetfDraft::Draft11)))
}

async fn the_longest_wait_is_told(store: impl Store + Clone) {
    let url = serve(index().layer(levels(&store))).await;
    let client = reqwest::Client::new();
    let fetch = async || {
        let request = client.get(&url).header("x-user", "ada");
        let response = request.header("x-tenant", "acme").send().await.unwrap();
        let policies = response.headers()["ratelimit-policy"].to_str().unwrap();
        let expected = r#""user";q=1;w=1, "tenant";q=1;w=2, "service";q=1;w=1"#;
        assert_eq!(policies, expected);
        response
    };
    let refusing = |response: &Response| {
        let listed = response.headers()["ratelimit"].to_str().unwrap();
        WINDOWS.map(|(name, _)| listed.contains(&format!("\"{name}\"")))
    };
    loop {
        let began = Instant::now();
        fetch().await;
        let refused = fetch().await;
        let refused_at = Instant::now();
        tokio::time::sleep(Duration::from_secs(1)).await;
        let early = fetch().await;
        if refused_at > began + Duration::from_secs(1) || began.elapsed() >= Duration::from_secs(2)
        {
            // The machine stood still for a window.
            tokio::time::sleep(Duration::from_secs(2)).await;
            continue;
        }
        assert_eq!(
            (refused.status().as_u16(), early.status().as_u16()),
            (429, 429)
        );
        assert_eq!(refusing(&refused), [true; 3]);
        assert_eq!(number(refused.headers(), "retry-after"), 2);
        // The other levels admit the early request, and are not charged.
        assert_eq!(refusing(&early), [false, true, false]);
        assert_eq!(number(early.headers(), "retry-after"), 1);
        tokio::time::sleep(Duration::from_secs(2).saturating_sub(refused_at.elapsed())).await;
        assert_eq!(fetch().await.status(), 200);
        return;
    }
}

#[tokio::test]
async fn a_client_that_waits_for_the_longest_level_is_admitted_in_memory() {
    the_longest_wait_is_told(MemoryStore::new()).await;
}

#[tokio::test]
async fn a_client_that_waits_for_the_longest_level_is_admitted_in_redis() {
    let server = RedisServer::start();
    let store = RedisStore::open(&server.url()).unwrap();
    the_longest_wait_is_told(store.deadline(Duration::from_secs(10))).await;
}

#[tokio::test]
async fn a_request_without_a_key_is_told_what_is_missing() {
    let by_key =
        RateLimitLayer::new(MemoryStore::new(), Quota::per_minute(1)).key(key::header("x-api-key"));
    let url = serve(index().layer(by_key.clone())).await;
    for headers in [vec![], vec![("x-api-key", "")]] {
        let response = fetch(&url, &headers).await;
        assert_eq!(response.status(), StatusCode::BAD_REQUEST);
        assert!(!response.headers().contains_key("x-ratelimit-limit"));
        assert!(response.text().await.unwrap().contains("`x-api-key`"));
    }
    assert_eq!(fetch(&url, &[("x-api-key", "ada")]).await.status(), 200);

    let url = serve(index().layer(by_key.on_missing_key(MissingKey::Exempt))).await;
    for _ in 0..3 {
        let response = fetch(&url, &[]).await;
        assert_eq!(response.status(), 200);
        assert!(!response.headers().contains_key("x-ratelimit-limit"));
    }
    let twice = fetch(&url, &[("x-api-key", "a"), ("x-api-key", "b")]).await;
    assert_eq!(twice.status(), StatusCode::BAD_REQUEST);
}

#[tokio::test]
async fn a_server_that_does_not_tell_the_peer_answers_500() {
    let app = index().layer(RateLimitLayer::new(
        MemoryStore::new(),
        Quota::per_minute(9),
    ));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move { axum::serve(listener, app).await });
    let response = fetch(&url, &[]).await;
    assert_eq!(response.status(), StatusCode::INTERNAL_SERVER_ERROR);
    // What to do about it is for the log, not for the client.
    assert_eq!(
        response.text().await.unwrap(),
        "the rate limiter is not set up\n"
    );
}

#[tokio::test]
async fn each_route_has_its_own_count_by_its_pattern() {
    let layer = RateLimitLayer::new(MemoryStore::new(), Quota::per_minute(1)).key(key::path());
    let app = Router::new()
        .route("/users/{id}", get(|| async { "user" }))
        .route("/teams/{id}", get(|| async { "team" }))
        .layer(layer);
    let url = serve(app).await;
    let status = async |path: &str| fetch(&format!("{url}{path}"), &[]).await.status().as_u16();
    assert_eq!(status("/users/1").await, 200);
    assert_eq!(status("/users/2").await, 429);
    assert_eq!(status("/teams/1").await, 200);
    assert_eq!(status("/elsewhere").await, 400);
}

/// Serves `/search` and exports under it, in both forms that the docs of `cost` have.
fn searches(search: RateLimitLayer) -> [Router; 2] {
    let find = async || "found";
    let export = async |Path(format): Path<String>| format;
    let layer_each = Router::new()
        .route("/search", get(find).layer(search.clone()))
        .route(
            "/search/{format}",
            get(export).layer(search.clone().cost(|_| 10)),
        );
    let by_matched_path = Router::new()
        .route("/search", get(find))
        .route("/search/{format}", get(export))
        .layer(
            search.cost(|parts| match parts.extensions.get::<MatchedPath>() {
                Some(route) if route.as_str() == "/search/{format}" => 10,
                _ => 1,
            }),
        );
    [layer_each, by_matched_path]
}

#[tokio::test]
async fn an_export_costs_ten_units_however_its_path_is_spelled() {
    let search = RateLimitLayer::new(
        MemoryStore::new(),
        [Quota::per_second(20), Quota::per_day(2_000)],
    );
    let mut keys = 0..;
    for app in searches(search.key(key::header("x-api-key"))) {
        let url = serve(app).await;
        for (path, answer, cost) in [
            ("/search", "found", 1),
            ("/search/export", "export", 10),
            ("/search/%65xport", "export", 10),
            ("/search/%65%78%70%6F%72%74", "export", 10),
        ] {
            let key = keys.next().unwrap().to_string();
            let response = fetch(&format!("{url}{path}"), &[("x-api-key", &key)]).await;
            assert_eq!(response.status(), StatusCode::OK, "{path}");
            let charged = 20 - number(response.headers(), "x-ratelimit-remaining");
            assert_eq!(response.text().await.unwrap(), answer, "{path}");
            assert_eq!(charged, cost, "{path}");
        }
    }
}

#[tokio::test]
async fn layers_of_different_names_count_apart_and_of_one_name_together() {
    let server = RedisServer::start();
    let layer = |name: &str| {
        let store = RedisStore::open(&server.url()).unwrap();
        let store = store.deadline(Duration::from_secs(10));
        RateLimitLayer::new(store, Quota::per_minute(1)).name(name)
    };
    let route = |name| get(|| async { "ok" }).layer(layer(name));
    let app = Router::new()
        .route("/search", route("search"))
        .route("/export", route("export"))
        .route("/find", route("search"));
    let url = serve(app).await;
    let status = async |path: &str| fetch(&format!("{url}{path}"), &[]).await.status().as_u16();
    assert_eq!(status("/search").await, 200);
    assert_eq!(status("/export").await, 200);
    assert_eq!(status("/find").await, 429);
}

#[tokio::test]
async fn of_nested_layers_the_tighter_one_is_told() {
    let layer = |limit, name: &str| {
        RateLimitLayer::new(MemoryStore::new(), Quota::per_minute(limit)).name(name)
    };
    let strict = get(|| async { "ok" }).layer(layer(2, "strict"));
    let lax = get(|| async { "ok" }).layer(layer(50, "lax"));
    let app = Router::new()
        .route("/strict", strict)
        .route("/lax", lax)
        .layer(layer(10, "site"));
    let url = serve(app).await;
    let told = async |path: &str| {
        let response = fetch(&format!("{url}{path}"), &[]).await;
        let of = |name| number(response.headers(), name);
        (
            response.status().as_u16(),
            of("x-ratelimit-limit"),
            of("x-ratelimit-remaining"),
        )
    };
    assert_eq!(told("/strict").await, (200, 2, 1));
    assert_eq!(told("/lax").await, (200, 10, 8));
    assert_eq!(told("/strict").await, (200, 2, 0));
    assert_eq!(told("/strict").await, (429, 2, 0));
}

#[tokio::test]
async fn a_handler_sees_the_decision() {
    async fn handler(Extension(decision): Extension<DecisionView>) -> String {
        format!("{} of {}", decision.remaining(), decision.limit())
    }
    let app = Router::new().route("/", get(handler)).layer(
        RateLimitLayer::new(MemoryStore::new(), Quota::per_minute(9)).headers(Headers::none()),
    );
    let response = fetch(&serve(app).await, &[]).await;
    assert!(!response.headers().contains_key("x-ratelimit-limit"));
    assert_eq!(response.text().await.unwrap(), "8 of 9");
}

#[tokio::test]
async fn all_connections_and_routes_of_a_router_share_one_count() {
    let app = Router::new()
        .route("/a", get(|| async { "a" }))
        .route("/b", get(|| async { "b" }))
        .layer(RateLimitLayer::new(
            MemoryStore::new(),
            Quota::per_minute(30),
        ));
    let url = serve(app).await;
    let requests: Vec<_> = (0..60)
        .map(|request| {
            let url = format!("{url}/{}", if request % 2 == 0 { "a" } else { "b" });
            tokio::spawn(async move { fetch(&url, &[]).await.status() })
        })
        .collect();
    let mut passed = 0;
    for request in requests {
        passed += u32::from(request.await.unwrap() == StatusCode::OK);
    }
    assert_eq!(passed, 30);
}
