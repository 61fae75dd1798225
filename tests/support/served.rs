//! A router behind a real server, and an independent client.

use std::net::SocketAddr;

use axum::Router;
use axum::http::HeaderMap;
use reqwest::Response;

/// Serves a router on a free port, and returns its URL.
pub(crate) async fn serve(app: Router) -> String {
    format!("http://{}", serve_on("127.0.0.1:0", app).await)
}

/// Serves a router on a free port of this address, and returns where.
pub(crate) async fn serve_on(address: &str, app: Router) -> SocketAddr {
    let listener = tokio::net::TcpListener::bind(address).await.unwrap();
    let address = listener.local_addr().unwrap();
    let app = app.into_make_service_with_connect_info::<SocketAddr>();
    tokio::spawn(async move { axum::serve(listener, app).await });
    address
}

pub(crate) async fn fetch(url: &str, headers: &[(&str, &str)]) -> Response {
    let client = reqwest::Client::new();
    let request = headers
        .iter()
        .fold(client.get(url), |request, (name, value)| {
            request.header(*name, *value)
        });
    request.send().await.unwrap()
}

pub(crate) fn number(headers: &HeaderMap, name: &str) -> u64 {
    headers[name].to_str().unwrap().parse().unwrap()
}
