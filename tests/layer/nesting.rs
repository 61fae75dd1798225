//! What a layer sees of requests in a router of axum that is nested into another one.

use std::sync::{Arc, Mutex};

use axum::extract::OriginalUri;
use axum::{Router, body::Body, routing::get};
use http::Request;
use tollgate::{MemoryStore, Quota, RateLimitLayer, key};
use tower::ServiceExt;

use crate::support::calls::to;

fn layer(limit: u32) -> RateLimitLayer {
    RateLimitLayer::new(MemoryStore::new(), Quota::per_hour(limit)).key(key::global())
}

async fn status(app: &Router, path: &str) -> u16 {
    let request: Request<Body> = to(path).map(|()| Body::empty());
    let response = app.clone().oneshot(request).await.expect("nothing fails");
    response.status().as_u16()
}

#[tokio::test]
async fn unknown_paths_reach_the_layer_of_a_nested_router_only_if_it_has_a_fallback() {
    let users = || Router::new().route("/users", get(|| async { "users" }));
    let nested = |api: Router| Router::new().nest("/api", api.layer(layer(0)));

    let without = nested(users());
    assert_eq!(status(&without, "/api/users").await, 429);
    assert_eq!(status(&without, "/api/unknown").await, 404, "not limited");

    let with = nested(users().fallback(|| async { "none" }));
    assert_eq!(status(&with, "/api/unknown").await, 429);
    assert_eq!(
        status(&with, "/unknown").await,
        404,
        "outside of the nested router"
    );

    let around = Router::new().nest("/api", users()).layer(layer(0));
    assert_eq!(status(&around, "/api/unknown").await, 429);
}

#[tokio::test]
async fn skip_and_cost_see_the_path_without_the_prefix_of_nest_and_original_uri_has_it() {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let sees = |what: &'static str| {
        let seen = Arc::clone(&seen);
        move |parts: &http::request::Parts| {
            let original = parts.extensions.get::<OriginalUri>().expect("in a router");
            let paths = [parts.uri.path(), original.path()].map(str::to_owned);
            seen.lock().expect("no panic").push((what, paths));
        }
    };
    let (skip, cost) = (sees("skip"), sees("cost"));
    let limit = layer(10)
        .skip(move |parts| {
            skip(parts);
            false
        })
        .cost(move |parts| {
            cost(parts);
            1
        });
    let api = Router::new().route("/export", get(|| async { "exported" }));
    let app = Router::new().nest("/api", api.layer(limit));
    assert_eq!(status(&app, "/api/export").await, 200);
    let paths = ["/export", "/api/export"].map(str::to_owned);
    let expected = [("skip", paths.clone()), ("cost", paths)];
    assert_eq!(*seen.lock().expect("no panic"), expected);
}

/// The remedy that `key::path` names where no route is matched.
#[tokio::test]
async fn in_a_nested_service_the_whole_path_is_a_key_by_its_original_uri() {
    let by_path = key::from_fn(|parts| {
        let OriginalUri(uri) = parts.extensions.get()?;
        Some(uri.path().to_owned())
    });
    let limit = RateLimitLayer::new(MemoryStore::new(), Quota::per_hour(1)).key(by_path);
    let service = Router::new().fallback(|| async { "ok" }).layer(limit);
    let app = Router::new()
        .nest_service("/a", service.clone())
        .nest_service("/b", service);
    for path in ["/a/file", "/b/file", "/a/other"] {
        assert_eq!(status(&app, path).await, 200, "{path}");
        assert_eq!(status(&app, path).await, 429, "{path}");
    }
}
