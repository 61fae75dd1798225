//! Short programs as somebody would write them who has read only the docs, by builder: all of them compile and run.
//!
//! Snippets that cannot compile are in `ui/`, with the error that says what to write instead.

mod checks;
mod keys;
mod layers;
mod quotas;
mod responses;
mod routers;
mod settings;
mod shown;
mod ui;

use std::error::Error;
use std::net::SocketAddr;

use axum::Router;
use axum::body::Body;
use http::{Request, StatusCode};
use tollgate::key::PeerAddr;
use tower::ServiceExt;

/// The result of a snippet, as of `main` in the docs.
type Done = Result<(), Box<dyn Error>>;

/// A request from 192.0.2.1.
fn get(path: &str) -> Request<Body> {
    let peer = PeerAddr(SocketAddr::from(([192, 0, 2, 1], 5_000)));
    let request = Request::get(path).extension(peer);
    request.body(Body::empty()).expect("a request")
}

/// The status of the answer to a request.
async fn status(app: &Router, path: &str) -> StatusCode {
    let response = app.clone().oneshot(get(path)).await;
    response.unwrap_or_else(|never| match never {}).status()
}
