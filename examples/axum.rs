//! A router with two limits: `cargo run --example axum`
//!
//! It counts in memory, so that it starts at once. On a Redis, any number of these share one limit:
//! `TOLLGATE_STORE=redis://127.0.0.1:6379 cargo run --example axum`

mod support;

use std::error::Error;
use std::net::SocketAddr;
use std::{env, io};

use axum::{Extension, Router, routing::get};
use tollgate::{DecisionView, Quota, RateLimitLayer, key, store};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    tracing_subscriber::fmt().with_writer(io::stderr).init();

    let url = env::var("TOLLGATE_STORE").unwrap_or_else(|_| "memory:".into());
    let store = store::from_url(&url)?;

    // By API key: 5 units a second and 100 a minute. An export costs 4 of them, by its route: a client can
    // spell the path of a route, and a query, in many ways.
    let search = RateLimitLayer::new(
        store.clone(),
        [Quota::per_second(5), Quota::per_minute(100)],
    )
    .name("search")
    .key(key::header("x-api-key"));
    let export = search.clone().cost(|_| 4);

    let app = Router::new()
        .route("/", get(|| async { "ok\n" }))
        .route("/search", get(found).layer(search))
        .route("/search/{format}", get(found).layer(export))
        // By address: 10 requests in any 10 seconds, to whatever stands above.
        .layer(RateLimitLayer::new(store, "10/10s".parse::<Quota>()?).name("site"));

    let listener = support::listen().await?;
    let address = listener.local_addr()?;
    println!("Listening on {address}. Try, in another terminal:");
    // Ten are answered; the eleventh is refused, and told when to come again.
    println!(
        "  for i in $(seq 10); do curl -so /dev/null -w '%{{http_code}} ' http://{address}/; done; echo; curl -i http://{address}/"
    );
    println!("  curl -i -H 'x-api-key: ada' http://{address}/search");
    println!("  curl -i -H 'x-api-key: ada' http://{address}/search/csv");

    // `peer_ip`, the key of the second layer, needs the address that axum tells it so.
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
