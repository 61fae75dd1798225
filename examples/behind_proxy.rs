//! A router behind a proxy, which counts clients and not the proxy: `cargo run --example behind_proxy`
//!
//! `TRUSTED_PROXIES` lists the networks of the proxies, here `127.0.0.1` unless it is set, from where
//! you type what the first lines say: so you play the proxy. Who connects from elsewhere, as a client
//! that has found its way around the proxy, is counted by its own address, whatever it claims.
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
    // `checked`: what is no network is an error now, not with the first request.
    let client = key::client_ip().behind(proxies.split(',')).checked()?;

    let limit = RateLimitLayer::new(MemoryStore::new(), "3/minute".parse::<Quota>()?).key(client);
    let app = Router::new()
        .route("/", get(|| async { "ok\n" }))
        .layer(limit);

    let listener = support::listen().await?;
    let address = listener.local_addr()?;
    println!("Listening on {address}. Try:");
    let proxied = "curl -i -H 'x-forwarded-for: 1.1.1.1, 203.0.113.7'";
    println!("  {proxied} http://{address}/  # 203.0.113.7 claims to be 1.1.1.1");
    let direct = "curl -i --interface 127.0.0.2 -H 'x-forwarded-for: 1.1.1.1'";
    println!("  {direct} http://{address}/  # past the proxy");

    // Whether the peer is a proxy is known by its address, which axum tells so.
    let app = app.into_make_service_with_connect_info::<SocketAddr>();
    axum::serve(listener, app).await?;
    Ok(())
}
