//! Where a layer is added: routers, routes, nested routers and stacks.

use std::convert::Infallible;
use std::time::Duration;

use axum::Router;
use axum::routing::{get, post};
use http::{HeaderName, Method, Request, Response};
use http_body_util::Full;
use tollgate::{MemoryStore, Quota, RateLimit, RateLimitLayer, key};
use tower::{Layer, ServiceBuilder, ServiceExt, service_fn};
use tower_http::cors::CorsLayer;
use tower_http::timeout::TimeoutLayer;
use tower_http::trace::TraceLayer;

use super::{Done, status};

fn limit(per_minute: u32) -> RateLimitLayer {
    RateLimitLayer::new(MemoryStore::new(), Quota::per_minute(per_minute))
}

async fn ok() -> &'static str {
    "ok"
}

#[tokio::test]
async fn a_whole_router() {
    let app: Router = Router::new().route("/", get(ok)).layer(limit(1));
    assert_eq!(status(&app, "/").await, 200);
    assert_eq!(status(&app, "/").await, 429);
    assert_eq!(status(&app, "/unknown").await, 429);
}

#[tokio::test]
async fn only_its_routes() {
    let app: Router = Router::new().route("/", get(ok)).route_layer(limit(1));
    assert_eq!(status(&app, "/").await, 200);
    assert_eq!(status(&app, "/").await, 429);
    assert_eq!(status(&app, "/unknown").await, 404);
}

#[tokio::test]
async fn one_route() {
    let app: Router = Router::new()
        .route("/search", get(ok).layer(limit(0)))
        .route("/", get(ok));
    assert_eq!(status(&app, "/search").await, 429);
    assert_eq!(status(&app, "/").await, 200);
}

#[tokio::test]
async fn two_methods_of_one_route() {
    let search = limit(100).name("search");
    let app: Router = Router::new().route(
        "/search",
        get(ok)
            .layer(search.clone())
            .post_service(post(ok).layer(search.cost(|_| 10))),
    );
    assert_eq!(status(&app, "/search").await, 200);
}

#[tokio::test]
async fn methods_that_are_merged() {
    let reads = get(ok).layer(limit(100).name("reads"));
    let writes = post(ok).layer(limit(0).name("writes"));
    let app: Router = Router::new().route("/", reads.merge(writes));
    assert_eq!(status(&app, "/").await, 200);
}

#[tokio::test]
async fn several_layers_of_one_route_as_a_tuple() {
    let outer = limit(100).name("outer");
    let inner = limit(0).name("inner").key(key::global());
    let app: Router = Router::new().route("/", get(ok).layer((outer, inner)));
    assert_eq!(status(&app, "/").await, 429);
}

#[tokio::test]
async fn several_layers_of_one_route_by_service_builder() {
    let layers = ServiceBuilder::new()
        .layer(TraceLayer::new_for_http())
        .layer(limit(100).name("outer"))
        .layer(limit(0).name("inner"));
    let app: Router = Router::new().route("/", get(ok).layer(layers));
    assert_eq!(status(&app, "/").await, 429);
}

#[tokio::test]
async fn several_layers_of_one_route_with_a_type() {
    let routes = get(ok).layer::<_, Infallible>(limit(5).name("inner"));
    let app: Router = Router::new().route("/", routes.layer(limit(5).name("outer")));
    assert_eq!(status(&app, "/").await, 200);
}

#[tokio::test]
async fn several_layers_of_a_router() {
    let app: Router = Router::new()
        .route("/", get(ok))
        .layer(limit(5).name("inner"))
        .layer(limit(100).name("outer"))
        .layer(CorsLayer::permissive());
    assert_eq!(status(&app, "/").await, 200);
}

#[tokio::test]
async fn two_layers_of_a_route() {
    let layers = (limit(1).name("outer"), limit(5).name("inner"));
    let app: Router = Router::new().route("/", get(ok).layer(layers));
    assert_eq!(status(&app, "/").await, 200);
    assert_eq!(status(&app, "/").await, 429);
}

