//! Where a layer is added: routers, routes, methods and fallbacks.

use std::convert::Infallible;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::routing::{get, post};
use http::{Request, Response};
use http_body_util::Full;
use tollgate::{MemoryStore, Quota, RateLimitLayer};
use tower::{Layer, ServiceBuilder, service_fn};
use tower_http::trace::TraceLayer;

use super::status;

fn limit(name: &str, per_minute: u32) -> RateLimitLayer {
    RateLimitLayer::new(MemoryStore::new(), Quota::per_minute(per_minute)).name(name)
}

async fn ok() -> &'static str {
    "ok"
}

#[tokio::test]
async fn a_layer_limits_what_it_is_added_to() {
    let open = || limit("open", 100);
    let closed = || limit("closed", 0);
    let builder = ServiceBuilder::new()
        .layer(TraceLayer::new_for_http())
        .layer(open())
        .layer(closed());
    let by_method = get(ok).layer(open()).post_service(post(ok).layer(closed()));
    let merged = get(ok).layer(open()).merge(post(ok).layer(closed()));
    let typed = get(ok).layer::<_, Infallible>(closed());
    let fallback = closed().layer(service_fn(async |_: Request<Body>| {
        Ok::<_, Infallible>(Response::new(Full::<Bytes>::from("fallback")))
    }));

    let site = || Router::new().route("/", get(ok));
    let route = |methods| Router::new().route("/", methods);
    let apps: [(&str, Router, u16, u16); 8] = [
        ("routes", site().route_layer(closed()), 429, 404),
        ("one method", route(by_method), 200, 404),
        ("merged methods", route(merged), 200, 404),
        ("tuple", route(get(ok).layer((open(), closed()))), 429, 404),
        ("builder", route(get(ok).layer(builder)), 429, 404),
        ("typed", route(typed.layer(open())), 429, 404),
        (
            "merged router",
            site().merge(Router::new().route("/none", get(ok)).layer(closed())),
            200,
            429,
        ),
        ("fallback", site().fallback_service(fallback), 200, 429),
    ];
    for (what, app, at_root, elsewhere) in apps {
        assert_eq!(status(&app, "/").await, at_root, "{what}");
        assert_eq!(status(&app, "/none").await, elsewhere, "{what}");
    }
}
