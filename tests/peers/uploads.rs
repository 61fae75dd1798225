//! Uploads that are rejected before their bodies are read, on keep-alive connections.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use axum::serve::ListenerExt as _;
use axum::{Router, routing::post};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tollgate::{MemoryStore, Quota, RateLimitLayer};

use crate::nginx::Nginx;
use crate::python;

const POSTS: u32 = 500;

/// What nginx needs to keep its connections, before version 1.29.7.
const KEEPS: &str = "proxy_http_version 1.1; proxy_set_header Connection '';";

/// A server that refuses every request, and the number of connections that it has taken.
async fn refusing(
    change: impl FnOnce(RateLimitLayer) -> RateLimitLayer,
) -> (SocketAddr, Arc<AtomicU32>) {
    let layer = change(RateLimitLayer::new(MemoryStore::new(), Quota::per_hour(0)));
    let upload = async |body: String| body.len().to_string();
    let app = Router::new().route("/", post(upload)).layer(layer);
    let connections = Arc::new(AtomicU32::new(0));
    let taken = Arc::clone(&connections);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let listener = listener.tap_io(move |_| {
        taken.fetch_add(1, Ordering::Relaxed);
    });
    let app = app.into_make_service_with_connect_info::<SocketAddr>();
    tokio::spawn(async move { axum::serve(listener, app).await });
    (address, connections)
}

/// The outcomes of posts of this size, by a client with keep-alive.
async fn posts_to(address: SocketAddr, bytes: u32) -> Value {
    let arguments = [format!("http://{address}/"), bytes.to_string()];
    python::run("uploads.py", &arguments.each_ref().map(String::as_str)).await
}

#[tokio::test(flavor = "multi_thread")]
async fn refused_uploads_break_no_kept_alive_connection_of_python() {
    let (address, connections) = refusing(|layer| layer).await;
    let report = posts_to(address, 1_024).await;
    assert_eq!(report["failures"], json!({}), "{report}");
    assert_eq!(report["statuses"], json!({ "429": POSTS }), "{report}");
    assert_eq!(connections.load(Ordering::Relaxed), POSTS);
}

#[tokio::test(flavor = "multi_thread")]
async fn behind_nginx_each_refused_upload_costs_a_connection_unless_it_is_switched_off() {
    for (close, expected) in [(true, POSTS), (false, 1)] {
        let (address, connections) = refusing(|layer| closing(layer, close)).await;
        let nginx = Nginx::start(address, "127.0.0.10", KEEPS);
        let report = posts_to(nginx.address(), 1_024).await;
        assert_eq!(report["failures"], json!({}), "{report}");
        assert_eq!(report["statuses"], json!({ "429": POSTS }), "{report}");
        let connections = connections.load(Ordering::Relaxed);
        assert_eq!(connections, expected, "closing: {close}");
    }
}

fn closing(layer: RateLimitLayer, close: bool) -> RateLimitLayer {
    match close {
        true => layer,
        false => layer.without_connection_close(),
    }
}

/// Prints the figures of the guide, `src/guide/placement.md`.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "a measurement: what breaks depends on timing"]
async fn refused_uploads_are_measured() {
    for bytes in [1_024, 8_000, 65_536, 1_000_000] {
        for close in [true, false] {
            let (address, connections) = refusing(|layer| closing(layer, close)).await;
            let report = posts_to(address, bytes).await;
            let direct = connections.swap(0, Ordering::Relaxed);
            println!("{bytes} bytes, announced: {close}, direct: {direct} connections, {report}");
            let takes_all = format!("{KEEPS} client_max_body_size 0;");
            let nginx = Nginx::start(address, "127.0.0.10", &takes_all);
            let report = posts_to(nginx.address(), bytes).await;
            let proxied = connections.load(Ordering::Relaxed);
            println!("{bytes} bytes, announced: {close}, nginx: {proxied} connections, {report}");
        }
    }
}