#[tokio::test]
async fn a_stack_of_service_builder() {
    let app: Router = Router::new().route("/", get(ok)).layer(
        ServiceBuilder::new()
            .layer(TraceLayer::new_for_http())
            .layer(CorsLayer::permissive())
            .layer(limit(1))
            .layer(TimeoutLayer::with_status_code(
                http::StatusCode::GATEWAY_TIMEOUT,
                Duration::from_secs(5),
            )),
    );
    assert_eq!(status(&app, "/").await, 200);
    assert_eq!(status(&app, "/").await, 429);
}

#[tokio::test]
async fn nested_routers() {
    let api = Router::new()
        .route("/search", get(ok))
        .layer(limit(1).name("api"));
    let app: Router = Router::new()
        .nest("/api", api)
        .route("/", get(ok))
        .layer(limit(100).name("site"));
    assert_eq!(status(&app, "/api/search").await, 200);
    assert_eq!(status(&app, "/api/search").await, 429);
    assert_eq!(status(&app, "/").await, 200);
}

#[tokio::test]
async fn merged_routers() {
    let open = Router::new().route("/healthz", get(ok));
    let limited = Router::new().route("/", get(ok)).layer(limit(0));
    let app: Router = open.merge(limited);
    assert_eq!(status(&app, "/healthz").await, 200);
    assert_eq!(status(&app, "/").await, 429);
}

#[tokio::test]
async fn a_router_with_state() {
    #[derive(Clone)]
    struct AppState;

    let app: Router = Router::new()
        .route("/", get(|_: axum::extract::State<AppState>| async { "ok" }))
        .layer(limit(1))
        .with_state(AppState);
    assert_eq!(status(&app, "/").await, 200);
}

#[tokio::test]
async fn a_layer_that_is_switched_off() {
    for (layer, second) in [(limit(1), 429), (limit(1).disable(), 200)] {
        let app: Router = Router::new().route("/", get(ok)).layer(layer);
        assert_eq!(status(&app, "/").await, 200);
        assert_eq!(status(&app, "/").await, second);
    }
}

#[tokio::test]
async fn a_fallback_service() {
    let fallback = limit(0).layer(service_fn(async |_: Request<axum::body::Body>| {
        Ok::<_, Infallible>(Response::new(Full::<axum::body::Bytes>::from("fallback")))
    }));
    let app: Router = Router::new().fallback_service(fallback);
    assert_eq!(status(&app, "/unknown").await, 429);
}

#[tokio::test]
async fn around_a_router() {
    let app: Router = Router::new().route("/", get(ok));
    let service = ServiceBuilder::new().layer(limit(1)).service(app);
    let response = service.oneshot(super::get("/")).await.unwrap();
    assert_eq!(response.status(), 200);
}

#[tokio::test]
async fn a_service_without_axum() -> Done {
    async fn hello(_: Request<()>) -> Result<Response<Full<axum::body::Bytes>>, Infallible> {
        Ok(Response::new("hello".into()))
    }
    let service = ServiceBuilder::new()
        .layer(limit(1).key(key::global()))
        .service_fn(hello);
    let response = service.oneshot(Request::new(())).await?;
    assert_eq!(response.status(), 200);
    Ok(())
}

#[tokio::test]
async fn a_service_in_a_struct() {
    struct Server<S> {
        service: RateLimit<S>,
    }
    let server = Server {
        service: limit(1).layer("any service"),
    };
    assert_eq!(*server.service.get_ref(), "any service");
}

#[tokio::test]
async fn cors_exposes_the_headers() {
    let cors = CorsLayer::new()
        .allow_methods([Method::GET])
        .expose_headers(tollgate::cors::EXPOSED_HEADERS);
    let app: Router = Router::new()
        .route("/", get(ok))
        .layer(limit(5))
        .layer(cors);
    assert_eq!(status(&app, "/").await, 200);
    assert!(tollgate::cors::EXPOSED_HEADERS.contains(&HeaderName::from_static("retry-after")));
}
