//! The layers of a service, in their order.

use std::net::SocketAddr;

use axum::body::Body;
use axum::extract::connect_info::MockConnectInfo;
use axum::http::Method;
use tollgate::MemoryStore;
use tower::ServiceExt;

// page: shown
use std::time::Duration;

use axum::extract::Request;
use axum::http::StatusCode;
use axum::middleware::{Next, from_fn};
use axum::response::{IntoResponse, Response};
use axum::{Router, routing::get};
use tollgate::{Quota, RateLimitLayer, Store, cors, key};
use tower::{ServiceBuilder, limit::GlobalConcurrencyLimitLayer};
use tower_http::cors::{AllowOrigin, CorsLayer};
use tower_http::request_id::{MakeRequestUuid, PropagateRequestIdLayer, SetRequestIdLayer};
use tower_http::{timeout::TimeoutLayer, trace::TraceLayer};

fn app(store: impl Store + Clone) -> Router {
    let by_address = RateLimitLayer::new(store.clone(), Quota::per_minute(3)).name("address");
    let by_user = RateLimitLayer::new(store, Quota::per_minute(2))
        .name("user")
        .key(key::extension_with(|user: &User| user.0.clone()));
    let cors = CorsLayer::new()
        .allow_origin(AllowOrigin::predicate(|_, _| true))
        .expose_headers(cors::EXPOSED_HEADERS);
    let timeout = Duration::from_secs(10);

    let stack = ServiceBuilder::new()
        .layer(SetRequestIdLayer::x_request_id(MakeRequestUuid))
        .layer(TraceLayer::new_for_http())
        .layer(PropagateRequestIdLayer::x_request_id())
        .layer(cors)
        .layer(by_address)
        .layer(TimeoutLayer::with_status_code(
            StatusCode::GATEWAY_TIMEOUT,
            timeout,
        ))
        .layer(from_fn(authenticate)) // inserts the user that `by_user` counts
        .layer(by_user)
        .layer(GlobalConcurrencyLimitLayer::new(256));
    Router::new()
        .route("/", get(|| async { "ok" }))
        .layer(stack)
}

async fn authenticate(mut request: Request, next: Next) -> Response {
    // A real service checks credentials here.
    let user = request.headers().get("x-user");
    let Some(user) = user.filter(|user| *user == "ada") else {
        return StatusCode::UNAUTHORIZED.into_response();
    };
    let user = User(user.to_str().unwrap_or_default().to_owned());
    request.extensions_mut().insert(user);
    next.run(request).await
}

#[derive(Clone)]
struct User(String);
// page: end

#[tokio::test]
async fn the_limit_by_address_refuses_before_authentication_and_inside_cors() {
    let peer = SocketAddr::from(([192, 0, 2, 1], 4711));
    let app = app(MemoryStore::new()).layer(MockConnectInfo(peer));
    let send = async |request: Request| app.clone().oneshot(request).await.expect("a response");
    let get = |user: &'static str| {
        let request = Request::get("/").header("origin", "https://example.com");
        let request = request.header("x-user", user).body(Body::empty());
        request.expect("a request")
    };
    assert_eq!(send(get("ada")).await.status(), 200);
    assert_eq!(send(get("eve")).await.status(), 401);
    assert_eq!(send(get("ada")).await.status(), 200);

    // The limit by address has admitted 3 requests.
    let refused = send(get("eve")).await;
    assert_eq!(refused.status(), 429);
    assert!(refused.headers().contains_key("x-request-id"));
    let origin = "access-control-allow-origin";
    assert!(refused.headers().contains_key(origin));

    // `CorsLayer` answers preflights, so they reach no limit.
    let preflight = Request::builder().method(Method::OPTIONS).uri("/");
    let preflight = preflight.body(Body::empty()).expect("a request");
    assert_eq!(send(preflight).await.status(), 200);
}
