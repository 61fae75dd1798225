//! A limit whose key and cost are in a JSON body: `cargo run --example json_body`
//!
//! Each tenant may use 10 000 tokens per minute. The tenant and the number of tokens are in the body, so the handler
//! checks the limit, after axum's own `Json`. The layer outside limits each address before a body is read.

mod support;

use std::error::Error;
use std::io;
use std::net::SocketAddr;

use axum::extract::State;
use axum::http::HeaderMap;
use axum::{Json, Router, routing::post};
use serde::Deserialize;
use tollgate::{
    FailurePolicy, Headers, MemoryStore, Quota, RateLimitLayer, RateLimiter, Rejection,
};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    tracing_subscriber::fmt().with_writer(io::stderr).init();
    let store = MemoryStore::new();
    // No headers, since the handler writes those of the tenant's limit.
    let by_address = RateLimitLayer::new(store.clone(), Quota::per_minute(100))
        .name("address")
        .headers(Headers::none());
    let tokens = RateLimiter::new(store, Quota::per_minute(10_000))
        .name("tokens")
        .on_failure(FailurePolicy::fall_back());
    let app = Router::new()
        .route("/complete", post(complete).layer(by_address))
        .with_state(tokens);

    let listener = support::listen().await?;
    let address = listener.local_addr()?;
    println!("Listening on {address}. Try:");
    for tokens in [6_000, 10_001] {
        let body = format!(r#"{{"tenant": "acme", "max_tokens": {tokens}}}"#);
        println!("  curl -i --json '{body}' http://{address}/complete");
    }
    let app = app.into_make_service_with_connect_info::<SocketAddr>();
    axum::serve(listener, app).await?;
    Ok(())
}

#[derive(Deserialize)]
struct Prompt {
    tenant: String,
    max_tokens: u32,
}

/// A refusal, and an error of the store, become a complete response by `?`.
async fn complete(
    State(tokens): State<RateLimiter>,
    Json(prompt): Json<Prompt>,
) -> Result<(HeaderMap, String), Rejection> {
    let Prompt { tenant, max_tokens } = prompt;
    let decision = tokens.check_n(tenant, max_tokens).await?.or_reject()?;
    let mut headers = HeaderMap::new();
    Headers::default().write(decision.view(), &mut headers);
    Ok((headers, format!("{max_tokens} tokens\n")))
}
