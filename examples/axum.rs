//! A router with two limits: `cargo run --example axum`
//!
//! By default it counts in memory. With a Redis, several processes share the limits:
//! `TOLLGATE_STORE=redis://127.0.0.1:6379 cargo run --example axum`

#[path = "support/store.rs"]
mod store;
mod support;

use std::error::Error;
use std::io;
use std::net::SocketAddr;

use axum::{Extension, Router, routing::get};
use tollgate::{DecisionView, Quota, RateLimitLayer, key};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    tracing_subscriber::fmt().with_writer(io::stderr).init();

    let store = store::open(|redis| redis.prefix("shop"))?;

    // Each API key gets 5 units per second and 100 per minute.
    let search = RateLimitLayer::new(
        store.clone(),
        [Quota::per_second(5), Quota::per_minute(100)],
    )
    .name("search")
    .key(key::header("x-api-key"));
    // Exports share these quotas and cost 4 units. The cost depends on the route, not on the path in the
    // request: `/search/csv` and `/search/%63sv` are the same route.
    let export = search.clone().cost(|_| 4);

    let app = Router::new()
        .route("/", get(|| async { "ok\n" }))
        .route("/search", get(found).layer(search))
        .route("/search/{format}", get(found).layer(export))
        // Each client address gets 10 requests in any 10 seconds, over all routes above.
        .layer(RateLimitLayer::new(store, "10/10s".parse::<Quota>()?).name("site"));

    let listener = support::listen().await?;
    let address = listener.local_addr()?;
    println!("Listening on {address}. Try, in another terminal:");
    // Ten requests get 200. The eleventh gets 429 with `Retry-After`.
    println!(
        "  for i in $(seq 10); do curl -so /dev/null -w '%{{http_code}} ' http://{address}/; done; echo; curl -i http://{address}/"
    );
    println!("  curl -i -H 'x-api-key: ada' http://{address}/search");
    println!("  curl -i -H 'x-api-key: ada' http://{address}/search/csv");

    // The default key, `peer_ip`, needs the `ConnectInfo` that this adds to each request.
    let app = app.into_make_service_with_connect_info::<SocketAddr>();
    axum::serve(listener, app).await?;
    Ok(())
}

async fn found(Extension(decision): Extension<DecisionView>) -> String {
    format!(
        "found, with {} of {} units left\n",
        decision.remaining(),
        decision.limit()
    )
}
