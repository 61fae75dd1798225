//! A router behind a proxy that limits each client, not the proxy: `cargo run --example behind_proxy`
//!
//! `TRUSTED_PROXIES` lists the networks of the proxies; the default is `127.0.0.1`. The first command that the
//! example prints connects from there, so it acts as the proxy. The second connects from another address, like
//! a client that bypasses the proxy: its `X-Forwarded-For` is ignored, and its own address is the key.
//!
//! nginx needs: `proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for;`

mod support;

use std::error::Error;
use std::net::SocketAddr;
use std::{env, io};

use axum::{Router, routing::get};
use tollgate::{MemoryStore, Quota, RateLimitLayer, key};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    tracing_subscriber::fmt().with_writer(io::stderr).init();

    let proxies = env::var("TRUSTED_PROXIES").unwrap_or_else(|_| "127.0.0.1".into());
    // `checked` reports an invalid network here, instead of at the first request.
    let client = key::client_ip().behind(proxies.split(',')).checked()?;

    let limit = RateLimitLayer::new(MemoryStore::new(), "3/minute".parse::<Quota>()?).key(client);
    let app = Router::new()
        .route("/", get(|| async { "ok\n" }))
        .layer(limit);

    let listener = support::listen().await?;
    let address = listener.local_addr()?;
    println!("Listening on {address}. Try:");
    let proxied = "curl -i -H 'x-forwarded-for: 1.1.1.1, 203.0.113.7'";
    println!("  {proxied} http://{address}/  # counts 203.0.113.7, which the proxy saw");
    let direct = "curl -i --interface 127.0.0.2 -H 'x-forwarded-for: 1.1.1.1'";
    println!("  {direct} http://{address}/  # counts 127.0.0.2, which is not a proxy");

    // `client_ip` compares the peer address with the proxies. This adds it to each request.
    let app = app.into_make_service_with_connect_info::<SocketAddr>();
    axum::serve(listener, app).await?;
    Ok(())
}
