//! Servers, proxies and clients that are not ours: what they make of a limit, and it of them.
//!
//! `tests/run peers` installs them and runs this; a test whose program is missing fails.

#[path = "../support/mod.rs"]
mod support;

mod browser;
mod clients_behind_nginx;
mod grpc;
mod nginx;
mod urllib3;

use std::net::SocketAddr;

use axum::Router;

/// Serves a router on a free port, and returns its address.
async fn serve(app: Router) -> SocketAddr {
    serve_on("127.0.0.1:0", app).await
}

/// The same on a free port of this address.
async fn serve_on(address: &str, app: Router) -> SocketAddr {
    let listener = tokio::net::TcpListener::bind(address).await.unwrap();
    let address = listener.local_addr().unwrap();
    let app = app.into_make_service_with_connect_info::<SocketAddr>();
    tokio::spawn(async move { axum::serve(listener, app).await });
    address
}
