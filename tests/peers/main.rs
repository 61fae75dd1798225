//! Limits with other servers, proxies and clients.
//!
//! `tests/run peers` installs the programs and runs this. A test fails if its program is missing.

mod admin;
mod browser;
mod clients_behind_nginx;
mod grpc;
mod grpcio;
mod nginx;
mod npm_clients;
mod playground;
mod prometheus;
mod python;
mod support;
mod uploads;
mod urllib3;
mod webdriver;

use std::net::SocketAddr;

use axum::Router;

use support::served::serve_on;

/// Serves a router on a free port, and returns its address.
async fn serve(app: Router) -> SocketAddr {
    serve_on("127.0.0.1:0", app).await
}
